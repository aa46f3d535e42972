"""Signing keys and what they prove."""

from __future__ import annotations

import hashlib
import io

import pytest

from svc.artifact import keys as keys_module
from svc.artifact import layout
from svc.artifact.keys import SigningKeys, development_keys, fingerprint, is_development, parse_signing_keys, verify
from svc.errors import ConfigError, SignatureMismatch, UnknownKid

A, B = "aa" * 32, "bb" * 32


def signed(kid: str, key: bytes) -> layout.Parsed:
    out = io.BytesIO()
    layout.write(out, kid=kid, key=key, header={}, payload=[b"x"])
    return layout.parse(out.getbuffer(), max_payload_bytes=100)


def test_the_first_entry_signs_and_all_verify() -> None:
    """The active key is the first of the list; an artifact of any listed key is trusted."""
    keys = parse_signing_keys(f"new:{A}, old:{B.upper()}")
    assert keys.active == ("new", bytes.fromhex(A))
    verify(signed("new", bytes.fromhex(A)), keys)
    verify(signed("old", bytes.fromhex(B)), keys)


def test_an_unlisted_kid_and_a_wrong_key_are_told_apart() -> None:
    """A kid that is not listed is named; a listed one with other bytes is a signature mismatch."""
    keys = parse_signing_keys(f"a:{A}")
    with pytest.raises(UnknownKid, match=r"^unknown kid: gone$"):
        verify(signed("gone", bytes.fromhex(A)), keys)
    with pytest.raises(SignatureMismatch, match=r"^signature mismatch$"):
        verify(signed("a", bytes.fromhex(B)), keys)


def test_an_empty_list_signs_nothing() -> None:
    """Without keys the list is false, and asking for the active one says how to make one."""
    keys = parse_signing_keys(" ")
    assert not keys
    with pytest.raises(ConfigError, match="svc keygen"):
        _ = keys.active


@pytest.mark.parametrize(
    "text",
    [
        A,
        f":{A}",
        f"a b:{A}",
        f"ü:{A}",
        f"{'k' * 65}:{A}",
        f"a:{A[:-1]}",
        f"a:{A}0",
        "a:" + "g" * 64,
        f"a:{A},",
        f"a:{A},a:{B}",
        "a:",
    ],
)
def test_a_malformed_list_is_an_error_that_shows_no_key(text: str) -> None:
    """The message names the entry and never repeats key material."""
    with pytest.raises(ConfigError, match="SVC_SIGNING_KEYS") as caught:
        parse_signing_keys(text)
    assert A[:8] not in str(caught.value)
    assert "gggg" not in str(caught.value)


def test_fingerprints_tell_keys_apart_without_showing_them() -> None:
    """A fingerprint is the first 8 hex characters of the key's sha256."""
    key = bytes.fromhex(A)
    assert fingerprint(key) == hashlib.sha256(key).hexdigest()[:8]
    assert parse_signing_keys(f"a:{A}").fingerprints() == [{"kid": "a", "fingerprint": fingerprint(key)}]


def test_keys_are_not_shown_by_accident() -> None:
    """The printed form of a key list holds no key."""
    keys = parse_signing_keys(f"a:{A}")
    assert A not in repr(keys)
    assert repr(bytes.fromhex(A)) not in repr(keys)


def test_the_development_key_is_always_the_same_and_known_as_such() -> None:
    """Every process has the same development key under the kid `dev`, and it never counts as proof."""
    keys = development_keys()
    assert keys.active[0] == "dev"
    assert keys == development_keys()
    assert is_development("dev", keys)
    assert not is_development("a", parse_signing_keys(f"a:{A}"))
    assert not is_development("dev", parse_signing_keys(f"dev:{A}"))


def test_the_development_key_may_join_real_ones() -> None:
    """In development a server trusts its own keys first and the development key besides; an own kid `dev` stays."""
    joined = parse_signing_keys(f"a:{A}").with_development()
    assert joined.active[0] == "a"
    assert is_development("dev", joined)
    assert not is_development("dev", parse_signing_keys(f"dev:{A}").with_development())
    assert development_keys().with_development() == development_keys()


def test_the_development_key_is_refused_as_a_real_one() -> None:
    """A public key in the production list would let anyone sign."""
    with pytest.raises(ConfigError, match="development key"):
        parse_signing_keys(f"prod:{keys_module._DEVELOPMENT_KEY.hex()}")


def test_one_wrong_bit_in_the_signature_is_enough() -> None:
    """A signature is compared whole."""
    keys = SigningKeys((("a", bytes(32)),))
    good = signed("a", bytes(32))
    for place in range(32):
        wrong = bytearray(good.signature)
        wrong[place] ^= 1
        bad = layout.Parsed(good.kid, good.header_json, good.payload, good.signed, bytes(wrong))
        with pytest.raises(SignatureMismatch):
            verify(bad, keys)
