"""An incremental parser of JSON bodies of many MiB, which parses them in short slices while they arrive.

Parsing a large body in one call would block the event loop, and so would freeing the memory of the whole text at once.
Regular expressions find the end of a piece of JSON. `pydantic_core.from_json` then parses the piece. Small bodies are
parsed by pydantic too, so small and large bodies accept the same JSON.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic_core import from_json

from svc.errors import ValidationFailed
from svc.serving.api.bodies.hints import NOT_AN_OBJECT

# These two bounds limit the memory of a parsed body. However short its text is, a list or object takes about 220 bytes
# of memory, and each other value about 32 bytes.
MAX_CONTAINERS = 100_000
MAX_VALUES = 1_000_000
MAX_DEPTH = 200  # the limit of pydantic's parser
PIECE_BYTES = 64 * 1024
"""Longest piece of JSON that is parsed in one call."""
# Longer than any valid string, even if every character is escaped. Longer strings and runs of blanks are refused.
LONGEST_RUN_BYTES = 128 * 1024
_SEARCHED_BYTES = 2 * LONGEST_RUN_BYTES  # longest distance to the end of a string, or to the colon after a name
# So many bytes must have arrived before a token is parsed. The token and the blanks around it are shorter, so the
# parser never sees half a token.
AHEAD_BYTES = 4 * LONGEST_RUN_BYTES
SLICE_S = 0.0005
"""Longest time in seconds that one slice of parsing blocks the event loop.

Parsing a body of 128 MiB in one call blocks it for 0.3 s."""
MAX_SHOWN_CHARACTERS = 256

_BLANKS = rb"[ \t\n\r]*+"
_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SCALAR = rb'(?:%b|[^\s",:\[\]{}]++)' % _TEXT
_blanks = re.compile(_BLANKS)
_scalar = re.compile(_SCALAR, re.DOTALL)
_scalars = re.compile(rb"(?:%b%b%b,)+" % (_BLANKS, _SCALAR, _BLANKS), re.DOTALL)
_name = re.compile(rb"(%b)%b:" % (_TEXT, _BLANKS), re.DOTALL)
_member = re.compile(rb"%b(%b%b:%b%b)%b([,}])" % (_BLANKS, _TEXT, _BLANKS, _BLANKS, _SCALAR, _BLANKS), re.DOTALL)

T = TypeVar("T")
Steps = Generator[None, None, T]


class Longest(NamedTuple):
    """The longest lists and objects of valid bodies."""

    items: int
    """Most elements of a list."""
    names: int
    """Most names of an object."""
    at_top: Mapping[str, int]
    """Most elements of a list of the outermost object, by the name of the list. Other lists have at most `items`."""


def refusal(message: str, kind: str, *path: str) -> ValidationFailed:
    """Return the error that refuses a whole body. `kind` is the error's type, and `path` the place of the value."""
    where = "".join(f"{part}: " for part in path)
    errors = [{"loc": ["body", *path], "msg": message, "type": kind}]
    return ValidationFailed(f"request body: {where}{message}", errors=errors)


def repeated(name: str) -> ValidationFailed:
    """Return the error that refuses a body because an object in it repeats the key `name`."""
    return refusal(f"an object names the key {name[:MAX_SHOWN_CHARACTERS]!r} twice", "duplicate_key")


class LargeBody:
    """The parser of one large body that is still arriving.

    The caller passes received bytes to `feed`, calls `work` until the parser is `hungry`, and calls `end` after the
    last byte. Each method may raise ValidationFailed. The parser cannot be used after that.

    A list or object that is too long is refused at once if it belongs to the outermost object, because the whole body
    is invalid. At a deeper level it may belong to one element of a batch, and only that element is invalid. There the
    parser keeps a list of the same length whose further elements are None, or an object with one name too many, so that
    the later validation refuses the element.
    """

    def __init__(self, longest: Longest) -> None:
        self.value: dict[str, Any] | None = None
        """The parsed body. None until the end of the body is parsed."""
        self._longest = longest
        self._received = bytearray()
        self._window = b""
        self._at = 0
        self._passed = 0  # number of parsed bytes that were removed from the window
        self._ended = False
        self._containers = self._commas = self._quiet = 0
        self._top = ""  # name in the outermost object whose value is being parsed
        self._until = 0.0
        self._steps = self._whole()

    @property
    def hungry(self) -> bool:
        """True if nothing can be parsed before more bytes arrive, or if the whole body is parsed."""
        return self.value is not None or (self._is_short() and len(self._received) < AHEAD_BYTES)

    def feed(self, part: bytes) -> None:
        """Add received bytes. Their lists, objects and values are counted at once, and parsed later by `work`."""
        for start in range(0, len(part), PIECE_BYTES):
            piece = part[start : start + PIECE_BYTES]
            self._count(piece)
            self._received += piece

    def end(self) -> None:
        """Mark the end of the body."""
        self._ended = True
        self._move_on()

    def work(self) -> None:
        """Parse for at most SLICE_S. Must not be called while `hungry`."""
        if self._is_short():
            self._move_on()
        self._until = time.perf_counter() + SLICE_S
        try:
            next(self._steps)
        except StopIteration as end:
            self.value = end.value

    def _count(self, piece: bytes) -> None:
        """Raise ValidationFailed if the body has too many values, a too long string, or too many blanks in a row.

        Counts brackets and commas, including those in strings. Measures runs without quotation marks.
        """
        self._containers += piece.count(b"[") + piece.count(b"{")
        self._commas += piece.count(b",")
        if self._containers > MAX_CONTAINERS or self._containers + self._commas > MAX_VALUES:
            raise refusal("more values than any valid request has", "too_many_values")
        first, last = piece.find(b'"'), piece.rfind(b'"')
        if self._quiet + (first if first >= 0 else len(piece)) > LONGEST_RUN_BYTES:
            raise _too_long()
        self._quiet = len(piece) - 1 - last if last >= 0 else self._quiet + len(piece)

    def _is_short(self) -> bool:
        """Return True if the next token may be incomplete in the window."""
        return not self._ended and len(self._window) - self._at < AHEAD_BYTES

    def _move_on(self) -> None:
        """Remove parsed bytes from the window, and append received bytes."""
        self._window = b"".join((self._window[self._at :], self._received))
        self._passed += self._at
        self._at = 0
        self._received.clear()

    def _must_pause(self) -> bool:
        """Return True if this slice has used SLICE_S, or if the next token may be incomplete in the window."""
        return self._is_short() or time.perf_counter() >= self._until

    def _whole(self) -> Steps[dict[str, Any]]:
        """Parse the whole body, which must be one object."""
        start = self._next()
        if start in (b"[", b'"'):
            raise refusal(NOT_AN_OBJECT, "model_type")
        if start != b"{":
            raise self._invalid()
        body = yield from self._object(1)
        if self._must_pause():
            yield
        if self._next():
            raise self._invalid()
        return body

    def _next(self) -> bytes:
        """Skip blanks, and return the next byte without consuming it."""
        self._at = _blanks.match(self._window, self._at).end()  # type: ignore[union-attr]
        return self._window[self._at : self._at + 1]

    def _value(self, depth: int) -> Steps[Any]:
        """Parse the next value. `depth` is the number of lists and objects around it."""
        if self._must_pause():
            yield
        start = self._next()
        if start not in (b"[", b"{"):
            return self._one_scalar()
        if depth < MAX_DEPTH and (value := self._flat(start)) is not None:
            return value
        return (yield from (self._list(depth + 1) if start == b"[" else self._object(depth + 1)))

    def _flat(self, start: bytes) -> Any:
        """Parse the next list or object in one call.

        Returns None if this is not possible, because the value is long or nested, may have a repeated name, or has a
        string with a closing bracket.
        """
        end = self._window.find(b"]" if start == b"[" else b"}", self._at, self._at + PIECE_BYTES) + 1
        if any(self._window.find(bracket, self._at + 1, end) >= 0 for bracket in (b"[", b"{")):
            return None
        piece = self._window[self._at : end]
        try:
            value = from_json(piece, cache_strings=False)
        except ValueError:
            return None  # the closing bracket may be in a string
        if start == b"{" and len(value) != piece.count(b":"):
            return None  # a name may be repeated, which `_object` checks exactly
        if len(value) > (self._longest.names if start == b"{" else self._longest.items):
            return None
        self._at = end
        return value

    def _one_scalar(self) -> Any:
        match = _scalar.match(self._window, self._at, self._at + _SEARCHED_BYTES)
        if match is None:
            cut = len(self._window) >= self._at + _SEARCHED_BYTES
            raise _too_long() if cut and self._next() == b'"' else self._invalid()
        value = self._parse(match[0])
        self._at = match.end()
        return value

    def _list(self, depth: int) -> Steps[list[Any]]:
        items: list[Any] = []
        if self._is_empty(b"]", depth):
            return items
        while True:
            while self._scalars(items, depth):
                if self._must_pause():
                    yield
            value = yield from self._value(depth)
            self._keep(items, [value], depth)
            if self._ends(b"]"):
                return items

    def _is_empty(self, bracket: bytes, depth: int) -> bool:
        """Consume the opening bracket, and the closing bracket of an empty list or object. Returns True if it is empty.

        Raises ValidationFailed if a list or object with contents is nested too deeply.
        """
        self._at += 1
        if self._next() == bracket:
            self._at += 1
            return True
        if depth > MAX_DEPTH:
            raise self._invalid()
        return False

    def _scalars(self, items: list[Any], depth: int) -> bool:
        """Parse in one call the next scalars that each end in a comma. Returns False if there are none."""
        match = _scalars.match(self._window, self._at, self._at + PIECE_BYTES)
        if match is None:
            return False
        self._keep(items, self._parse(b"[%b]" % match[0][:-1]), depth)
        self._at = match.end()
        return True

    def _keep(self, items: list[Any], values: list[Any], depth: int) -> None:
        """Append parsed values to a list, or None for each value if the list is already too long.

        Raises ValidationFailed if the list belongs to the outermost object and is now too long.
        """
        items += values if len(items) <= self._longest.items else [None] * len(values)
        if depth == 2:
            self._refuse_long_list(len(items))

    def _refuse_long_list(self, length: int) -> None:
        """Raise ValidationFailed if a list of the outermost object is too long."""
        most = self._longest.at_top.get(self._top, self._longest.items)
        if length > most:
            path = (self._top,) if self._top in self._longest.at_top else ()
            raise refusal(f"List should have at most {most} items", "too_long", *path)

    def _object(self, depth: int) -> Steps[dict[str, Any]]:
        if self._is_empty(b"}", depth):
            return {}
        members: dict[str, Any] = {}
        while True:
            if self._must_pause():
                yield
            name, value, last = self._member() or (yield from self._long_member(depth))
            if name in members:
                raise repeated(name)
            if len(members) <= self._longest.names:
                members[name] = value
            elif depth == 1:
                raise refusal("more keys than any valid request has", "too_long")
            if last:
                return members

    def _member(self) -> tuple[str, Any, bool] | None:
        """Parse a name with a scalar in one call, or return None if the value is not a short scalar.

        The third result is True if the object ends after this value.
        """
        match = _member.match(self._window, self._at, self._at + PIECE_BYTES)
        if match is None:
            return None
        ((name, value),) = self._parse(b"{%b}" % match[1]).items()
        self._at = match.end()
        return name, value, match[2] == b"}"

    def _long_member(self, depth: int) -> Steps[tuple[str, Any, bool]]:
        name = self._name(depth)
        value = yield from self._value(depth)
        return name, value, self._ends(b"}")

    def _name(self, depth: int) -> str:
        self._next()
        match = _name.match(self._window, self._at, self._at + _SEARCHED_BYTES)
        if match is None:
            raise self._invalid()
        name: str = self._parse(match[1])
        self._at = match.end()
        if depth == 1:
            self._top = name
        return name

    def _ends(self, bracket: bytes) -> bool:
        """Consume the next byte, which must be a comma or the closing bracket. Returns True for the bracket."""
        byte = self._next()
        if byte not in (b",", bracket):
            raise self._invalid()
        self._at += 1
        return byte == bracket

    def _parse(self, piece: bytes) -> Any:
        try:
            return from_json(piece, cache_strings=False)
        except ValueError:
            raise self._invalid() from None

    def _invalid(self) -> ValidationFailed:
        return refusal(f"Invalid JSON at or after byte {self._passed + self._at}", "json_invalid")


def _too_long() -> ValidationFailed:
    return refusal("longer text than any valid request has", "too_long")
