"""The form of API keys, and of the server's list of them."""

from __future__ import annotations

import hashlib
import re

import pytest

from svc.errors import ConfigError
from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys


def test_a_new_key_is_43_characters_of_base64url() -> None:
    """Two keys differ, and both have the form that clients send."""
    assert new_api_key() != new_api_key()
    assert all(re.fullmatch("[A-Za-z0-9_-]{43}", new_api_key()) for _ in range(20))


def test_the_hash_is_scrypt_behind_a_fixed_prefix() -> None:
    """Known answer: the salt and cost parameters are part of the wire format."""
    key = "A" * 43
    expected = hashlib.scrypt(key.encode(), salt=b"svc.api-key.v1", n=1024, r=8, p=1, dklen=32).hex()
    assert hash_api_key(key) == f"sha256:{expected}"
    assert expected != hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize(
    "text", ["nonsense", "k:sha256:12", "k:" + "0" * 64, "k k:sha256:" + "0" * 64, ":sha256:" + "0" * 64]
)
def test_a_bad_list_is_refused_without_showing_it(text: str) -> None:
    """The message names the place of the entry and says how to make one; the value stays out of it."""
    with pytest.raises(ConfigError, match="entry 2") as caught:
        parse_api_keys(f"good:sha256:{'a' * 64},{text}")
    assert text not in str(caught.value)


def test_a_kid_stands_once() -> None:
    """Two entries of one kid are a mistake in the list."""
    with pytest.raises(ConfigError, match="twice"):
        parse_api_keys(f"k:sha256:{'a' * 64}, k:sha256:{'b' * 64}")


def test_an_empty_list_has_no_keys() -> None:
    """Empty, or commas only: nobody is asked for a key."""
    assert parse_api_keys("") == parse_api_keys(" , ") == {}
