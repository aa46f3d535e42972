"""Signing keys in the forms that a caller may give."""

from __future__ import annotations

import pytest

from svc.errors import ConfigError
from svc.library.keys import keys_text, signing_keys
from svc.settings import Settings

KEY, OTHER = "11" * 32, "22" * 32


def test_text_mapping_and_environment_give_the_same_keys() -> None:
    """In each form the first key signs."""
    for given in (f"a:{KEY},b:{OTHER}", {"a": KEY, "b": OTHER}):
        keys = signing_keys(given, Settings())
        assert keys.active == ("a", bytes.fromhex(KEY))
        assert keys.get("b") == bytes.fromhex(OTHER)
    assert keys_text(None, Settings(signing_keys=f"a:{KEY}")) == f"a:{KEY}"


@pytest.mark.parametrize("given", [None, "", "  ", {}])
def test_the_error_for_missing_keys_says_how_to_give_them(given: object) -> None:
    """The error comes before the first artifact is read."""
    with pytest.raises(ConfigError, match="SVC_SIGNING_KEYS"):
        keys_text(given, Settings())  # type: ignore[arg-type]


def test_the_error_for_a_broken_key_does_not_repeat_it() -> None:
    """Messages may reach people who must not know the key."""
    with pytest.raises(ConfigError) as caught:
        signing_keys({"a": "secret" * 9}, Settings())
    assert "secret" not in caught.value.message
    assert caught.value.message.startswith("keys: the key of entry 1 ")
