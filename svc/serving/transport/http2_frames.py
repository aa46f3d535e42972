"""Frames of HTTP/2 before they are interpreted: cut out of what has come, and counted (RFC 9113, 4.1)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
MAX_FRAME_BYTES = 1 << 14
"""The longest payload. A client may send longer ones only to a server that announces a larger limit."""
END_STREAM = 0x1
CONTROL_FRAMES_PER_S, CONTROL_FRAMES_AT_ONCE = 100, 300
"""A client sends some when it connects, one for each request that it cancels, and a ping now and then."""


class Kind(IntEnum):
    """The types of frames that are told apart here."""

    DATA = 0
    HEADERS = 1


class Frame(NamedTuple):
    """One frame with its bytes, or the preface, which counts as a frame."""

    raw: bytes
    is_head: bool
    is_control: bool
    """Costs the server time and is no part of a request: any frame but HEADERS, and DATA that carries something."""


class FrameTooLong(Exception):
    """A frame is longer than this server allows."""


class FrameReader:
    """Cuts what has come into frames. It keeps at most one frame that is not whole, and nothing else."""

    def __init__(self) -> None:
        self._data, self._at = b"", 0
        self._began = False

    def feed(self, data: bytes) -> None:
        self._data, self._at = self._data[self._at :] + data, 0

    def next(self) -> Frame | None:
        """The next frame, or None while it is not whole. Raises FrameTooLong."""
        header = self._data[self._at : self._at + HEADER_BYTES]
        if not self._began:
            raw = self._take(len(PREFACE))
            self._began = raw is not None
            return None if raw is None else Frame(raw, is_head=False, is_control=False)
        if len(header) < HEADER_BYTES:
            return None
        length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        if length > MAX_FRAME_BYTES:
            raise FrameTooLong
        raw = self._take(HEADER_BYTES + length)
        if raw is None:
            return None
        carries = kind == Kind.DATA and (length > 0 or bool(flags & END_STREAM))
        is_head = kind == Kind.HEADERS
        return Frame(raw, is_head, is_control=not carries and not is_head)

    def _take(self, size: int) -> bytes | None:
        if len(self._data) - self._at < size:
            return None
        taken = self._data[self._at : self._at + size]
        self._at += size
        if self._at == len(self._data):
            self._data, self._at = b"", 0  # an idle connection keeps nothing of what it has sent
        return taken


class ControlFrames:
    """How many control frames a client may still send: some at once, so many a second, and more as it is answered."""

    def __init__(self, now_s: float) -> None:
        self._left = float(CONTROL_FRAMES_AT_ONCE)
        self._counted_s = now_s

    def admit(self, now_s: float) -> bool:
        """Count one; False when there were too many."""
        gained = (now_s - self._counted_s) * CONTROL_FRAMES_PER_S
        self._left = max(min(self._left + gained, CONTROL_FRAMES_AT_ONCE), self._left) - 1
        self._counted_s = now_s
        return self._left >= 0

    def earn(self, count: float) -> None:
        """Allow the client so many more control frames, now or later."""
        self._left += count
