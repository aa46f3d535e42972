"""Frames of HTTP/2 are cut out however they come, and control frames are counted."""

from __future__ import annotations

import pytest

from svc.serving.transport.http2_frames import (
    CONTROL_FRAMES_AT_ONCE,
    CONTROL_FRAMES_PER_S,
    MAX_FRAME_BYTES,
    PREFACE,
    ControlFrames,
    Frame,
    FrameReader,
    FrameTooLong,
)

DATA, HEADERS, PING = 0, 1, 6
END_STREAM = 1


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + (1).to_bytes(4, "big") + payload


def read(*pieces: bytes) -> list[Frame]:
    reader, frames = FrameReader(), []
    for piece in pieces:
        reader.feed(piece)
        while (cut := reader.next()) is not None:
            frames.append(cut)
    return frames


@pytest.mark.parametrize("size", [1, 2, 7, 9, 10, 1000])
def test_where_the_bytes_are_cut_changes_nothing(size: int) -> None:
    """The frames hold all bytes, in order, the preface first."""
    parts = [PREFACE, frame(HEADERS, b"abc"), frame(PING, bytes(8)), frame(DATA, b"x" * 100), frame(DATA)]
    text = b"".join(parts)
    assert [cut.raw for cut in read(*(text[at : at + size] for at in range(0, len(text), size)))] == parts


@pytest.mark.parametrize(
    ("raw", "is_head", "is_control"),
    [
        (frame(HEADERS, b"abc"), True, False),
        (frame(DATA, b"x"), False, False),
        (frame(DATA, flags=END_STREAM), False, False),
        (frame(DATA), False, True),
        (frame(PING, bytes(8)), False, True),
    ],
)
def test_frames_that_are_no_part_of_a_request_are_control_frames(raw: bytes, is_head: bool, is_control: bool) -> None:
    """Empty DATA that ends nothing costs the server time like a ping."""
    assert read(PREFACE + raw)[1:] == [Frame(raw, is_head, is_control)]


def test_a_longer_frame_than_allowed_is_refused_before_it_has_come() -> None:
    """Its header is enough; the longest allowed one is read."""
    longest = frame(DATA, bytes(MAX_FRAME_BYTES))
    assert read(PREFACE + longest)[1].raw == longest
    with pytest.raises(FrameTooLong):
        read(PREFACE + (MAX_FRAME_BYTES + 1).to_bytes(3, "big") + bytes(6))


def test_control_frames_are_allowed_at_once_and_by_the_second() -> None:
    """What is not used does not add up beyond what is allowed at once."""
    frames = ControlFrames(now_s=0)
    assert [frames.admit(0) for _ in range(CONTROL_FRAMES_AT_ONCE + 1)].count(True) == CONTROL_FRAMES_AT_ONCE
    frames = ControlFrames(now_s=0)
    for second in range(10):
        assert all(frames.admit(second) for _ in range(CONTROL_FRAMES_PER_S))
    frames = ControlFrames(now_s=0)
    assert [frames.admit(3600) for _ in range(CONTROL_FRAMES_AT_ONCE + 1)].count(True) == CONTROL_FRAMES_AT_ONCE


def test_answers_earn_control_frames() -> None:
    """They may be sent at any later time."""
    frames = ControlFrames(now_s=0)
    frames.earn(50)
    assert [frames.admit(0) for _ in range(CONTROL_FRAMES_AT_ONCE + 51)].count(True) == CONTROL_FRAMES_AT_ONCE + 50
