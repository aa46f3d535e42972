"""The bytes of an artifact: written artifacts are read back, and damaged ones are refused."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.artifact import layout
from svc.artifact.keys import SigningKeys, verify
from svc.errors import ArtifactError, HeaderInvalid, HeaderTooLarge, MagicMismatch, PayloadTooLarge, UnsupportedFormat

KID, KEY = "2026-a", bytes(range(32))
KEYS = SigningKeys({KID: KEY})
HEADER = {"recipe_name": "movies", "best_score": 0.25, "title": "Amélie"}
PAYLOAD = [b"payload ", b"", memoryview(b"in pieces")]
CAP = 1 << 20


def made(**changes: object) -> bytes:
    out = io.BytesIO()
    arguments = {"kid": KID, "key": KEY, "header": HEADER, "payload": PAYLOAD, **changes}
    layout.write(out, **arguments)  # type: ignore[arg-type]
    return out.getvalue()


def parse(data: bytes) -> layout.Parsed:
    return layout.parse(memoryview(data), max_payload_bytes=CAP)


def test_a_written_artifact_is_read_back() -> None:
    """Kid, header and payload are the same, and the signature is valid."""
    parsed = parse(made())
    verify(parsed, KEYS)
    assert parsed.kid == KID
    assert parsed.header == {**HEADER, "kid": KID, "format_version": 1}
    assert bytes(parsed.payload) == b"payload in pieces"


def test_the_bytes_match_the_specification() -> None:
    """Every field is at its offset, in big-endian order, and the signature covers all bytes before it."""
    data = made()
    magic, version, kid_length = struct.unpack_from(">8sHH", data)
    assert (magic, version, kid_length) == (b"SVCMODEL", 1, len(KID))
    assert data[12 : 12 + kid_length] == KID.encode()
    header_length, payload_length = struct.unpack_from(">IQ", data, 12 + kid_length)
    header_at = 12 + kid_length + 12
    assert json.loads(data[header_at : header_at + header_length])["recipe_name"] == "movies"
    payload_at = -(-(header_at + header_length) // 64) * 64
    assert not any(data[header_at + header_length : payload_at])
    assert data[payload_at : payload_at + payload_length] == b"payload in pieces"
    assert data[payload_at + payload_length :] == hmac.digest(KEY, data[:-32], "sha256")


def test_write_returns_sha256_and_sizes() -> None:
    """The returned values are those of the written file."""
    out = io.BytesIO()
    written = layout.write(out, kid=KID, key=KEY, header=HEADER, payload=PAYLOAD)
    data = out.getvalue()
    assert written == layout.Written(hashlib.sha256(data).hexdigest(), len(data), 17)


@pytest.mark.parametrize("fill", range(70))
def test_the_payload_is_aligned_for_every_header_length(fill: int) -> None:
    """The payload starts at a multiple of 64 bytes."""
    data = made(header={"fill": "x" * fill})
    assert (len(data) - 32 - 17) % 64 == 0
    assert bytes(parse(data).payload) == b"payload in pieces"


def test_the_header_cannot_contradict_kid_and_format_version() -> None:
    """Values for these fields in the caller's header are overwritten."""
    assert parse(made(header={"kid": "other", "format_version": 9})).header == {"kid": KID, "format_version": 1}


@pytest.mark.parametrize("header", [{"x": float("nan")}, {"x": object()}, {"x": "\ud800"}])
def test_a_header_that_json_cannot_express_is_refused_before_writing(header: dict[str, object]) -> None:
    """NaN, other objects and half a surrogate pair are errors, and the file stays empty."""
    out = io.BytesIO()
    with pytest.raises(HeaderInvalid):
        layout.write(out, kid=KID, key=KEY, header=header, payload=PAYLOAD)
    assert out.getvalue() == b""


def test_a_header_over_64_kib_is_neither_written_nor_read() -> None:
    """The writer refuses such a header, and the reader a file with such a header length."""
    with pytest.raises(HeaderTooLarge, match="header JSON too large"):
        made(header={"x": "y" * (64 << 10)})
    data = bytearray(made())
    struct.pack_into(">I", data, 12 + len(KID), (64 << 10) + 1)
    with pytest.raises(HeaderTooLarge, match="header JSON too large"):
        parse(bytes(data))


def test_a_payload_over_the_cap_is_refused_by_its_length() -> None:
    """The length field is enough. No byte of the payload is read."""
    data = bytearray(made())
    struct.pack_into(">Q", data, 12 + len(KID) + 4, CAP + 1)
    with pytest.raises(PayloadTooLarge, match="payload exceeds max bytes"):
        parse(bytes(data))
    layout.parse(memoryview(made()), max_payload_bytes=17)
    with pytest.raises(PayloadTooLarge):
        layout.parse(memoryview(made()), max_payload_bytes=16)


@pytest.mark.parametrize("signature", ["hmac", "ed25519"])
def test_both_kinds_of_signature_are_read(signature: str) -> None:
    """The two kinds differ only in the format version and in the signature's bytes."""
    data, version, size = made(signature=signature), *{"hmac": (1, 32), "ed25519": (2, 64)}[signature]
    parsed = parse(data)
    verify(parsed, KEYS)
    assert parsed.format_version == parsed.header["format_version"] == version
    assert len(parsed.signature) == size
    assert data.replace(b'"format_version":2', b'"format_version":1')[10:-size] == made()[10:-32]
    out = io.BytesIO()
    written = layout.write(out, kid=KID, key=KEY, header=HEADER, payload=PAYLOAD, signature=signature)  # type: ignore[arg-type]
    assert written == layout.Written(hashlib.sha256(out.getvalue()).hexdigest(), len(data), 17)


def test_an_artifact_signed_with_ed25519_can_be_checked_without_svc() -> None:
    """Any Ed25519 and SHA-256 can verify it, as docs/reference/training.md describes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data = made(signature="ed25519")
    message = b"svc artifact, format version 2\0" + hashlib.sha256(data[:-64]).digest()
    Ed25519PrivateKey.from_private_bytes(KEY).public_key().verify(data[-64:], message)


@pytest.mark.parametrize("version", [0, 3, 255, 256, 65535])
def test_other_format_versions_are_refused(version: int) -> None:
    """The error names the version."""
    data = bytearray(made())
    struct.pack_into(">H", data, 8, version)
    with pytest.raises(UnsupportedFormat, match=f"^unsupported format version: {version}"):
        parse(bytes(data))


@pytest.mark.parametrize("signature", ["hmac", "ed25519"])
def test_truncated_and_extended_files_are_magic_mismatches(signature: str) -> None:
    """Every truncation, down to the empty file, and every extension is refused."""
    data = made(signature=signature)
    for size in range(len(data)):
        with pytest.raises(MagicMismatch, match=r"^magic bytes mismatch"):
            parse(data[:size])
    for more in (b"\0", b"x" * 64, data):
        with pytest.raises(MagicMismatch, match="corrupt"):
            parse(data + more)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b"null", b'{"a":', b"\xff{}", b"[" * 60_000])
def test_a_signed_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    """A valid signature does not excuse an invalid header."""
    front = struct.pack(">8sHH", b"SVCMODEL", 1, len(KID)) + KID.encode() + struct.pack(">IQ", len(text), 0) + text
    front += bytes(-len(front) % 64)
    parsed = parse(front + hmac.digest(KEY, front, "sha256"))
    verify(parsed, KEYS)
    with pytest.raises(HeaderInvalid):
        _ = parsed.header


@pytest.mark.parametrize(
    ("data", "kid"),
    [
        (b"SVCMODEL\0\1\0\3abcrest", "abc"),
        (b"NOTMAGIC\0\1\0\3abcrest", "abc"),
        (b"SVCMODEL\0\1\0\3a\xffcrest", "a\\xffc"),
        (b"SVCMODEL\0\1\0\5\x1b[2Jarest", "\\x1b[2Ja"),
        (b"SVCMODEL\0\1\xff\xff" + b"k" * 100, "k" * 64),
    ],
)
def test_the_kid_of_a_broken_file_is_read(data: bytes, kid: str) -> None:
    """The kid is read even if the rest is broken. Unprintable bytes are escaped."""
    assert layout.kid_of(memoryview(data)) == kid


@pytest.mark.parametrize("data", [b"", b"SVCMODEL\0\1", b"SVCMODEL\0\1\0\0rest", b"SVCMODEL\0\1\0\5abc"])
def test_a_file_too_short_for_a_kid_is_refused(data: bytes) -> None:
    """Reading the kid of such a file raises HeaderInvalid."""
    with pytest.raises(HeaderInvalid, match="no kid"):
        layout.kid_of(memoryview(data))


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"SVCMODEL\0\1" + tail))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_are_refused_with_an_artifact_error(data: bytes) -> None:
    """For arbitrary bytes, parsing and verifying raise ArtifactError and no other exception."""
    with contextlib.suppress(HeaderInvalid):
        layout.kid_of(memoryview(data))
    with pytest.raises(ArtifactError):
        verify(parse(data), KEYS)


@pytest.mark.parametrize("signature", ["hmac", "ed25519"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_changed_byte_is_refused(signature: str, data: st.DataObject) -> None:
    """A valid file with one to three changed bytes is refused."""
    good = made(signature=signature)
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    expected = pytest.raises(ArtifactError) if bytes(bad) != good else contextlib.nullcontext()
    with expected:
        verify(parse(bytes(bad)), KEYS)
