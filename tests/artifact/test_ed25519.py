"""Ed25519 signatures: the library has the curve, svc adds the context and refuses weak keys."""

from __future__ import annotations

import hashlib

import pytest

from svc.artifact import ed25519

SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
DIGEST = hashlib.sha256(b"content").digest()
P = (1 << 255) - 19


def test_the_public_key_matches_rfc_8032() -> None:
    """In the RFC's first test vector the 32 bytes of the signing key are the seed."""
    assert ed25519.public_half(SEED) == PUBLIC


def test_a_signature_is_valid_only_for_its_key_context_and_content() -> None:
    """Another key, context or content, or any changed bit, makes it invalid."""
    signature = ed25519.sign(SEED, ed25519.ARTIFACT, DIGEST)
    assert len(signature) == ed25519.SIGNATURE_BYTES
    assert ed25519.is_signed(PUBLIC, signature, ed25519.ARTIFACT, DIGEST)
    assert not ed25519.is_signed(PUBLIC, signature, ed25519.LOG_LINE, DIGEST)
    assert not ed25519.is_signed(PUBLIC, signature, ed25519.ARTIFACT, hashlib.sha256(b"other").digest())
    assert not ed25519.is_signed(ed25519.public_half(bytes(32)), signature, ed25519.ARTIFACT, DIGEST)
    for bit in range(512):
        changed = (int.from_bytes(signature, "big") ^ (1 << bit)).to_bytes(64, "big")
        assert not ed25519.is_signed(PUBLIC, changed, ed25519.ARTIFACT, DIGEST)


@pytest.mark.parametrize("signature", [b"", bytes(32), bytes(63), bytes(64), bytes(65), b"\xff" * 64])
@pytest.mark.parametrize("public", [PUBLIC, bytes(31), b"", b"\xff" * 32])
def test_malformed_signatures_and_keys_are_not_valid(public: bytes, signature: bytes) -> None:
    """Malformed bytes raise no exception."""
    assert not ed25519.is_signed(public, signature, ed25519.ARTIFACT, DIGEST)


@pytest.mark.parametrize("y", [0, 1, P - 1, P, P + 1, *sorted(ed25519._SMALL)])
@pytest.mark.parametrize("sign", [0, 0x80])
def test_points_of_small_order_are_weak_in_every_encoding(y: int | bytes, sign: int) -> None:
    """Anyone can sign under such a public key."""
    point = bytearray(y if isinstance(y, bytes) else y.to_bytes(32, "little"))
    point[-1] |= sign
    assert ed25519.is_weak(bytes(point))
    assert not ed25519.is_weak(PUBLIC)


def test_a_weak_key_accepts_a_signature_made_without_a_secret() -> None:
    """The library accepts the signature, so svc must refuse weak keys."""
    forged = b"\x01" + bytes(63)
    weak = b"\x01" + bytes(31)
    assert ed25519.is_signed(weak, forged, ed25519.ARTIFACT, DIGEST)
    assert ed25519.is_weak(weak)
