"""Signing keys as a caller may give them."""

from __future__ import annotations

import pytest

from svc.errors import ConfigError
from svc.library.keys import keys_text, signing_keys
from svc.settings import Settings

KEY, OTHER = "11" * 32, "22" * 32


def test_text_mapping_and_environment_are_one() -> None:
    """The first key signs, whichever way they come."""
    for given in (f"a:{KEY},b:{OTHER}", {"a": KEY, "b": OTHER}):
        keys = signing_keys(given, Settings())
        assert keys.active == ("a", bytes.fromhex(KEY))
        assert keys.get("b") == bytes.fromhex(OTHER)
    assert keys_text(None, Settings(signing_keys=f"a:{KEY}")) == f"a:{KEY}"


@pytest.mark.parametrize("given", [None, "", "  ", {}])
def test_no_keys_at_all_say_how_to_give_some(given: object) -> None:
    """Rather than failing when the first artifact is read."""
    with pytest.raises(ConfigError, match="SVC_SIGNING_KEYS"):
        keys_text(given, Settings())  # type: ignore[arg-type]


def test_a_broken_key_is_not_repeated() -> None:
    """A message may be shown to somebody who may not know it."""
    with pytest.raises(ConfigError) as caught:
        signing_keys({"a": "secret" * 9}, Settings())
    assert "secret" not in caught.value.message
