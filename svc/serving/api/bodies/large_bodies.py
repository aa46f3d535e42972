"""An incremental parser of JSON bodies of many MiB, which parses them in short pieces while they arrive.

Parsing a large body in one call would block the event loop, and so would freeing the memory of the whole text at once.
A piece ends at a comma outside of strings. `pydantic_core.from_json` parses each piece between brackets for the lists
and objects that are open before and after it. Small bodies are parsed by pydantic too,
so small and large bodies accept the same JSON.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json

from svc.asking.hints import NOT_AN_OBJECT
from svc.asking.parsing import keys_within, refusal, refuse_repeated_keys, repeated
from svc.errors import ValidationFailed

# These two bounds limit the memory of a parsed body. However short its text is, a list or object takes about 220 bytes
# of memory, and a number about 32 bytes.
MAX_CONTAINERS = 100_000
MAX_VALUES = 1_000_000
MAX_DEPTH = 200  # the limit of pydantic's parser
KEPT_NAMES = 200
"""Number of first names that a longer object keeps, so that validation reports few errors.

It is above the number of names of every valid object, so validation refuses the object all the same."""
KEPT_ITEMS = 5000
"""Number of first values that a longer list keeps. Later ones become None, because no valid list is as long."""
PIECE_BYTES = 8 * 1024
"""Longest piece of JSON that is parsed in one call, unless its only comma comes later."""
# Bytes that must have arrived before a piece is parsed, unless the body has ended. A longer text without a comma
# outside of strings is refused. Such a text is longer than six valid strings, even if every character is escaped.
AHEAD_BYTES = 768 * 1024

# Possessive, so that it never goes back over a text and takes linear time.
_no_brackets = re.compile(rb"[^\[\]{}]++")
_CLOSING = bytes.maketrans(b"[{", b"]}")
# Names that stand for the members of an object before and after a piece. No field has such a name.
_BEFORE, _AFTER = "\0before", "\0after"


class LargeBody:
    """The parser of one large body that is still arriving.

    The caller passes received bytes to `feed`, calls `work` until the parser is `hungry`, and calls `end` after the
    last byte. `result` returns the body when the parser is hungry after that. After an error, further bytes are
    dropped.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        self._passed = 0  # number of parsed bytes
        self._ended = self._done = False
        self._value: Any = None
        self._refusal: ValidationFailed | None = None
        self._containers = self._commas = 0
        self._open: list[Any] = []
        """The lists and objects that are open after the parsed pieces, from the outermost to the innermost."""
        self._brackets = b""  # their opening brackets

    @property
    def hungry(self) -> bool:
        """True if nothing can be parsed before more bytes arrive, or if the whole body is parsed or refused."""
        return self._done or not (self._ended or len(self._received) >= AHEAD_BYTES)

    def feed(self, part: bytes) -> None:
        """Add received bytes."""
        if not self._done:
            self._received += part

    def end(self) -> None:
        """Mark the end of the body."""
        self._ended = True

    def result(self) -> dict[str, Any]:
        """Return the whole body. Raises ValidationFailed if it is invalid."""
        if self._refusal is not None:
            raise self._refusal
        value: dict[str, Any] = self._value
        return value

    def work(self) -> None:
        """Parse one piece. Must not be called while `hungry`."""
        try:
            self._parse(self._next_piece())
        except ValidationFailed as error:
            self._refusal, self._done = error, True
            self._received.clear()
            self._value, self._open = None, []

    def _next_piece(self) -> bytes:
        """Return the next bytes up to a comma, or the rest of the body if it has no further comma."""
        size, most = PIECE_BYTES, min(len(self._received), AHEAD_BYTES)
        while not (end := _cut(bytes(self._received[:size]), first=size > PIECE_BYTES)) and size < most:
            size = min(2 * size, AHEAD_BYTES)
        self._done = not end
        if not end and (not self._ended or len(self._received) > AHEAD_BYTES):
            raise refusal("longer text than any valid request has", "too_long")
        piece = bytes(self._received[: end or None])
        # A bytearray loses its front without moving the rest.
        del self._received[: end or None]
        return piece

    def _parse(self, piece: bytes) -> None:
        bare = b"".join(_outside_strings(piece))
        self._count(bare)
        brackets = self._brackets + _no_brackets.sub(b"", bare)
        if len(brackets) > PIECE_BYTES + MAX_DEPTH:  # no valid piece: a longer one has only one comma
            raise self._invalid()
        brackets = _unclosed(brackets)
        text = _before(self._brackets) + piece + _after(brackets)
        try:
            # Most strings are ids, which rarely repeat. With its cache pydantic read 200 of them three times as slowly.
            part = from_json(text, cache_strings=False)
        except ValueError:
            part = None
        # Brackets must be open until the end of the body, and none after it.
        if part is None or self._done == bool(brackets):
            raise self._invalid()
        if not isinstance(part, dict):
            raise refusal(NOT_AN_OBJECT, "model_type")
        # Stand-ins have keys too: one for each object that is open before the piece, and one if it leaves one open.
        if keys_within(part) != bare.count(b":") + self._brackets.count(b"{") + brackets.endswith(b"{"):
            refuse_repeated_keys(text)
        self._add(part)
        self._brackets = brackets
        self._find_open()
        self._passed += len(piece)

    def _invalid(self) -> ValidationFailed:
        return refusal(f"Invalid JSON at or after byte {self._passed}", "json_invalid")

    def _count(self, bare: bytes) -> None:
        """Raise ValidationFailed if the body has too many values. `bare` is a piece without its strings."""
        self._containers += bare.count(b"[") + bare.count(b"{")
        self._commas += bare.count(b",")
        if self._containers > MAX_CONTAINERS or self._containers + self._commas > MAX_VALUES:
            counted = f"{MAX_VALUES:,} values, or {MAX_CONTAINERS:,} lists and objects among them"
            raise refusal(f"more than {counted}, which is the most of a request: send several", "too_many_values")

    def _add(self, part: Any) -> None:
        """Add a parsed piece to the lists and objects that were open before it. Raises ValidationFailed."""
        if self._value is None:
            self._value = part
        for container in self._open:
            if isinstance(container, list):
                new = part[1:]
                if len(container) > KEPT_ITEMS:
                    new[:-1] = [None] * (len(new) - 1)  # the last value may be open
                container.extend(new)
                # The first value stands for all before the piece, and holds the next open list or object.
                part = part[0]
                continue
            inner = part.pop(_BEFORE)
            # The check for repeated keys has seen only the keys of one piece.
            for name in container.keys() & part.keys():
                raise repeated(name)
            container.update(part)
            for name in list(container)[KEPT_NAMES:-1]:  # the last value may be open
                del container[name]
            part = inner

    def _find_open(self) -> None:
        """Find the lists and objects that are open now, and remove what stands for further values of the innermost."""
        self._open, inner = [], self._value
        for _ in self._brackets:
            self._open.append(inner)
            inner = inner[-1] if isinstance(inner, list) else inner[next(reversed(inner))]
        for container in self._open[-1:]:
            del container[-1 if isinstance(container, list) else _AFTER]


def _unescaped(text: bytes) -> bytes:
    """Return text of the same length without escaped quotation marks. A regular expression takes 15 times as long."""
    # Escaped backslashes first: a quotation mark behind one ends its string.
    return text.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _outside_strings(text: bytes) -> list[bytes]:
    """Return the parts of JSON between strings. `text` begins outside of strings, and may end within one."""
    return _unescaped(text).split(b'"')[::2]


def _cut(window: bytes, *, first: bool) -> int:
    """Return the length of the JSON up to the last comma outside of strings, or the first. 0 if there is no comma."""
    end = window.rfind(b",") + 1
    if not first and b"\\" not in window and window.count(b'"', 0, end) % 2 == 0:
        return end
    parts = _unescaped(window).split(b'"')
    outside = range(0, len(parts), 2)
    for index in outside if first else reversed(outside):
        if b"," in parts[index]:
            at = parts[index].index(b",") if first else parts[index].rindex(b",")
            return len(b'"'.join(parts[:index])) + (index > 0) + at + 1
    return 0


def _unclosed(brackets: bytes) -> bytes:
    """Return the brackets without those that close another one."""
    for _ in range(4):  # removes most brackets of valid bodies; the loop below is slower for these
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    left = bytearray()
    for bracket in brackets:
        if left and bracket - left[-1] == 2:  # the code of a closing bracket is that of its opening bracket plus 2
            left.pop()
        else:
            left.append(bracket)
    return bytes(left)


def _before(brackets: bytes) -> bytes:
    """Return JSON that opens these brackets and has one value, which stands for all values before a piece."""
    return brackets.replace(b"{", b'{"\\u0000before":') + b"0," if brackets else b""


def _after(brackets: bytes) -> bytes:
    """Return JSON that has one value, which stands for all values after a piece, and closes these brackets."""
    value = b'"\\u0000after":0' if brackets.endswith(b"{") else b"0"
    return value + brackets[::-1].translate(_CLOSING) if brackets else b""
