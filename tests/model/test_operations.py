"""Small payloads that would be expensive to decode are refused quickly. No message repeats their content."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import ForbiddenClass, PayloadInvalid
from svc.model import codec, operations
from tests.fuzz.targets import bounded

START = b"\x80\x05"
ARRAY = b"\x8c\x0fsvc.model.codec\x8c\x05array\x93"
IDS = b"\x8c\x0dsvc.model.ids\x8c\x07IdTable\x93"


def decode(pickled: bytes) -> Any:
    """Return the value of a pickle in a payload with one buffer of 8 bytes."""
    return codec.decode(memoryview(b"".join(codec._lay_out(START + pickled + b".", [memoryview(bytes(8))]))))


def refusal_of(pickled: bytes) -> str:
    """Return the error message for a pickle. The message must be short."""
    with bounded(), pytest.raises((PayloadInvalid, ForbiddenClass)) as caught:
        decode(pickled)
    assert len(str(caught.value)) < 300
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return str(caught.value)


def got(number: int) -> bytes:
    return b"j" + struct.pack("<I", number)


def levels(how: str, count: int) -> bytes:
    """Return operations that build `count` nested levels.

    Each level contains the level below it twice. The last level is memo `count`.
    """
    made = {
        "list": b"](%s%se",
        "dict": b"}(\x8c\x01a%s\x8c\x01b%su",
        "tuple": b"%s%s\x86",
        "instance": IDS + b")}(\x8c\x01a%s\x8c\x01b%su\x86R",
    }[how]
    text = b"]\x94"
    for level in range(count):
        text += made % (got(level), got(level)) + b"\x94"
    return text


HOW = ("list", "dict", "tuple", "instance")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("count", [16, 60])
@pytest.mark.parametrize(
    "use",
    [b"%s", b"](%sNe", b"}\x8c\x01a%ss", IDS + b"%s)\x86R", IDS + b"}%s\x86R", b"}%sNs", b"\x8f(%s\x90", b"(%s\x91"],
)
def test_values_that_double_with_each_level_are_refused(how: str, count: int, use: bytes) -> None:
    """Lists, dicts, tuples and instances are refused, bare or inside another value, also as its keys."""
    refusal_of(use % levels(how, count))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("count", [3, 12, 60])
@pytest.mark.parametrize("place", ["dtype", "shape", "order", "buffer"])
def test_no_part_of_an_array_is_written_into_a_message(how: str, count: int, place: str) -> None:
    """A wrong type, shape or order of an array appears by its type and length only."""
    parts = {"buffer": b"\x97", "dtype": b"\x8c\x03<f8", "shape": b"K\x01\x85", "order": b"\x8c\x01C"}
    call = ARRAY + b"(" + b"".join((parts | {place: levels(how, count)}).values()) + b"tR"
    message = refusal_of(call)
    assert "[[" not in message
    assert "((" not in message


@pytest.mark.parametrize(
    "pickled",
    [
        b"(" + b"\x8f" * (1 << 20) + b"t",
        b"](" + b"N" * (1 << 20) + b"e",
        b"]" * 100_000 + b"a" * 99_999,
        b"N" + b"\x85" * 1_000_000,
        b"](" + b"\x8f" * (1 << 15) + b"e",
        b"]" * 1_000 + b"a" * 999,
    ],
    ids=["sets", "nones", "deep list", "deep tuple", "fewer sets", "less deep list"],
)
def test_a_million_containers_are_refused_in_little_memory(pickled: bytes) -> None:
    """A mebibyte of empty sets would take 252 MiB."""
    refusal_of(pickled)


def colliding(count: int) -> list[bytes]:
    """Return whole numbers with the same hash. A dict of n such keys takes time in proportion to n²."""
    numbers = [((1 << 61) - 1) * step for step in range(1, count + 1)]
    return [b"\x8a\x0a" + number.to_bytes(10, "little") for number in numbers]


@pytest.mark.parametrize(
    "pickled",
    [
        b"}(" + b"N".join(colliding(1_000)) + b"Nu",
        b"\x8f(" + b"".join(colliding(1_000)) + b"\x90",
        b"(" + b"".join(colliding(1_000)) + b"\x91",
        b"(" + b"N" * 3_000 + b"t\x94}(" + b"h\x00N" * 6_000 + b"u",
        b"}K\x01Ns",
        b"\x8f(N\x90",
        b"(K\x01\x91",
        b"})Ns",
    ],
    ids=["dict", "set", "frozenset", "one large key", "number", "none", "frozen number", "tuple"],
)
def test_keys_and_members_are_texts(pickled: bytes) -> None:
    """Keys of dicts and members of sets must be texts, because nobody can choose texts of equal salted hashes."""
    refusal_of(pickled)


@pytest.mark.parametrize(
    "pickled",
    [
        b"]\x94h\x00a",
        b"]\x94]h\x00ah\x00Na",
        b"}\x94\x8c\x01ah\x00s",
        b"]\x94\x8c\x01ah\x00}\x94N\x86",
        b"NNa",
        b"\x8c\x01aNa",
    ],
)
def test_a_contained_value_must_not_grow(pickled: bytes) -> None:
    """A value within itself is refused, and so is a value that is filled after it was counted."""
    with suppress(PayloadInvalid), bounded():
        repr(decode(pickled))
    if pickled != b"]\x94\x8c\x01ah\x00}\x94N\x86":
        refusal_of(pickled)


@pytest.mark.parametrize(
    ("bound", "most", "within", "one_more"),
    [
        ("MAX_OPERATIONS", 16, b"](" + b"N" * 11 + b"e", b"](" + b"N" * 12 + b"e"),
        *(
            ("MAX_CONTAINERS", 8, b"](" + made * 7 + b"e", b"](" + made * 8 + b"e")
            for made in (b"]", b"}", b")", b"\x8f", b"(\x91", b"N\x85", b"(t")
        ),
        ("MAX_DEPTH", 8, b"]" * 8 + b"a" * 7, b"]" * 9 + b"a" * 8),
        ("MAX_DEPTH", 8, b")" + b"\x85" * 7, b")" + b"\x85" * 8),
        ("MAX_SIZE", 8, b"](" + b"N" * 7 + b"e", b"](" + b"N" * 8 + b"e"),
        ("MAX_SIZE", 8, b"(" + b"N" * 7 + b"t", b"(" + b"N" * 8 + b"t"),
        ("MAX_TOTAL_SIZE", 8, b"](" + b"N" * 6 + b"\x85e", b"](" + b"N" * 6 + b"\x86e"),
    ],
)
def test_a_payload_one_above_any_bound_is_refused(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int, within: bytes, one_more: bytes
) -> None:
    """The bounds limit operations, containers, levels, values in one container, and values in all of them."""
    monkeypatch.setattr(operations, bound, most)
    decode(within)
    refusal_of(one_more)


PIECES = (
    *(b"N", b"K\x01", b"]", b"}", b"\x8f", b")", b"\x94", b"(", b"e", b"u", b"\x90", b"\x91", b"t", b"a", b"s"),
    *(b"\x85", b"\x86", b"\x87", b"R", b"\x97", b"\x8c\x01a", b"\x8c\x01b", b"h\x00", b"h\x01", b"h\x02", b"h\x03"),
    *(ARRAY, IDS, b"](h\x00h\x00e\x94", b"h\x01h\x01\x86\x94", b"}(\x8c\x01ah\x00\x8c\x01bh\x00u\x94", b"\x8c\x03<f8"),
)


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 40)), max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_program_of_known_operations_ends_in_bounds(program: list[tuple[bytes, int]]) -> None:
    """Any sequence of known operations gives a value with a short text, or one of the two errors."""
    with bounded(), suppress(PayloadInvalid, ForbiddenClass):
        assert len(repr(decode(b"".join(piece * count for piece, count in program)))) < 100 * operations.MAX_SIZE
