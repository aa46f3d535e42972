"""What the pickle of a payload may do: only what svc's own writer does, with tuples no larger than models hold.

Nothing is built here. Size matters because Python hashes a tuple by recursion in C and never remembers the
result: as a key of a dict, a deep tuple ends the process, and one that holds the level below it twice, level
after level, is never done.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any, Final

from svc.errors import ForbiddenClass, PayloadInvalid

MAX_TUPLE_DEPTH: Final = 64
MAX_TUPLE_SIZE: Final = 1 << 18

_VALUES: Final = frozenset(
    [
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "SHORT_BINBYTES",
        "BINBYTES",
        "EMPTY_TUPLE",
        "EMPTY_LIST",
        "EMPTY_DICT",
        "EMPTY_SET",
        "NEXT_BUFFER",
    ]
)
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
_CALLS: Final = {"STACK_GLOBAL": 2, "REDUCE": 2, "FROZENSET": None}
_FILLS: Final = {"APPEND": 1, "SETITEM": 2, "APPENDS": None, "SETITEMS": None, "ADDITEMS": None}
_BESIDE: Final = frozenset(["PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "READONLY_BUFFER"])
_OPERATIONS: Final = _VALUES | _TUPLES.keys() | _CALLS.keys() | _FILLS.keys() | _BESIDE
_OBJECT_OPERATIONS: Final = frozenset(
    ("GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
)
_ONE: Final = (1, 0)


def check_operations(pickled: bytes | memoryview) -> None:
    """Refuse a pickle with any operation that `codec.encode` does not use, and tuples beyond the bounds above.

    Raises ForbiddenClass or PayloadInvalid, and for a pickle that makes no sense whatever its reading raises.
    """
    end = 0
    stack = _Stack()
    for operation, argument, position in pickletools.genops(io.BytesIO(pickled)):
        if operation.name in _OBJECT_OPERATIONS:
            raise ForbiddenClass(f"payload builds an object with {operation.name}, which svc never writes")
        if operation.name not in _OPERATIONS:
            raise PayloadInvalid(f"payload: operation {operation.name} at byte {position} is not one that svc writes")
        stack.follow(operation.name, argument)
        end = (position or 0) + 1
    if end != len(pickled):
        raise PayloadInvalid("payload: bytes follow the end of the pickle")


class _Stack:
    """The stack and memo of an unpickler, with (size, depth) in the place of each value.

    A tuple has the sizes of all its elements, those that it holds twice counted twice; anything else has size 1.
    """

    def __init__(self) -> None:
        self._values: list[tuple[int, int]] = []
        self._marks: list[int] = []
        self._memo: list[tuple[int, int]] = []

    def follow(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self._values.append(_ONE)
        elif name in _TUPLES:
            self._values.append(_tuple_of(self._take(_TUPLES[name])))
        elif name in _CALLS:
            self._take(_CALLS[name])
            self._values.append(_ONE)
        elif name in _FILLS:
            self._take(_FILLS[name])
        elif name == "MARK":
            self._marks.append(len(self._values))
        elif name == "MEMOIZE":
            self._memo.append(self._values[-1])
        elif name in ("BINGET", "LONG_BINGET"):
            self._values.append(self._memo[argument])

    def _take(self, count: int | None) -> list[tuple[int, int]]:
        """The topmost `count` values, or all since the last mark."""
        start = self._marks.pop() if count is None else len(self._values) - count
        if start < 0:
            raise PayloadInvalid("payload: the pickle takes more than it gave")
        taken = self._values[start:]
        del self._values[start:]
        return taken


def _tuple_of(elements: list[tuple[int, int]]) -> tuple[int, int]:
    size = 1 + sum(size for size, _ in elements)
    depth = 1 + max((depth for _, depth in elements), default=0)
    if size > MAX_TUPLE_SIZE or depth > MAX_TUPLE_DEPTH:
        raise PayloadInvalid(f"payload: a tuple of {size} values, {depth} levels deep, is larger than any of a model")
    return size, depth
