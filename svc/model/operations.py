"""Check the pickle of a payload before it is decoded.

The pickle may have only operations and sizes that `codec.encode` produces. This check builds none of its values. Sizes
matter because a small pickle can be very expensive to decode:

- If each level of a container holds the level below twice, hashing or printing it takes exponential time.
- A million empty sets take 250 times the memory of their pickle.
- A tuple nested a million levels deep overflows the C stack.
- Numbers chosen to share one hash make a dict take quadratic time.

Therefore the size of a container counts everything inside it, as often as it occurs. Keys of dicts and members of sets
must be strings or bytes, because Python randomizes the hashes of these.
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from typing import Any, Final

from svc.errors import ForbiddenClass, PayloadInvalid

MAX_OPERATIONS: Final = 1 << 18
"""A model needs about 30 operations for each feature column and each array."""
MAX_CONTAINERS: Final = 1 << 14
MAX_DEPTH: Final = 64
MAX_SIZE: Final = 1 << 16
"""Values in one container, including those of nested containers, each counted as often as it occurs."""
MAX_TOTAL_SIZE: Final = 1 << 20
"""The sum of the sizes of all values, each counted every time it is put into a container."""

_PLAIN_VALUES: Final = frozenset(
    ["NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEXT_BUFFER"]
)
_TEXTS: Final = frozenset(["SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES"])
_EMPTY: Final = dict.fromkeys(["EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"], 0)
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
_MAKES: Final = {**_EMPTY, **_TUPLES, "FROZENSET": None, "STACK_GLOBAL": 2, "REDUCE": 2}
"""The number of values that an operation takes to make one value. None: all since the last mark."""
_FILLS: Final = {"APPEND": 1, "SETITEM": 2, "APPENDS": None, "SETITEMS": None, "ADDITEMS": None}
_BESIDE: Final = frozenset(["PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "READONLY_BUFFER"])
_OPERATIONS: Final = _PLAIN_VALUES | _TEXTS | _MAKES.keys() | _FILLS.keys() | _BESIDE
_OBJECT_OPERATIONS: Final = frozenset(
    ("GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
)


def check_operations(pickled: bytes | memoryview) -> None:
    """Raise ForbiddenClass or PayloadInvalid if a pickle has foreign operations or exceeds the bounds above.

    An operation is foreign if `codec.encode` does not use it. A malformed pickle may raise any other error, such as
    ValueError of `pickletools` or IndexError.
    """
    end = 0
    stack = _Stack()
    # A file object, because `genops` reads no memoryview.
    for number, (operation, argument, position) in enumerate(pickletools.genops(io.BytesIO(pickled)), start=1):
        if operation.name in _OBJECT_OPERATIONS:
            raise ForbiddenClass(f"payload builds an object with {operation.name}, which svc never writes")
        if operation.name not in _OPERATIONS:
            raise PayloadInvalid(f"payload: operation {operation.name} at byte {position} is not one that svc writes")
        if number > MAX_OPERATIONS:
            raise PayloadInvalid(f"payload: more than {MAX_OPERATIONS} operations, more than any model needs")
        stack.follow(operation.name, argument)
        end = (position or 0) + 1
    # An unpickler stops at STOP. Bytes behind it would be signed but never checked.
    if end != len(pickled):
        raise PayloadInvalid("payload: bytes follow the end of the pickle")


@dataclass(slots=True, eq=False)
class _Value:
    """The size and nesting depth of one value. The size is the number of values inside it plus 1.

    `is_text` tells that the value is a string or bytes. `is_held` is set once a container holds the value. From then on
    the value must not grow, because the size of the container has already been counted.
    """

    size: int = 1
    depth: int = 1
    is_held: bool = False
    is_text: bool = False

    def take(self, held: list[_Value]) -> None:
        self.size += sum(value.size for value in held)
        self.depth = max(self.depth, 1 + max((value.depth for value in held), default=0))
        if self.size > MAX_SIZE or self.depth > MAX_DEPTH:
            raise PayloadInvalid(
                f"payload: a container of {self.size} values, {self.depth} levels deep, is larger than any of a model"
            )


_PLAIN: Final = _Value()
_TEXT: Final = _Value(is_text=True)


class _Stack:
    """Follows the stack and memo of an unpickler, with a `_Value` in place of each value."""

    def __init__(self) -> None:
        self._values: list[_Value] = []
        self._marks: list[int] = []
        self._memo: list[_Value] = []
        self._n_containers = 0
        self._total_size = 0

    def follow(self, name: str, argument: Any) -> None:
        if name in _TEXTS:
            self._values.append(_TEXT)
        elif name in _PLAIN_VALUES:
            self._values.append(_PLAIN)
        elif name in _MAKES:
            held = self._take(_MAKES[name])
            self._n_containers += 1
            if self._n_containers > MAX_CONTAINERS:
                raise PayloadInvalid(f"payload: more than {MAX_CONTAINERS} containers, more than any model has")
            made = _Value()
            made.take(_texts(held) if name == "FROZENSET" else held)
            self._values.append(made)
        elif name in _FILLS:
            self._fill(name)
        elif name == "MARK":
            self._marks.append(len(self._values))
        elif name == "MEMOIZE":
            self._memo.append(self._values[-1])
        elif name in ("BINGET", "LONG_BINGET"):
            self._values.append(self._memo[argument])

    def _fill(self, name: str) -> None:
        held = self._take(_FILLS[name])
        filled = self._values[-1]
        # `_PLAIN` and `_TEXT` stand for all plain values, so nothing may be added to them.
        if filled.is_held or filled is _PLAIN or filled is _TEXT:
            raise PayloadInvalid("payload: a container grows after another holds it, or is not a container")
        if name in ("SETITEM", "SETITEMS"):
            _texts(held[::2])
        elif name == "ADDITEMS":
            _texts(held)
        filled.take(held)

    def _take(self, count: int | None) -> list[_Value]:
        """Pop the topmost `count` values, or all since the last mark, and mark them as held."""
        start = self._marks.pop() if count is None else len(self._values) - count
        if start < 0:
            raise PayloadInvalid("payload: the pickle pops more values than it pushed")
        taken = self._values[start:]
        del self._values[start:]
        for value in taken:
            value.is_held = True
            self._total_size += value.size
        if self._total_size > MAX_TOTAL_SIZE:
            raise PayloadInvalid("payload: its containers hold more than those of any model")
        return taken


def _texts(keys: list[_Value]) -> list[_Value]:
    if not all(key.is_text for key in keys):
        raise PayloadInvalid("payload: a key of a dict or a member of a set is neither a string nor bytes")
    return keys
