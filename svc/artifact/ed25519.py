"""Ed25519 signatures by the library `cryptography`, which is imported on first use.

The signed message is a context followed by the sha256 of the content. The sha256 lets a check take one pass over the
content, as an HMAC does. The context makes a signature of one kind of content invalid for another kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from svc.late_imports import LateModule

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives.asymmetric import ed25519
else:
    exceptions = LateModule("cryptography.exceptions")
    ed25519 = LateModule("cryptography.hazmat.primitives.asymmetric.ed25519")

SIGNATURE_BYTES: Final = 64
ARTIFACT: Final = b"svc artifact, format version 2\0"
"""The context of artifact signatures."""
LOG_LINE: Final = b"svc log line\0"
"""The context of signatures of version log lines."""

_TOP_BIT: Final = 0x80
_SMALL: Final = frozenset(
    {
        bytes(32),
        # y = 1, the neutral element. Under it R = 1 with S = 0 is a valid signature of any message.
        b"\x01" + bytes(31),
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
        bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
        b"\xec" + b"\xff" * 30 + b"\x7f",
        # y = 0 and y = 1 written as p and p + 1. RFC 8032 forbids this form, but `cryptography` accepts it.
        b"\xed" + b"\xff" * 30 + b"\x7f",
        b"\xee" + b"\xff" * 30 + b"\x7f",
    }
)
"""Points of small order, with the sign bit cleared. If a public key is such a point, one signature is valid for many
contents."""


def public_half(seed: bytes) -> bytes:
    """Return the public key (32 bytes) of a signing key (32 bytes)."""
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed: bytes, context: bytes, sha256: bytes) -> bytes:
    """Return the signature (64 bytes) of content with this sha256 (32 bytes)."""
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed).sign(context + sha256)


def is_signed(public: bytes, signature: bytes, context: bytes, sha256: bytes) -> bool:
    """Return whether the private key of `public` made `signature` over this context and sha256."""
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, context + sha256)
    except (exceptions.InvalidSignature, ValueError):  # ValueError: a key of another length than 32 bytes
        return False
    return True


def is_weak(public: bytes) -> bool:
    """Return whether the public key is a point of small order, so that its signatures prove nothing."""
    # The top bit is the sign of x and does not change the order of the point, so both signs are weak.
    return public[:-1] + bytes([public[-1] & ~_TOP_BIT]) in _SMALL
