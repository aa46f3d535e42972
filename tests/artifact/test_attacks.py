"""The server's loading of attacked artifacts: none is served, and none is decoded before its signature is verified."""

from __future__ import annotations

import functools
import gc
import hashlib
import hmac
import io
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from svc.artifact import ed25519, layout
from svc.artifact.keys import load_signing_keys, parse_signing_keys, public_entry
from svc.artifact.store import Store
from svc.errors import (
    ArtifactError,
    ArtifactReadError,
    ConfigError,
    FeatureStateMismatch,
    ForbiddenClass,
    HeaderTooLarge,
    MagicMismatch,
    PayloadInvalid,
    PayloadTooLarge,
    RehearsalFailed,
    SignatureMismatch,
    UnknownKid,
    UnsupportedFormat,
)
from svc.model import codec, load_model
from svc.model.history import History
from svc.model.model import Model
from svc.model.recommenders.popularity import PopularityScorer
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.serving.models.loader import Loader
from svc.settings import MIB, Settings
from tests.serving.artifacts import factor_model, header, popularity_model

KEYS = parse_signing_keys(f"k1:{'11' * 32},k2:{'22' * 32}")
SETTINGS = Settings(max_payload_bytes=MIB * 64, max_artifact_bytes=MIB * 64)
SPECIFIED = (
    "magic bytes mismatch",
    "unsupported format version",
    "header JSON too large",
    "payload exceeds max bytes",
    "unknown kid: ",
    "signature mismatch",
)


class Bytes:
    """A store that always returns the same bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def uri_of(self, name: str) -> str:
        return name

    def read(self, name: str, max_bytes: int) -> memoryview:
        return memoryview(self.content)

    def marker(self, name: str) -> str:
        return "1"

    def put(self, write: Callable[[BinaryIO], Any], name_of: Callable[[Any], str]) -> Any:
        raise AssertionError("nobody writes here")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> LoadedRecipe:
    path = tmp_path_factory.mktemp("recipes") / "a.yaml"
    path.write_text(
        '{"name": "a", "source": {"type": "csv", "path": "none.csv"}, "output": {"path": "a.svc"},'
        ' "schema": {"user_column": "u", "item_column": "i"}}'
    )
    return load_recipe(path, {}, settings=SETTINGS, for_serving=True)


def signed(payload: list[Any], kid: str = "k1", signature: layout.Signature = "hmac", **more: Any) -> bytes:
    out = io.BytesIO()
    key = KEYS.entries.get(kid)
    assert key is not None
    layout.write(out, kid=kid, key=key, header=header(**more), payload=payload, signature=signature)
    return out.getvalue()


@functools.cache
def small(best: int = 0, kid: str = "k1", signature: layout.Signature = "hmac") -> bytes:
    return signed(codec.encode(popularity_model(best)), kid, signature, run=best)


@functools.cache
def large(seed: int = 0, signature: layout.Signature = "hmac") -> bytes:
    """Return an artifact of two megabytes, of the same size for every seed."""
    return signed(codec.encode(factor_model(1_000, 6_000, 64, seed)), signature=signature, run=seed)


SIZES: dict[str, Callable[..., bytes]] = {
    "small": small,
    "large": large,
    "small, version 2": functools.partial(small, signature="ed25519"),
    "large, version 2": functools.partial(large, signature="ed25519"),
}


class Parts:
    """The offsets of an artifact's parts."""

    def __init__(self, data: bytes) -> None:
        kid_length = struct.unpack_from(">H", data, 10)[0]
        self.lengths = 12 + kid_length
        self.header = self.lengths + 12
        header_length, payload_length = struct.unpack_from(">IQ", data, self.lengths)
        self.header_end = self.header + header_length
        self.payload = self.header_end + -self.header_end % 64
        self.signature = self.payload + payload_length

    def boundaries(self) -> list[int]:
        return [
            0,
            8,
            10,
            12,
            self.lengths,
            self.lengths + 4,
            self.header,
            self.header_end,
            self.payload,
            self.signature,
        ]


@pytest.fixture
def refused(recipe: LoadedRecipe, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], ArtifactError]]:
    """Return a function that loads bytes, expects a refusal before their payload is decoded, and returns the error."""

    def decoded(_: memoryview) -> None:
        raise AssertionError("a payload was decoded although its signature does not hold")

    monkeypatch.setattr(load_model, "decode", decoded)
    yield functools.partial(refusal, recipe)


def refusal(recipe: LoadedRecipe, data: bytes) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        Loader(SETTINGS, KEYS, {}).load(recipe, Store(Bytes(data), "a.svc"))
    return caught.value


def test_the_artifacts_load_without_changes(recipe: LoadedRecipe) -> None:
    """The artifacts that the other tests change are valid."""
    for data in (small(0, "k2"), small(0, "k2", "ed25519"), *(made(n) for made in SIZES.values() for n in (0, 1))):
        assert Loader(SETTINGS, KEYS, {}).load(recipe, Store(Bytes(data), "a.svc")) is not None


def expected_at(place: int, parts: Parts) -> tuple[type[ArtifactError], ...]:
    """Return the errors that a changed byte at `place` may cause."""
    if place < 8:
        return (MagicMismatch,)
    if place < 10:
        return (UnsupportedFormat, MagicMismatch)  # of the other version, the signature has another length
    if place < 12:
        return (MagicMismatch, HeaderTooLarge, PayloadTooLarge)
    if place < parts.lengths:
        return (UnknownKid, SignatureMismatch)
    if place < parts.header:  # a header shorter by less than its padding leaves all other parts in place
        return (MagicMismatch, HeaderTooLarge, PayloadTooLarge, SignatureMismatch)
    return (SignatureMismatch,)


@pytest.mark.parametrize(
    ("size", "change"),
    [(size, change) for size in SIZES for change in ((0x01, 0x80, 0xFF) if size.startswith("small") else (0x10,))],
)
def test_a_changed_byte_outside_the_payload_is_refused(
    refused: Callable[[bytes], ArtifactError], size: str, change: int
) -> None:
    """Each such byte gets one bit or all bits changed. The error has one of the documented messages.

    Of large artifacts, every seventh byte is changed.
    """
    data = SIZES[size]()
    parts, step = Parts(data), 1 if size.startswith("small") else 7
    for place in (*range(0, parts.payload, step), *range(parts.signature, len(data), step)):
        bad = bytearray(data)
        bad[place] ^= change
        error = refused(bytes(bad))
        assert isinstance(error, expected_at(place, parts)), (place, error)
        assert error.message.startswith(SPECIFIED), (place, error)


@pytest.mark.parametrize(("size", "step"), [(size, 7 if size.startswith("small") else 20_011) for size in SIZES])
def test_a_changed_byte_of_the_payload_is_a_signature_mismatch(
    refused: Callable[[bytes], ArtifactError], size: str, step: int
) -> None:
    """Bytes all over the payload are changed, one at a time."""
    data = SIZES[size]()
    parts = Parts(data)
    for place in range(parts.payload, parts.signature, step):
        bad = bytearray(data)
        bad[place] ^= 0x10
        assert isinstance(refused(bytes(bad)), SignatureMismatch)


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize(("field", "form"), [("version", ">H"), ("kid", ">H"), ("header", ">I"), ("payload", ">Q")])
def test_wrong_lengths_are_refused(refused: Callable[[bytes], ArtifactError], field: str, form: str, size: str) -> None:
    """Each length field is set to zero, one, its neighbours, the caps and the largest values."""
    data = SIZES[size]()
    parts = Parts(data)
    place = {"version": 8, "kid": 10, "header": parts.lengths, "payload": parts.lengths + 4}[field]
    truth = struct.unpack_from(form, data, place)[0]
    most = (1 << 8 * struct.calcsize(form)) - 1
    caps = {layout.MAX_KID_BYTES, layout.MAX_HEADER_BYTES, SETTINGS.max_payload_bytes}
    lies = {0, 1, truth - 1, truth + 1, truth + 64, most, most - 1, most >> 1, (most >> 1) + 1} | caps
    for lie in {lie for lie in lies if lie <= most} - {truth}:
        bad = bytearray(data)
        struct.pack_into(form, bad, place, lie)
        assert refused(bytes(bad)).message.startswith(SPECIFIED), (field, lie)


@pytest.mark.parametrize("size", list(SIZES))
def test_truncated_and_extended_files_are_refused(refused: Callable[[bytes], ArtifactError], size: str) -> None:
    """Files are cut at, before and after the end of every part, or extended."""
    data = SIZES[size]()
    for boundary in (*Parts(data).boundaries(), len(data)):
        for end in (boundary - 1, boundary, boundary + 1):
            if 0 <= end < len(data):
                assert isinstance(refused(data[:end]), MagicMismatch)
    for more in (b"\0", bytes(64), data):
        assert isinstance(refused(data + more), MagicMismatch)


@pytest.mark.parametrize("size", list(SIZES))
def test_swapped_parts_of_two_valid_artifacts_are_refused(refused: Callable[[bytes], ArtifactError], size: str) -> None:
    """Any mixture of the parts of two artifacts by one key is a signature mismatch."""
    one, other = SIZES[size](0), SIZES[size](1)
    parts = Parts(one)
    assert len(one) == len(other)
    edges = [parts.lengths, parts.header, parts.header_end, parts.payload, parts.payload + 16, parts.signature]
    for choice in product((one, other), repeat=len(edges) + 1):
        cuts = zip(choice, pairwise([0, *edges, len(one)]), strict=True)
        mixed = b"".join(source[start:end] for source, (start, end) in cuts)
        if mixed not in (one, other):
            assert isinstance(refused(mixed), SignatureMismatch)


def test_a_changed_kid_is_refused(refused: Callable[[bytes], ArtifactError]) -> None:
    """Another listed kid is a signature mismatch, an unlisted one an unknown kid."""
    data = small()
    assert isinstance(refused(data[:12] + b"k2" + data[14:]), SignatureMismatch)
    error = refused(data[:12] + b"k9" + data[14:])
    assert isinstance(error, UnknownKid)
    assert error.message.startswith("unknown kid: k9; the kids here are k1, k2: add k9:<64 hex characters> (")
    assert isinstance(refused(data[:12] + b"\xff\x00" + data[14:]), UnknownKid)


def test_only_an_hmac_sha256_over_all_bytes_is_accepted(refused: Callable[[bytes], ArtifactError]) -> None:
    """Other algorithms, other keys and signatures over fewer bytes are mismatches."""
    data, key = small()[:-32], bytes.fromhex("11" * 32)
    for forged in (
        hmac.digest(key, data, "blake2s"),
        hmac.digest(key, data[8:], "sha256"),
        hmac.digest(key, data[: Parts(small()).payload], "sha256"),
        hmac.digest(b"", data, "sha256"),
        bytes(32),
    ):
        assert isinstance(refused(data + forged), SignatureMismatch)


def test_only_an_ed25519_signature_of_this_content_and_context_is_accepted(
    refused: Callable[[bytes], ArtifactError],
) -> None:
    """Signatures over other content, in another context, by other keys or in another encoding are mismatches."""
    data, seed = small(0, "k1", "ed25519")[:-64], bytes.fromhex("11" * 32)
    own, digest = ed25519.ARTIFACT, hashlib.sha256(data).digest()
    order = (1 << 252) + 27742317777372353535851937790883648493
    valid = ed25519.sign(seed, own, digest)
    for forged in (
        ed25519.sign(seed, ed25519.LOG_LINE, digest),
        ed25519.sign(seed, b"", digest),
        ed25519.sign(seed, own, hashlib.sha256(data[8:]).digest()),
        ed25519.sign(seed, own, hashlib.sha512(data).digest()),
        ed25519.sign(seed, b"", data),
        ed25519.sign(bytes.fromhex("22" * 32), own, digest),
        ed25519.sign(ed25519.public_half(seed), own, digest),
        valid[:32]
        + (int.from_bytes(valid[32:], "little") + order).to_bytes(32, "little"),  # the same, written otherwise
        hmac.digest(seed, data, "sha512"),
        hmac.digest(seed, data, "sha256") * 2,
        bytes(64),
        b"\x01" + bytes(63),
    ):
        assert isinstance(refused(data + forged), SignatureMismatch)


PUBLIC = load_signing_keys(Settings(verify_keys=",".join(public_entry(kid, key) for kid, key in KEYS.entries.items())))


def as_version(data: bytes, version: int) -> bytes:
    """Return the same content as another format version, without the bytes of that version's signature."""
    size = {1: 64, 2: 32}[version]
    return data[:8] + struct.pack(">H", version) + data[10:-size]


def downgrades() -> Iterator[tuple[str, bytes]]:
    seed, other = bytes.fromhex("11" * 32), ed25519.public_half(bytes.fromhex("11" * 32))
    modern, plain = small(0, "k1", "ed25519"), small()
    for name, key in {"public": other, "public in hex": other.hex().encode(), "empty": b"", "kid": b"k1"}.items():
        for data in (as_version(modern, 1), plain[:-32]):
            yield f"HMAC with the {name} key", data + hmac.digest(key, data, "sha256")
    content = as_version(modern, 1)
    yield "the first half of the signature", content + modern[-64:-32]
    yield "the second half of the signature", content + modern[-32:]
    yield "version 1 relabelled", as_version(plain, 2) + plain[-32:] * 2
    yield "version 1 with a signature from elsewhere", as_version(plain, 2) + modern[-64:]
    yield "version 1 as it is", plain
    yield "version 1 by the secret itself", content + hmac.digest(seed, content, "sha256")


@pytest.mark.parametrize(("name", "data"), list(downgrades()))
def test_a_server_with_public_keys_alone_accepts_no_hmac(
    recipe: LoadedRecipe, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    """Everyone knows the public keys, so an HMAC by any key is refused."""
    monkeypatch.setattr(load_model, "decode", lambda _: pytest.fail("a payload was decoded"))
    with pytest.raises(ArtifactError) as caught:
        Loader(SETTINGS, PUBLIC, {}).load(recipe, Store(Bytes(data), "a.svc"))
    assert isinstance(caught.value, UnknownKid | SignatureMismatch)


def test_a_server_with_public_keys_alone_serves_ed25519_artifacts(recipe: LoadedRecipe) -> None:
    """The server has no key that could sign."""
    assert Loader(SETTINGS, PUBLIC, {}).load(recipe, Store(Bytes(small(0, "k2", "ed25519")), "a.svc")) is not None
    assert PUBLIC.entries == {}
    with pytest.raises(ConfigError, match="svc keygen"):
        _ = PUBLIC.active


class Leaves:
    """An object whose unpickling creates the file `mark`."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def around(pickled: bytes) -> list[bytes | memoryview]:
    return codec._lay_out(pickled, [])


def test_an_unsigned_payload_is_not_executed(recipe: LoadedRecipe, tmp_path: Path) -> None:
    """A payload that would run a command is not decoded if its signature is wrong."""
    data = signed(around(pickle.dumps(Leaves(tmp_path / "mark"), protocol=5)))
    error = refusal(recipe, data[:-1] + bytes([data[-1] ^ 1]))
    assert isinstance(error, SignatureMismatch)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_signed_payload_is_not_executed(recipe: LoadedRecipe, tmp_path: Path, protocol: int) -> None:
    """A valid signature lets a payload contain a model, but no calls."""
    error = refusal(recipe, signed(around(pickle.dumps(Leaves(tmp_path / "mark"), protocol))))
    assert isinstance(error, ForbiddenClass)
    assert not (tmp_path / "mark").exists()


def call_of(module: str, name: str) -> bytes:
    """Return a pickle that calls `module.name` without arguments."""
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return b"\x80\x04" + texts + b"\x93)R."


FORBIDDEN = {
    "os.system": call_of("os", "system"),
    "os.system, old style": b"cos\nsystem\n(S'true'\ntR.",
    "eval": call_of("builtins", "eval"),
    "partial": call_of("functools", "partial"),
    "partial chain": pickle.dumps(functools.partial(functools.partial, print), protocol=5),
    "numpy array": call_of("numpy._core.numeric", "_frombuffer"),
    "numpy object array": pickle.dumps(np.array([os.system], dtype=object), protocol=5),
    "numpy dtype": pickle.dumps(np.dtype("f8"), protocol=4),
    "numpy load": call_of("numpy", "load"),
    "path behind a class": call_of("svc.model.model", "Model.__init__"),
    "path behind a package": call_of("svc.model", "model.Model"),
    "neighbour of an allowed name": call_of("svc.model.codec", "decode"),
}


@pytest.mark.parametrize("forbidden", list(FORBIDDEN))
def test_signed_payloads_with_forbidden_names_are_refused(recipe: LoadedRecipe, forbidden: str) -> None:
    """Even with a valid signature, only names of the allow-list are accepted."""
    error = refusal(recipe, signed(around(FORBIDDEN[forbidden])))
    assert isinstance(error, ForbiddenClass)
    assert error.stage == "deserialize"


def test_forbidden_payloads_do_not_grow_the_process(recipe: LoadedRecipe) -> None:
    """After about a thousand refusals, memory has grown by less than 4 MiB, and no module has been imported."""
    files = [signed(around(pickled)) for pickled in FORBIDDEN.values()]
    for data in files:
        refusal(recipe, data)
    before, modules = resident_bytes(), set(sys.modules)
    for _ in range(1000 // len(files)):
        for data in files:
            refusal(recipe, data)
    assert resident_bytes() - before < 4 * MIB
    assert set(sys.modules) == modules


@pytest.mark.parametrize("payload", [[], [b"x"], [b"\0" * 64], codec.encode({"not": "a model"}), codec.encode([1, 2])])
def test_signed_payloads_without_a_model_are_refused(recipe: LoadedRecipe, payload: list[Any]) -> None:
    """A signed payload of something else raises PayloadInvalid."""
    assert isinstance(refusal(recipe, signed(payload)), PayloadInvalid)


def broken(**parts: Any) -> Model:
    model = popularity_model()
    for name, value in parts.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    "model",
    [
        broken(scorer="a text"),
        broken(scorer=PopularityScorer(np.full(6, np.nan))),
        broken(scorer=PopularityScorer(np.arange(7.0))),
        broken(history=None),
        broken(history=History(np.array([0, 1 << 40]), np.zeros(1, np.int32))),
        broken(item_ids=7),
        broken(features=[1, 2]),
    ],
    ids=["scorer", "not finite", "other size", "no history", "other history", "ids", "features"],
)
def test_signed_models_with_inconsistent_parts_are_refused(recipe: LoadedRecipe, model: Model) -> None:
    """A valid signature does not prove a valid model. Inconsistent ones are refused as damaged."""
    expected = PayloadInvalid | FeatureStateMismatch | RehearsalFailed
    assert isinstance(refusal(recipe, signed(codec.encode(model))), expected)


def test_a_failing_store_is_a_read_error(recipe: LoadedRecipe, tmp_path: Path) -> None:
    """If the store returns no bytes, the error is ArtifactReadError."""

    class Broken(Bytes):
        def read(self, name: str, max_bytes: int) -> memoryview:
            raise FileNotFoundError(name)

    with pytest.raises(ArtifactError) as caught:
        Loader(SETTINGS, KEYS, {}).load(recipe, Store(Broken(b""), "a.svc"))
    assert isinstance(caught.value, ArtifactReadError)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_refused_large_artifacts_do_not_grow_the_process(
    refused: Callable[[bytes], ArtifactError],
) -> None:
    """After twenty refused loads of an artifact of eleven megabytes, fewer than four copies are in memory.

    The first loads are not counted, because the allocator of a process that ran many tests keeps up to six copies once.
    """
    data = signed(codec.encode(factor_model(2_000, 20_000, 128)))
    assert len(data) > 10 * MIB
    places = np.random.default_rng(3).integers(0, len(data), 28)
    bad = bytearray(data)
    refused(bytes(bad[:-1]))
    before = 0
    for number, place in enumerate(places.tolist()):
        before = resident_bytes() if number == 8 else before
        bad[place] ^= 0x55
        assert refused(bytes(bad)).message.startswith(SPECIFIED)
        bad[place] ^= 0x55
    assert resident_bytes() - before < 4 * len(data)
