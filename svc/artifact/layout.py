"""The bytes of an artifact file.

All numbers are big-endian. The parts stand in this order, which `docs/reference/training.md` shows too:

magic `SVCMODEL`  8       header length  u32    header   JSON, UTF-8
format version  u16       payload length u64    padding  zeros to a multiple of 64
kid length      u16                             payload
kid             UTF-8                           signature over every byte before it

The format version tells the kind of signature. Version 1 has an HMAC-SHA256 of 32 bytes, version 2 an Ed25519 signature
of 64 bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, Final, Literal

from svc.artifact import ed25519
from svc.errors import HeaderInvalid, HeaderTooLarge, MagicMismatch, PayloadTooLarge, UnsupportedFormat
from svc.local_paths import naming_size
from svc.logs import printable

MAGIC: Final = b"SVCMODEL"
Signature = Literal["hmac", "ed25519"]
HMAC_VERSION: Final = 1
FORMAT_VERSIONS: Final[Mapping[Signature, int]] = {"hmac": HMAC_VERSION, "ed25519": 2}
MAX_HEADER_BYTES: Final = 64 << 10
MAX_KID_BYTES: Final = 64
ALIGNMENT: Final = 64
_SIGNATURE_BYTES: Final = {FORMAT_VERSIONS["hmac"]: 32, FORMAT_VERSIONS["ed25519"]: ed25519.SIGNATURE_BYTES}
_OTHER_MAGICS: Final = {
    "a gzip file": b"\x1f\x8b",
    "a zip archive": b"PK\x03\x04",
    "a Parquet file": b"PAR1",
    "a SQLite database": b"SQLite format 3",
    "a pickle": b"\x80",
    "an HTML page": b"<",
}
_START = struct.Struct(">8sHH")
_LENGTHS = struct.Struct(">IQ")


@dataclass(frozen=True, slots=True)
class Written:
    """The result of `write`: the sha256 of the whole file, its size and the payload's size in bytes."""

    sha256_hex: str
    artifact_bytes: int
    payload_bytes: int


# no slots, because `cached_property` needs a `__dict__`
@dataclass(frozen=True, eq=False)
class Parsed:
    """Views into one artifact, untrusted until `keys.verify` has passed.

    `signed` is every byte that the signature covers.
    """

    format_version: int
    kid: str
    header_json: memoryview
    payload: memoryview
    signed: memoryview
    signature: bytes

    @cached_property
    def header(self) -> dict[str, Any]:
        """Return the header. Raises HeaderInvalid if it is not a JSON object."""
        try:
            header = json.loads(bytes(self.header_json))
        except (ValueError, RecursionError) as error:  # RecursionError: too many nested lists
            raise HeaderInvalid(f"header JSON cannot be read: {type(error).__name__}") from None
        if not isinstance(header, dict):
            raise HeaderInvalid(f"header JSON is a {type(header).__name__}, not an object")
        return header


def write(
    out: BinaryIO,
    *,
    kid: str,
    key: bytes,
    header: Mapping[str, Any],
    payload: Sequence[bytes | memoryview],
    signature: Signature = "hmac",
) -> Written:
    """Write an artifact to `out`, signed with `key` (32 bytes). Adds `kid` and `format_version` to the header.

    Raises HeaderTooLarge, and HeaderInvalid for values that JSON cannot express, before anything is written.
    """
    # The caller's values of both fields are replaced, so the header cannot contradict the bytes in front of it.
    version = FORMAT_VERSIONS[signature]
    header_json = _header_json({**header, "kid": kid, "format_version": version})
    payload_bytes = sum(memoryview(piece).nbytes for piece in payload)
    kid_bytes = kid.encode()
    front = _START.pack(MAGIC, version, len(kid_bytes)) + kid_bytes
    front += _LENGTHS.pack(len(header_json), payload_bytes) + header_json
    front += bytes(-len(front) % ALIGNMENT)
    code, digest = hmac.new(key, digestmod="sha256") if signature == "hmac" else None, hashlib.sha256()
    n_bytes = len(front) + payload_bytes + _SIGNATURE_BYTES[version]
    with naming_size(n_bytes):
        for piece in (front, *payload):
            if code is not None:
                code.update(piece)
            digest.update(piece)
            out.write(piece)
        # Ed25519 signs the sha256 of everything before the signature. The sha256 of the file includes the signature.
        end = ed25519.sign(key, ed25519.ARTIFACT, digest.digest()) if code is None else code.digest()
        digest.update(end)
        out.write(end)
        out.flush()
    return Written(digest.hexdigest(), n_bytes, payload_bytes)


def _header_json(header: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        encoded = text.encode()
    except (TypeError, ValueError) as error:
        raise HeaderInvalid(f"header cannot be written as JSON: {error}") from error
    if len(encoded) > MAX_HEADER_BYTES:
        raise HeaderTooLarge(f"header JSON too large: {len(encoded)} bytes, at most {MAX_HEADER_BYTES}")
    return encoded


def kid_of(buffer: memoryview) -> str:
    """Return the unverified kid of an artifact.

    Escapes unprintable characters, and bytes that are not UTF-8. Raises HeaderInvalid if the kid is empty or the
    file is too short.
    """
    # Clamped instead of refused: a broken file should still be named by its kid in messages.
    length = min(_START.unpack_from(buffer)[2], MAX_KID_BYTES) if len(buffer) >= _START.size else 0
    kid = bytes(buffer[_START.size : _START.size + length])
    if not kid or len(kid) < length:
        raise HeaderInvalid(f"no kid can be read from the {len(buffer)} bytes of the file")
    return printable(kid.decode("utf-8", "backslashreplace"))


def parse(buffer: memoryview, *, max_payload_bytes: int) -> Parsed:
    """Split an artifact by its magic, version and lengths, without decoding the header or the payload.

    Raises MagicMismatch if the file is truncated, too long or not an artifact. Also raises UnsupportedFormat,
    HeaderTooLarge and PayloadTooLarge.
    """
    if bytes(buffer[: len(MAGIC)]) != MAGIC:
        raise MagicMismatch(f"magic bytes mismatch: not an artifact but {_probable_type(buffer)}")
    _need(buffer, _START.size)
    _, version, kid_length = _START.unpack_from(buffer)
    if version not in _SIGNATURE_BYTES:
        versions = " and ".join(map(str, _SIGNATURE_BYTES))
        raise UnsupportedFormat(f"unsupported format version: {version}, this build reads {versions}")
    if not 1 <= kid_length <= MAX_KID_BYTES:
        raise MagicMismatch(f"magic bytes mismatch: the kid's length is {kid_length}; the file is corrupt")
    lengths_at = _START.size + kid_length
    _need(buffer, lengths_at + _LENGTHS.size)
    header_length, payload_length = _LENGTHS.unpack_from(buffer, lengths_at)
    if header_length > MAX_HEADER_BYTES:
        raise HeaderTooLarge(f"header JSON too large: {header_length} bytes, at most {MAX_HEADER_BYTES}")
    # Checked by the length field alone, before a byte of the payload is touched.
    if payload_length > max_payload_bytes:
        raise PayloadTooLarge(
            f"payload exceeds max bytes: {payload_length}, SVC_MAX_PAYLOAD_BYTES is {max_payload_bytes}"
        )
    return _cut(buffer, version, lengths_at + _LENGTHS.size, header_length, payload_length)


def _cut(buffer: memoryview, version: int, header_at: int, header_length: int, payload_length: int) -> Parsed:
    header_end = header_at + header_length
    payload_at = header_end + -header_end % ALIGNMENT
    signature_at = payload_at + payload_length
    end = signature_at + _SIGNATURE_BYTES[version]
    # An exact length, because no signature covers bytes behind itself.
    if len(buffer) != end:
        raise MagicMismatch(
            f"magic bytes mismatch: {len(buffer)} bytes where the lengths say {end}; the file is truncated or corrupt"
        )
    return Parsed(
        format_version=version,
        kid=kid_of(buffer),
        header_json=buffer[header_at:header_end],
        payload=buffer[payload_at:signature_at],
        signed=buffer[:signature_at],
        signature=bytes(buffer[signature_at:]),
    )


def _probable_type(buffer: memoryview) -> str:
    """Return the probable type of a file that does not begin like an artifact."""
    # `buffer` may be hundreds of megabytes, and a guess needs only its beginning.
    start = bytes(buffer[:512])
    for name, magic in _OTHER_MAGICS.items():
        if start.startswith(magic):
            return name
    if not start:
        return "an empty file"
    text = start.split(b"\n", 1)[0].decode("utf-8", "ignore").strip()
    return "a text file" if text and text.isprintable() else f"{len(buffer)} bytes of something else"


def _need(buffer: memoryview, size: int) -> None:
    if len(buffer) < size:
        raise MagicMismatch(f"magic bytes mismatch: only {len(buffer)} bytes; the file is truncated")
