"""Encode a model as bytes and decode it, without letting the bytes choose which code runs.

The payload, big-endian, offsets from its own start:

    buffer count u32 · zero u32 · pickle length u64 · count × (offset u64, length u64) · pickle · buffers

Each buffer holds one array. Buffers start at multiples of 64, so that the arrays are aligned. The pickle (protocol 5)
holds only plain values and calls.

Three checks protect decoding. The first comes before anything is built, the others whenever a name or array is used:

1. The operations of the pickle are compared with those that `encode` uses (`operations.py`). None of them sets state,
   makes instances, or stores at a chosen place of the memo.
2. Each name must be a pair of module and name in `ALLOWED`. A class name resolves to a `_Builder` instead of the
   class. A `_Builder` can only create an instance from its state, which has no other attributes than the class stores.
3. The element type of an array must be in `DTYPES`. Arrays are rebuilt by `array` alone, because numpy's own
   reconstruction functions are not in `ALLOWED`.

Error messages show short strings of the payload, but only the type and length of its other values, because a few
hundred bytes can encode a value whose text has a billion characters.
"""

from __future__ import annotations

import copyreg
import io
import math
import pickle
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from inspect import signature
from types import NoneType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from svc.errors import ArtifactError, ForbiddenClass, PayloadInvalid
from svc.late_imports import import_late
from svc.model.operations import check_operations


class Stored:
    """Base class of objects in a payload.

    The fields and parameters of a class are stored, unless they have a leading underscore. All other attributes are
    derived, as by `ready`.

    If a class has a default for an attribute, the values None, False, 0 and () are not stored either. Therefore a new
    optional attribute does not change the bytes of models without it. `ALWAYS_STORED` names the exceptions.

    `STORED_NAMES` maps an attribute to its name in the payload, so that renaming it in the code changes no artifact.
    """

    ALWAYS_STORED: ClassVar[frozenset[str]] = frozenset()
    STORED_NAMES: ClassVar[dict[str, str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        stored = _declared(type(self))
        return {name: value for name, value in vars(self).items() if name in stored and not self._lacks(name, value)}

    def _lacks(self, name: str, value: object) -> bool:
        is_optional = hasattr(type(self), name) and name not in self.ALWAYS_STORED
        return is_optional and isinstance(value, NoneType | int | float | tuple) and not value

    def parts(self) -> dict[str, int]:
        """Return the bytes of each stored array by attribute name.

        An array within a stored object, a tuple or a dataclass has a path as its name, such as `sums.0.weights`.
        """
        return {path: size for name, value in self.__getstate__().items() for path, size in _parts(name, value)}


def _parts(path: str, value: object) -> Iterator[tuple[str, int]]:
    if isinstance(value, np.ndarray):
        yield path, value.nbytes
    elif isinstance(value, Stored):
        yield from ((f"{path}.{inner}", size) for inner, size in value.parts().items())
    elif isinstance(value, tuple):
        for position, element in enumerate(value):
            yield from _parts(f"{path}.{position}", element)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _parts(f"{path}.{field.name}", getattr(value, field.name))


Bytes = bytes | memoryview

ALIGNMENT: Final = 64
MAX_PICKLE_BYTES: Final = 8 << 20
MAX_BUFFERS: Final = 1 << 16
MAX_DIMENSIONS: Final = 4
_HEAD = struct.Struct(">IIQ")
_ENTRY = struct.Struct(">QQ")

# Numbers alone: the bytes of an array of objects would be read as addresses.
DTYPES: Final = frozenset({"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"})

ALLOWED: Final = frozenset(
    {
        ("svc.model.codec", "array"),
        ("svc.model.ids", "IdTable"),
        ("svc.model.model", "Model"),
        ("svc.model.history", "History"),
        ("svc.model.features", "FeatureState"),
        ("svc.model.features", "SideEncoder"),
        ("svc.model.features", "TokenColumn"),
        ("svc.model.features", "NumberColumn"),
        ("svc.model.columns.text_column", "TextColumn"),
        ("svc.model.columns.vector_column", "VectorColumn"),
        ("svc.model.coldstart", "LeastSquares"),
        ("svc.model.recommenders.factor_index", "FactorIndex"),
        ("svc.model.recommenders.factors", "IALSScorer"),
        ("svc.model.recommenders.factors", "ColdStartScorer"),
        ("svc.model.recommenders.factors", "SVDScorer"),
        ("svc.model.recommenders.factors", "BPRScorer"),
        ("svc.model.recommenders.neighbours", "NeighbourScorer"),
        ("svc.model.recommenders.dense_weights", "DenseWeightsScorer"),
        ("svc.model.recommenders.popularity", "PopularityScorer"),
        ("svc.model.recommenders.popularity", "PopularPart"),
        ("svc.model.recommenders.blend", "BlendScorer"),
        ("svc.model.ranker.item_record", "ItemRecord"),
        ("svc.model.ranker.page_ranker", "PageRanker"),
    }
)


def array(buffer: Bytes, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    """Return a read-only array that is a view of `buffer` and has exactly its size. `order` is "C" or "F".

    Pickles call this function. Raises PayloadInvalid.
    """
    if type(dtype) is not str or dtype not in DTYPES or type(order) is not str or order not in ("C", "F"):
        raise PayloadInvalid(
            f"payload: no array may have the element type {_describe(dtype)} in order {_describe(order)}"
        )
    element = np.dtype(dtype)
    sound = type(shape) is tuple and len(shape) <= MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not sound or math.prod(shape) * element.itemsize != len(buffer):
        raise PayloadInvalid(
            f"payload: the shape of an array, {_describe(shape)}, does not fill its {len(buffer)} bytes"
        )
    # Read-only, because threads and workers share the verified bytes.
    return np.ndarray(shape, element, memoryview(buffer).toreadonly(), order="F" if order == "F" else "C")


def _describe(value: object) -> str:
    """Return the repr of a short string. Of any other value return only the type, and the length if it has one."""
    if type(value) is str and len(value) <= 20:
        return repr(value)
    size = f" of {len(value)}" if isinstance(value, str | bytes | tuple | list | dict | set | frozenset) else ""
    return f"a {type(value).__name__}{size}"


def _is_allowed(target: Any) -> bool:
    return (getattr(target, "__module__", None), getattr(target, "__qualname__", None)) in ALLOWED


class _Encoder(pickle.Pickler):
    """Pickles an instance of an allowed class as `class(arguments of __new__, state)`, and an array as `array(...)`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _reduce_array(value)
        if _is_allowed(type(value)):
            return _reduce_instance(value)
        if _is_allowed(value):
            return NotImplemented  # a class or function, which pickle writes by name
        named = value if isinstance(value, type) or callable(value) else type(value)
        raise ForbiddenClass(f"payload: {named!r:.100} is not on the allow-list")


def _element_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    little = dtype.newbyteorder("<")
    if little.str not in DTYPES:
        raise ForbiddenClass(f"payload: arrays of {dtype!s:.40} are not on the allow-list")
    return little


def _reduce_array(value: NDArray[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    dtype = _element_type(value.dtype)
    # The order is kept, because a copy in the other one would double the memory of large weights.
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    laid_out = np.asarray(value, dtype=dtype, order=order)  # type: ignore[call-overload]
    flat = laid_out.ravel(order="K").view(np.uint8) if laid_out.size else np.empty(0, np.uint8)
    return array, (pickle.PickleBuffer(flat.data), dtype.str, value.shape, order)


def _reduce_instance(value: Any) -> tuple[type[Any], tuple[Any, ...]]:
    maker, made_from, *rest = value.__reduce_ex__(5)
    # typeshed lacks `__newobj__`. Any other maker would be called when the payload is decoded.
    if maker is not copyreg.__newobj__:  # type: ignore[attr-defined]
        raise ForbiddenClass(f"payload: {type(value).__qualname__} pickles itself in a way of its own")
    state = rest[0] if rest else None
    if isinstance(value, Stored):
        # A pickle writes an object once and refers to it afterwards. A name decoded from another artifact is an equal
        # text but another object, so without interning the pickle would write it again.
        state = {sys.intern(value.STORED_NAMES.get(name, name)): part for name, part in value.__getstate__().items()}
    return type(value), (tuple(made_from[1:]), state)


class _Builder:
    """Stands in for an allowed class while decoding. It creates an instance from its state without its `__init__`."""

    __slots__ = ("_cls",)

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls

    def __call__(self, arguments: tuple[Any, ...], state: Any) -> Any:
        made = self._cls.__new__(self._cls, *arguments)
        if state is None:
            return made
        # Frozen dataclasses with slots have one, because they refuse `setattr`.
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
            return made
        names = {stored: name for name, stored in getattr(self._cls, "STORED_NAMES", {}).items()}
        declared = _declared(self._cls)
        for part in state if isinstance(state, tuple) else (state,):
            for name, value in (part or {}).items():
                attribute = names.get(name, name)
                if attribute not in declared:
                    raise PayloadInvalid(f"payload: {_describe(name)} is not an attribute of a model")
                setattr(made, attribute, value)
        return made


def _declared(cls: type[Any]) -> frozenset[str]:
    """Return the attributes that instances of `cls` store: fields and parameters without a leading underscore."""
    names = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    return frozenset(name for name in (*names, *signature(cls).parameters) if not name.startswith("_"))


class _Decoder(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise ForbiddenClass(f"payload names {module:.60}.{name:.60}, which is not on the allow-list")
        # Only now: a name that is not on the list must not even import a module.
        target = getattr(import_late(module), name)
        return _Builder(target) if isinstance(target, type) else target


def encode(value: object) -> list[Bytes]:
    """Return the payload of `value`, as pieces to be written one after the other. `decode` restores the value.

    `value` may consist of instances of allowed classes, numpy arrays of the types in `DTYPES`, None, bool, int, float,
    str, bytes, tuple, list, dict, set and frozenset. Keys of dicts and members of sets must be str or bytes. An array
    has at most MAX_DIMENSIONS dimensions, which only `decode` checks.

    Contiguous little-endian arrays are not copied, so do not change them before the pieces are written.

    Raises ForbiddenClass for an array of another type and for an object of any other class. Raises PayloadInvalid for a
    bytearray, for a key or member that is neither str nor bytes, and for a value that is too large or too deep (see
    operations.py).
    """
    arrays: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    _Encoder(out, protocol=5, buffer_callback=arrays.append).dump(value)
    pickled = out.getvalue()
    check_operations(pickled)
    return _lay_out(pickled, [a.raw() for a in arrays])


def _lay_out(pickled: bytes, buffers: Sequence[memoryview]) -> list[Bytes]:
    if len(pickled) > MAX_PICKLE_BYTES or len(buffers) > MAX_BUFFERS:
        raise PayloadInvalid(f"payload: {len(pickled)} bytes of plain values and {len(buffers)} arrays are too many")
    position = _HEAD.size + _ENTRY.size * len(buffers) + len(pickled)
    table = bytearray(_HEAD.pack(len(buffers), 0, len(pickled)))
    body: list[Bytes] = []
    for buffer in buffers:
        padding = -position % ALIGNMENT
        table += _ENTRY.pack(position + padding, buffer.nbytes)
        body += [bytes(padding), buffer]
        position += padding + buffer.nbytes
    return [bytes(table), pickled, *body]


def decode(payload: memoryview) -> Any:
    """Return the value that `encode` wrote to `payload`.

    The arrays of the value are read-only views of `payload`. Call this function only on bytes with a verified
    signature. For invalid bytes it raises ForbiddenClass or PayloadInvalid, and no other error.
    """
    try:
        pickled, buffers = _take_apart(payload.toreadonly())
        check_operations(pickled)
        return _Decoder(io.BytesIO(pickled), buffers=buffers).load()
    except ArtifactError:
        raise
    except Exception as error:
        kind = type(error).__name__
    # Raised outside `except`: the original error may hold a value of the payload, which a traceback would print.
    raise PayloadInvalid(f"payload cannot be decoded: {kind}")


def _take_apart(payload: memoryview) -> tuple[memoryview, Iterator[memoryview]]:
    count, zero, pickle_bytes = _HEAD.unpack_from(payload)
    table_end = _HEAD.size + _ENTRY.size * count
    if count > MAX_BUFFERS or zero or pickle_bytes > MAX_PICKLE_BYTES or table_end + pickle_bytes > len(payload):
        raise PayloadInvalid("payload: its table of contents is broken")
    entries = list(_ENTRY.iter_unpack(payload[_HEAD.size : table_end]))
    end = table_end + pickle_bytes
    for offset, length in entries:  # only the offsets that `_lay_out` writes, so buffers have no gaps or overlaps
        if offset != end + -end % ALIGNMENT or length > len(payload) - offset:
            raise PayloadInvalid("payload: a buffer does not lie where it must")
        end = offset + length
    if end != len(payload):
        raise PayloadInvalid("payload: bytes are left over after the last buffer")
    return payload[table_end : table_end + pickle_bytes], (payload[o : o + n] for o, n in entries)
