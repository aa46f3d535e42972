"""Signing keys, verification keys, and the check of signatures."""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from svc.artifact import keys as keys_module
from svc.artifact import layout
from svc.artifact.keys import (
    SigningKeys,
    development_keys,
    fingerprint,
    fingerprints,
    is_development,
    load_signing_keys,
    parse_signing_keys,
    verify,
)
from svc.errors import ConfigError, SignatureMismatch, UnknownKid
from svc.settings import Settings

A, B = "aa" * 32, "bb" * 32


def signed(kid: str, key: bytes, signature: layout.Signature = "hmac", **header: str) -> layout.Parsed:
    out = io.BytesIO()
    layout.write(out, kid=kid, key=key, header=header, payload=[b"x"], signature=signature)
    return layout.parse(memoryview(out.getvalue()), max_payload_bytes=100)


def test_the_first_entry_signs_and_all_verify() -> None:
    """The active key is the first of the list. Artifacts signed by any listed key are accepted."""
    keys = parse_signing_keys(f"new:{A}, old:{B.upper()}")
    assert keys.active == ("new", bytes.fromhex(A))
    verify(signed("new", bytes.fromhex(A)), keys)
    verify(signed("old", bytes.fromhex(B)), keys)


def test_an_unlisted_kid_and_a_wrong_key_have_different_errors() -> None:
    """An unlisted kid is named. A listed kid with another key is a signature mismatch."""
    keys = parse_signing_keys(f"a:{A}")
    with pytest.raises(UnknownKid, match=r"^unknown kid: gone; the kids here are a: add gone:<64 hex characters>$"):
        verify(signed("gone", bytes.fromhex(A)), keys)
    with pytest.raises(SignatureMismatch, match=r"^signature mismatch: another key of the kid a signed it"):
        verify(signed("a", bytes.fromhex(B)), keys)


def test_a_mismatch_names_the_fingerprints_of_both_keys() -> None:
    """The error for two keys of one kid names both fingerprints. A changed file is not blamed on a key."""
    own, other = bytes.fromhex(A), bytes.fromhex(B)
    keys = parse_signing_keys(f"a:{A}")
    with pytest.raises(SignatureMismatch) as caught:
        verify(signed("a", other, fingerprint=fingerprint(other)), keys)
    assert {fingerprint(own), fingerprint(other)} <= set(re.findall("[0-9a-f]{8}", caught.value.message))
    with pytest.raises(SignatureMismatch, match="the file was changed after the key"):
        verify(signed("a", other, fingerprint=fingerprint(own)), keys)


def test_an_empty_list_has_no_active_key() -> None:
    """An empty list is false, and the error for its active key says how to make one."""
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


def test_a_kid_that_looks_like_a_key_signs_nothing_but_verifies() -> None:
    """Every artifact shows its kid, so the error does not repeat it. Artifacts with such a kid are still accepted."""
    kid = "0123456789abcdefABCDEF0123456789"
    keys = parse_signing_keys(f"{kid}:{A}")
    with pytest.raises(ConfigError, match="looks like a key") as caught:
        _ = keys.active
    assert kid not in caught.value.message
    verify(signed(kid, bytes.fromhex(A)), keys)
    assert parse_signing_keys(f"{kid[:31]}:{A}").active[0] == kid[:31]


def test_a_fingerprint_is_the_start_of_the_sha256() -> None:
    """A fingerprint is the first 8 hex characters of the key's sha256."""
    key = bytes.fromhex(A)
    assert fingerprint(key) == hashlib.sha256(key).hexdigest()[:8]
    assert fingerprints(parse_signing_keys(f"a:{A}").entries) == [{"kid": "a", "fingerprint": fingerprint(key)}]


def test_the_repr_of_keys_shows_no_key() -> None:
    """Key material does not appear in the repr of a key list."""
    keys = parse_signing_keys(f"a:{A}")
    assert A not in repr(keys)
    assert repr(bytes.fromhex(A)) not in repr(keys)


def test_the_development_key_is_constant_and_recognized() -> None:
    """Every process has the same development key under the kid `dev`. Another key of this kid is not taken for it."""
    keys = development_keys()
    assert keys.active[0] == "dev"
    assert keys == development_keys()
    assert is_development("dev", keys)
    assert not is_development("a", parse_signing_keys(f"a:{A}"))
    assert not is_development("dev", parse_signing_keys(f"dev:{A}"))


def test_the_development_key_may_join_other_keys() -> None:
    """In development a server trusts its own keys and the development key. An own key with the kid `dev` is kept."""
    joined = parse_signing_keys(f"a:{A}").with_development()
    assert joined.active[0] == "a"
    assert is_development("dev", joined)
    assert not is_development("dev", parse_signing_keys(f"dev:{A}").with_development())
    assert development_keys().with_development() == development_keys()


def test_the_development_key_is_refused_in_a_list() -> None:
    """Everyone knows this key, so in a production list it would let anyone sign."""
    with pytest.raises(ConfigError, match="development key"):
        parse_signing_keys(f"prod:{keys_module._DEVELOPMENT_KEY.hex()}")


def test_one_changed_bit_of_the_signature_is_a_mismatch() -> None:
    """A changed bit in any byte of the signature is detected."""
    keys = SigningKeys({"a": bytes(32)})
    good = signed("a", bytes(32))
    for place in range(32):
        wrong = bytearray(good.signature)
        wrong[place] ^= 1
        bad = replace(good, signature=bytes(wrong))
        with pytest.raises(SignatureMismatch):
            verify(bad, keys)


def public(kid: str, key: str) -> str:
    return keys_module.public_entry(kid, bytes.fromhex(key))


def keys_with(signing: str = "", verify: str = "") -> SigningKeys:
    return keys_module.load_signing_keys(Settings(signing_keys=signing, verify_keys=verify))


def test_a_public_key_verifies_ed25519_and_nothing_else() -> None:
    """A server with public keys alone neither signs nor accepts an HMAC."""
    keys = keys_with(verify=f"{public('a', A)}, {public('b', B)}")
    assert keys
    for kid, key in (("a", A), ("b", B)):
        verify(signed(kid, bytes.fromhex(key), "ed25519"), keys)
        with pytest.raises(UnknownKid, match=r"^unknown kid: .*its key here only verifies format version 2"):
            verify(signed(kid, bytes.fromhex(key)), keys)
        with pytest.raises(UnknownKid):
            verify(signed(kid, keys.public_of(kid) or b""), keys)
    with pytest.raises(ConfigError, match="svc keygen"):
        _ = keys.active
    assert fingerprints(keys.entries) == []
    assert [shown["kid"] for shown in fingerprints(keys.public)] == ["a", "b"]


def test_keys_rotate_between_hmac_and_ed25519() -> None:
    """During a rotation in either direction, artifacts of both keys are accepted."""
    a, b = bytes.fromhex(A), bytes.fromhex(B)
    old, new = signed("a", a), signed("b", b, "ed25519")
    steps = [keys_with(f"a:{A}"), keys_with(f"a:{A}", public("b", B)), keys_with("", public("b", B))]
    verify(old, steps[0])
    for kept in (old, new):
        verify(kept, steps[1])
    verify(new, steps[2])
    for missing, keys in ((new, steps[0]), (old, steps[2])):
        with pytest.raises(UnknownKid):
            verify(missing, keys)
    verify(signed("a", a, "ed25519"), keys_with(f"a:{A}", public("a", A)))
    verify(old, keys_with(f"a:{A}", public("a", A)))


def test_a_mismatch_of_version_2_names_public_fingerprints() -> None:
    """The header of version 2 has the fingerprint of the public key, which every server can compute."""
    own, other = bytes.fromhex(A), bytes.fromhex(B)
    shown = keys_module.signer_fingerprint(other, "ed25519")
    assert shown != keys_module.signer_fingerprint(other, "hmac") == fingerprint(other)
    with pytest.raises(SignatureMismatch, match=f"fingerprint {shown}, the key here has") as caught:
        verify(signed("a", other, "ed25519", fingerprint=shown), keys_with(verify=public("a", A)))
    assert keys_module.signer_fingerprint(own, "ed25519") in caught.value.message


@pytest.mark.parametrize(
    ("signing", "verify_keys", "words"),
    [
        ("", f"a:{A}", "entry 1 is not a public key"),
        ("", f"a:ed25519:{A}x", "entry 1 is not a public key"),
        ("", "a:ed25519:", "entry 1 is not a public key"),
        ("", f"a:rsa:{A}", "entry 1 is not a public key"),
        ("", f"a b:ed25519:{A}", "entry 1 has no valid kid"),
        ("", f"{public('a', A)},", "entry 2 has no valid kid"),
        ("", f"{public('a', A)},{public('a', B)}", "the kid 'a' is listed twice"),
        (f"a:{A}", public("a", B), "has another key in SVC_SIGNING_KEYS"),
        ("", f"a:ed25519:{'00' * 32}", "weak"),
        ("", f"a:ed25519:{'00' * 31}80", "weak"),
        ("", public("a", keys_module._DEVELOPMENT_KEY.hex()), "the development key"),
    ],
)
def test_malformed_lists_of_public_keys_are_refused(signing: str, verify_keys: str, words: str) -> None:
    """The message names the setting and the entry, and does not repeat a secret in it."""
    with pytest.raises(ConfigError, match=f"SVC_VERIFY_KEYS: .*{words}") as caught:
        keys_with(signing, verify_keys)
    assert A not in caught.value.message


def test_a_broken_file_of_keys_is_named(tmp_path: Path) -> None:
    """The message names the variable and the file that hold the faulty entry."""
    file = tmp_path / "keys"
    file.write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^SVC_SIGNING_KEYS_FILE: {file}: entry 1 has no valid kid"):
        load_signing_keys(Settings(signing_keys_file=str(file)))
