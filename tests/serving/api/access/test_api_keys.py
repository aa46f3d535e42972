"""The form of API keys and of the server's list of them."""

from __future__ import annotations

import hashlib
import re

import pytest

from svc.errors import ConfigError
from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys


def test_a_new_key_is_43_characters_of_base64url() -> None:
    """Two new keys differ, and both have the form of a key."""
    assert new_api_key() != new_api_key()
    assert all(re.fullmatch("[A-Za-z0-9_-]{43}", new_api_key()) for _ in range(20))


def test_the_hash_is_scrypt_behind_a_fixed_prefix() -> None:
    """Known answer: salt and cost parameters are part of the format."""
    key = "A" * 43
    expected = hashlib.scrypt(key.encode(), salt=b"svc.api-key.v1", n=1024, r=8, p=1, dklen=32).hex()
    assert hash_api_key(key) == f"sha256:{expected}"
    assert expected != hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize(
    "text", ["nonsense", "k:sha256:12", "k:" + "0" * 64, "k k:sha256:" + "0" * 64, ":sha256:" + "0" * 64]
)
def test_a_bad_list_is_refused_without_showing_it(text: str) -> None:
    """The message has the number of the entry and the command that makes one, but not the value."""
    with pytest.raises(ConfigError, match="entry 2") as caught:
        parse_api_keys(f"good:sha256:{'a' * 64},{text}")
    assert text not in str(caught.value)


def test_a_repeated_kid_is_refused() -> None:
    """Two entries with one kid are an error."""
    with pytest.raises(ConfigError, match="twice"):
        parse_api_keys(f"k:sha256:{'a' * 64}, k:sha256:{'b' * 64}")


def test_an_empty_list_has_no_keys() -> None:
    """An empty list, or one of commas only, configures no key."""
    assert parse_api_keys("") == parse_api_keys(" , ") == {}
