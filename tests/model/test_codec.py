"""Payloads: encoded values come back, and no other value is ever decoded."""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import io
import os
import pickle
import pickletools
import re
import struct
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc.errors import ForbiddenClass, PayloadInvalid
from svc.model import codec
from svc.model.codec import Stored
from svc.model.ids import IdTable
from tests.families import family


@dataclass(eq=False)
class Inner(Stored):
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(3))
    _derived: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._derived = np.zeros(100)
        self.derived = np.zeros(100)


@dataclass(eq=False)
class Outer(Stored):
    inner: Inner = field(default_factory=Inner)
    several: tuple[Inner, ...] = field(default_factory=lambda: (Inner(),))
    ids: IdTable = field(default_factory=lambda: IdTable.from_ids(["a"]))
    name: str = "x"


def test_derived_attributes_are_not_stored() -> None:
    """Loading computes attributes again that are no fields, or have a leading underscore."""
    assert set(Inner().__getstate__()) == {"numbers"}


@dataclass(eq=False)
class Later(Stored):
    ALWAYS_STORED: ClassVar[frozenset[str]] = frozenset({"scales"})
    first: object
    scales: object = None
    ties: object = None
    recency: float = 0.0
    parts_of: tuple[str, ...] = ()


def test_optional_attributes_are_stored_only_if_set() -> None:
    """Artifacts without them keep their bytes. Arrays without elements are stored."""
    assert list(Later(None).__getstate__()) == ["first", "scales"]
    given: dict[str, Any] = {"ties": np.zeros(0, dtype=bool), "recency": 0.5, "parts_of": ("a",)}
    assert Later(None, **given).__getstate__() == {"first": None, "scales": None, **given}


def test_parts_lists_every_array_by_its_path() -> None:
    """Paths lead through stored objects, tuples and id tables. Plain values are not counted."""
    parts = Outer().parts()
    assert parts["inner.numbers"] == parts["several.0.numbers"] == 24
    assert parts["ids.blob"] == 1
    assert not any("derived" in path or path == "name" for path in parts)


ALL_DTYPES = sorted(codec.DTYPES)


def payload_of(value: object) -> memoryview:
    """Return the payload of `value` as one buffer, as in an artifact."""
    return memoryview(b"".join(codec.encode(value)))


def around(pickled: bytes, *buffers: bytes) -> memoryview:
    """Return a well-formed payload around a pickle that `encode` would never write."""
    return memoryview(b"".join(codec._lay_out(pickled, [memoryview(b) for b in buffers])))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("shape", [(0,), (7,), (3, 5), (0, 4), (), (2, 3, 4), (2, 1, 3, 2)])
def test_arrays_come_back_equal_and_read_only(dtype: str, shape: tuple[int, ...]) -> None:
    """Arrays of every admitted type and shape keep their values. Decoded arrays are read-only."""
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    back = codec.decode(payload_of(value))
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert np.array_equal(back, value)
    assert not back.flags.writeable


def test_arrays_are_views_of_the_payload() -> None:
    """No array is copied: each one lies inside the payload, aligned to 64 bytes of it."""
    payload = memoryview(bytearray(payload_of([np.arange(1000.0), np.ones((3, 3), np.float32)])))
    start = np.frombuffer(payload, np.uint8).__array_interface__["data"][0]
    for back in codec.decode(payload):
        offset = back.__array_interface__["data"][0] - start
        assert 0 <= offset < len(payload)
        assert offset % 64 == 0


@pytest.mark.parametrize("view", ["column", "transposed", "reversed", "big_endian"])
def test_any_layout_may_be_encoded(view: str) -> None:
    """Strided, transposed, reversed and foreign-endian arrays keep their values."""
    base = np.arange(12, dtype=np.float64).reshape(3, 4)
    value = {"column": base[:, 1], "transposed": base.T, "reversed": base[::-1], "big_endian": base.astype(">f8")}[view]
    assert np.array_equal(codec.decode(payload_of(value)), value)


def test_column_order_is_kept() -> None:
    """A matrix laid out by columns comes back by columns, without a copy on either side."""
    assert codec.decode(payload_of(np.asfortranarray(np.ones((3, 4))))).flags.f_contiguous


def test_plain_values_and_tables_come_back() -> None:
    """Numbers, texts, containers and id tables survive with their types."""
    table = IdTable.from_ids(["a", "ß", ""])
    value = {
        "n": 1,
        "big": 1 << 70,
        "x": -1.5,
        "t": (True, None, b"raw"),
        "s": frozenset({"k"}),
        "ids": table,
    }
    back = codec.decode(payload_of(value))
    ids = back.pop("ids")
    value.pop("ids")
    assert back == value
    assert ids.all() == ["a", "ß", ""]
    assert ids.index("ß") == 1


def test_one_array_is_stored_once() -> None:
    """An object that appears twice is one object again, and its bytes lie in the payload once."""
    big = np.zeros(100_000)
    payload = payload_of([big, big])
    first, second = codec.decode(payload)
    assert first is second
    assert len(payload) < 100_000 * 8 + 1000


@pytest.mark.parametrize(
    "value",
    [
        Path("x"),
        os.system,
        dict,
        functools.partial(print),
        collections.OrderedDict(),
        np.array([object()], dtype=object),
        np.zeros(2, dtype=[("a", "f4")]),
        np.array(["text"]),
        np.datetime64("2026-01-01"),
        np.str_("text"),
        np.float64(1.0),
        1 + 2j,
        object(),
    ],
    ids=lambda v: type(v).__name__,
)
def test_encode_refuses_values_that_decode_would_refuse(value: object) -> None:
    """The training fails instead of writing a payload that no server could read."""
    with pytest.raises(ForbiddenClass, match="not on the allow-list"):
        codec.encode([value])


class Marks:
    """An object that is pickled as a call. The call leaves a mark if it is ever made."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def marking_calls(mark: Path) -> dict[str, object]:
    return {
        "os.system": Marks(os.system, f"touch {mark}"),
        "eval": Marks(eval, f"open({str(mark)!r}, 'w')"),
        "exec": Marks(exec, f"open({str(mark)!r}, 'w')"),
        "open": Marks(open, str(mark), "w"),
        "import": Marks(builtins.__import__, "antigravity"),
        "getattr": Marks(getattr, "x", "upper"),
        "partial": Marks(functools.partial, os.system, f"touch {mark}"),
        "partial chain": Marks(functools.reduce, functools.partial(os.system), [f"touch {mark}"]),
        "np.load": Marks(np.load, str(mark)),
        "np.fromfile": Marks(np.fromfile, "/etc/hostname"),
        "np.save": Marks(np.save, str(mark), 1),
        "import_module": Marks(import_module, "this"),
        "loads": Marks(pickle.loads, pickle.dumps(1)),
        "object array": np.array([Marks(os.system, f"touch {mark}")], dtype=object),
        "plain array": np.arange(3),
        "dtype": np.dtype("f8"),
        "class": collections.OrderedDict,
        "instance": collections.OrderedDict(a=1),
        "path": Path("/"),
    }


@pytest.mark.parametrize("name", sorted(marking_calls(Path("x"))))
@pytest.mark.parametrize("protocol", range(6))
def test_forbidden_names_are_refused_and_leave_no_mark(tmp_path: Path, name: str, protocol: int) -> None:
    """The load of a pickle that names any other callable is refused at every protocol, and the callable never runs."""
    mark = tmp_path / "mark"
    with pytest.raises((ForbiddenClass, PayloadInvalid)):
        codec.decode(around(pickle.dumps(marking_calls(mark)[name], protocol=protocol)))
    assert not mark.exists()


def pickle_naming(module: str, name: str, *rest: bytes) -> bytes:
    """Return a protocol 4 pickle that pushes `module.name`, then does `rest`."""
    texts = b"".join(b"\x8c" + bytes([len(t.encode())]) + t.encode() for t in (module, name))
    return b"\x80\x04" + texts + b"\x93" + b"".join(rest) + b"."


CALL_NOTHING = b")R"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("svc.model.codec", "pickle.loads"),
        ("svc.model.codec", "array.__globals__"),
        ("svc.model.codec", "array.__class__"),
        ("svc.model.codec", "encode"),
        ("svc.model.codec", "import_module"),
        ("svc.model.codec", "_Builder"),
        ("svc.model.ids", "IdTable.from_ids"),
        ("svc.model", "ids.IdTable"),
        ("svc", "model.ids.IdTable"),
        ("svc.model.ids", "np.load"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("copyreg", "_reconstructor"),
        ("functools", "partial"),
        ("svc.model.ids", ""),
        ("", ""),
        ("svc.model.ids", "IdTable "),
        ("svc.model.IDS", "IdTable"),
    ],
)
def test_only_exact_allowed_names_are_decoded(module: str, name: str) -> None:
    """Names similar to an allowed one, attributes of allowed classes, and numpy's own loaders are refused."""
    with pytest.raises(ForbiddenClass, match="not on the allow-list"):
        codec.decode(around(pickle_naming(module, name, CALL_NOTHING)))


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (b"}b", ForbiddenClass),  # BUILD on a class or function would change it for the whole process
        (b")\x81", ForbiddenClass),  # NEWOBJ
        (b")}\x92", ForbiddenClass),  # NEWOBJ_EX
        (b"\x82\x01", ForbiddenClass),  # EXT1
        (b"Q", ForbiddenClass),  # BINPERSID
        (b"r\xff\xff\xff\x7f", PayloadInvalid),  # LONG_BINPUT: would make the memo 16 GiB big
        (b"q\x01", PayloadInvalid),  # BINPUT
        (b"20", PayloadInvalid),  # DUP POP
        (b"\x96" + struct.pack("<Q", 1 << 40), PayloadInvalid),  # BYTEARRAY8 that claims a terabyte
        (b"\x8e" + struct.pack("<Q", 1 << 40), PayloadInvalid),  # BINBYTES8
        (b"B" + struct.pack("<I", 1 << 31), PayloadInvalid),  # BINBYTES beyond the end
        (b"\x8b" + struct.pack("<i", 1 << 30), PayloadInvalid),  # LONG4
        (b"I123\n", PayloadInvalid),  # INT as text
    ],
)
def test_operations_that_svc_never_writes_are_refused(operation: bytes, error: type[Exception]) -> None:
    """State setting, instance making, memo jumps and giant lengths are refused before anything is built."""
    with pytest.raises(error):
        codec.decode(around(pickle_naming("svc.model.ids", "IdTable", operation)))


def test_a_class_in_a_payload_is_only_a_builder() -> None:
    """An allowed name resolves to an object that cannot be called with other arguments, indexed or filled."""
    for rest in (CALL_NOTHING, b"]R", b"\x8c\x01aK\x01s", b"(K\x01e", b"(K\x01\x90"):
        with pytest.raises(PayloadInvalid):
            codec.decode(around(pickle_naming("svc.model.ids", "IdTable", rest)))


def values(*things: object) -> bytes:
    """Return the operations that push these plain values, without memo."""
    return b"".join(pickletools.optimize(pickle.dumps(thing, protocol=3))[2:-1] for thing in things)


@pytest.mark.parametrize("name", ["__class__", "__dict__", "a b", "rank", "kind", "_order", "recency_by_part"])
def test_state_has_only_attributes_that_the_class_stores(name: str) -> None:
    """Special, derived and unknown attributes are refused. So are attributes that replace a method or a class's own."""
    naming = functools.partial(pickle_naming, "svc.model.recommenders.popularity", "PopularityScorer")
    with pytest.raises(PayloadInvalid, match="not an attribute of a model"):
        codec.decode(around(naming(values((), {name: 1}), b"\x86R")))
    assert codec.decode(around(naming(values((), {"scores": 1}), b"\x86R"))).scores == 1


@pytest.mark.parametrize(
    ("dtype", "shape", "order"),
    [
        ("O", (1,), "C"),
        ("|O", (1,), "C"),
        (">f8", (1,), "C"),
        ("<U2", (1,), "C"),
        ("V8", (1,), "C"),
        ("<M8[s]", (1,), "C"),
        ("f4,f4", (1,), "C"),
        ("<f8", (2,), "C"),
        ("<f8", (-1, -1), "C"),
        ("<f8", (1 << 62, 4), "C"),
        ("<f8", (0,), "C"),
        ("<f8", (True,), "C"),
        ("<f8", (1.0,), "C"),
        ("<f8", (1,) * 5, "C"),
        ("<f8", 1, "C"),
        ("<f8", (1,), "A"),
        ("<f8", (1,), None),
        (["<f8"], (1,), "C"),
        ("f8," * 9, (1,), "C"),
    ],
)
def test_arrays_with_an_invalid_type_shape_or_order_are_refused(dtype: Any, shape: Any, order: Any) -> None:
    """Object, text, void, time, structured and big-endian types are refused, as are shapes unlike the buffer.

    The error quotes a short text, and gives the kind and length of other values.
    """
    quoted = repr(dtype) if isinstance(dtype, str) and len(dtype) < 9 else f"a {type(dtype).__name__} of {len(dtype)}"
    shaped = f"a tuple of {len(shape)}" if isinstance(shape, tuple) else "a int"
    with pytest.raises(PayloadInvalid, match=re.escape(quoted) + "|" + re.escape(shaped) + ", does not fill"):
        codec.decode(
            around(pickle_naming("svc.model.codec", "array", b"(\x97", values(dtype, shape, order), b"tR"), b"12345678")
        )


def test_a_wrong_table_of_contents_is_refused() -> None:
    """Counts, offsets and lengths that do not fit the payload, and bytes left over, are refused."""
    good = bytes(payload_of([np.arange(5)]))
    for offset, form, values in (
        (0, ">I", (0, 2, 1 << 20, 0xFFFFFFFF)),
        (4, ">I", (1,)),
        (8, ">Q", (0, 1, 1 << 63)),
        (16, ">Q", (0, 1, 1 << 63)),
        (24, ">Q", (0, 39, 41, 1 << 63)),
    ):
        for value in values:
            bad = bytearray(good)
            struct.pack_into(form, bad, offset, value)
            with pytest.raises(PayloadInvalid):
                codec.decode(memoryview(bad))
    for bad_size in (good + b"x", good[:-1], b"", good[:10], good[:40]):
        with pytest.raises(PayloadInvalid):
            codec.decode(memoryview(bad_size))


def test_unused_or_missing_buffers_do_no_harm() -> None:
    """A pickle that reads more buffers than there are is refused. Unused buffers are ignored."""
    with pytest.raises(PayloadInvalid):
        codec.decode(around(b"\x80\x05\x97."))
    assert codec.decode(around(b"\x80\x05K\x07.", b"unused")) == 7


@given(st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_a_value_or_a_payload_error(data: bytes) -> None:
    """Decoding arbitrary bytes gives a plain value, or raises ForbiddenClass or PayloadInvalid."""
    for payload in (memoryview(data), around(data), around(b"\x80\x05" + data + b".")):
        with contextlib.suppress(ForbiddenClass, PayloadInvalid):
            codec.decode(payload)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_payloads_give_a_value_or_a_payload_error(data: st.DataObject) -> None:
    """A real payload with changed, removed or inserted bytes gives a value or one of the two errors."""
    payload = bytearray(
        payload_of({"ids": IdTable.from_ids(["a", "b"]), "w": np.ones((2, 2), np.float32), "k": [1, "x", None]})
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(payload) - 1))
        change = data.draw(st.sampled_from(["set", "delete", "insert"]))
        if change == "set":
            payload[place] = data.draw(st.integers(0, 255))
        elif change == "delete":
            del payload[place]
        else:
            payload.insert(place, data.draw(st.integers(0, 255)))
    with contextlib.suppress(ForbiddenClass, PayloadInvalid):
        codec.decode(memoryview(payload))


def test_a_pickle_that_pops_missing_values_is_refused() -> None:
    """Missing marks and memo entries, and an empty stack, are refused."""
    for taken in (b"\x86", b"K\x01\x86", b"t", b"h\x07", b"\x94", b"]K\x01u", b"s", b"R"):
        with pytest.raises(PayloadInvalid):
            codec.decode(around(b"\x80\x05" + taken + b"."))


def test_every_allowed_name_exists() -> None:
    """The allow-list names real classes and functions of svc, whole and without prefixes."""
    for module, name in codec.ALLOWED:
        assert module.startswith("svc.model.")
        target = getattr(import_module(module), name)
        assert (target.__module__, target.__qualname__) == (module, name)


def test_pieces_of_a_payload_share_the_memory_of_arrays() -> None:
    """The pieces of a payload are bytes-like, and its arrays share the caller's memory."""
    big = np.arange(100_000, dtype=np.int64)
    pieces = codec.encode(big)
    out = io.BytesIO()
    for piece in pieces:
        out.write(piece)
    assert np.array_equal(codec.decode(memoryview(out.getvalue())), big)
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), big) for piece in pieces if len(piece) == big.nbytes)


def test_an_artifact_that_an_earlier_version_wrote_is_read_and_written_the_same() -> None:
    """Renamed attributes in the code change neither reading nor writing of an earlier artifact."""
    recorded = (Path(__file__).parent / "recorded" / "ials.payload").read_bytes()
    model = codec.decode(memoryview(recorded))
    model.ready()
    assert model.scorer.least_squares.target_weight == 1.0
    assert payload_of(family("IALS")) == recorded


def rename_anew(value: object) -> None:
    """Give each attribute of a model and its parts an equal name that is another object."""
    if isinstance(value, tuple):
        for part in value:
            rename_anew(part)
    elif type(value).__module__.startswith("svc.") and hasattr(value, "__dict__"):
        state = {name.encode().decode(): part for name, part in vars(value).items()}
        for part in state.values():
            rename_anew(part)
        vars(value).clear()
        vars(value).update(state)


def test_attribute_names_from_another_artifact_change_no_byte() -> None:
    """A process that has read the live model writes the same bytes as one that has not."""
    model = family("IALS")
    rename_anew(model)
    assert payload_of(model) == payload_of(family("IALS"))
