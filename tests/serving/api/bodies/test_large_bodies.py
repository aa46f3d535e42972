"""Large bodies are parsed while they arrive, refused early, and give the same values as small ones."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from svc.errors import ValidationFailed
from svc.serving.api.bodies import large_bodies
from svc.serving.api.bodies.large_bodies import AHEAD_BYTES, MAX_DEPTH, LargeBody, Longest
from tests.serving.bodies import ROOMY, expected, found, read, several, work

LONGEST = Longest(items=10, names=8, at_top={"requests": 4})

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from([10**4299, -(2**70), "\ud83d\ude00", 'a"b\\', "a:b", "[{,}]", "\x00\x7f\u2028"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=5)
)
DOCUMENTS = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(
        errors="surrogatepass"
    ),
    st.dictionaries(st.text(max_size=4), VALUES, max_size=5) | VALUES,
    st.booleans(),
    st.sampled_from([None, 1]),
)
INSERTS = [
    b"",
    *(bytes([byte]) for byte in b'"\\[]{},:0-+.eE \n\x00\x0b\x80\xffuN'),
    b"NaN",
    b"1,",
    b'"a":0,',
    b"\\ud800",
]


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Generate JSON, whole or with one place damaged."""
    document: bytes = draw(DOCUMENTS)
    start = draw(st.integers(0, len(document)))
    removed, insert = draw(st.sampled_from([(0, b""), (0, b""), (1, b""), (0, None), (1, None)]))
    return (
        document[:start] + (draw(st.sampled_from(INSERTS)) if insert is None else insert) + document[start + removed :]
    )


def kind(body: bytes, longest: Longest = LONGEST) -> tuple[list[str], str]:
    """Return the type and the place of a refusal."""
    with pytest.raises(ValidationFailed) as caught:
        read(body, longest)
    (error,) = caught.value.errors or []
    return error["loc"], error["type"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_large_and_small_bodies_give_the_same_values(body: bytes) -> None:
    """Values and errors equal those of one `from_json` call, for every size of parts."""
    for piece in (1, 24, large_bodies.PIECE_BYTES):
        with patch.object(large_bodies, "PIECE_BYTES", piece):
            assert found(body) == expected(body)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_the_result_does_not_depend_on_the_cuts_between_parts(document: bytes) -> None:
    """A document longer than the look-ahead parses to the same values for every size of parts."""
    body = several(document, 3 << 13)
    with patch.multiple(large_bodies, AHEAD_BYTES=1 << 13, PIECE_BYTES=100):
        for step in (1, 777, 1 << 16):
            assert found(body, step=step) == expected(body)


ODD = [
    b"",
    b" ",
    b"{}",
    b" {} \r\n\t",
    b"{} {}",
    b"{},",
    b"{}\x00",
    b"\xef\xbb\xbf{}",
    b"\x0b{}",
    '{"a": 1}'.encode("utf-16"),
    b'["a"]',
    b'"a"',
    b"7",
    b"{",
    b'{"a"',
    b'{"a":',
    b'{"a":1',
    b'{"a":1,',
    b'{"a":1,}',
    b"{,}",
    b'{"a" 1}',
    b"{a:1}",
    b"{1:1}",
    b'{"a":[1,]}',
    b'{"a":[,1]}',
    b'{"a":[1 2]}',
    b'{"a":[1}}',
    b'{"a":{"b":1]}',
    b'{"a":["b" "c"]}',
    b'{"a":1"b"}',
    b'{"a":NaN,"b":[Infinity,-Infinity]}',
    b'{"a":nan}',
    b'{"a":inf}',
    b'{"a":+1}',
    b'{"a":01}',
    b'{"a":1.}',
    b'{"a":.5}',
    b'{"a":-}',
    b'{"a":-0,"b":-0.0,"c":1e400,"d":1e-400,"e":1E+2,"f":1e99999999999999999999}',
    b'{"a":0.1,"b":123456789012345678901234567890,"c":[1.0,2]}',
    b'{"a":%b}' % (b"9" * 4300),
    b'{"a":%b}' % (b"9" * 4301),
    b'{"a":truefalse}',
    b'{"a":[true,false,null],"b":True}',
    b'{"a":"\xff"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\\ud800"}',
    b'{"a":"\\udc00\\ud800"}',
    b'{"a":"\\ud83d\\ude00","b":"\xf0\x9f\x98\x80"}',
    b'{"a":"\\u00zz"}',
    b'{"a":"\\x41"}',
    b'{"a":"\\"}',
    b'{"a":"\\\\"}',
    b'{"a":"tab\t"}',
    b'{"a":"\\u0000\x7f"}',
    b'{"a":1/**/}',
    b"{'a':1}",
    b'{"a":1,"a":1}',
    b'{"a":1,"\\u0061":1}',
    b'{"a":[],"a":1}',
    b'{"a":{"b":1,"c":2,"b":3}}',
    b'{"a":[{"b":[],"b":[]}]}',
    b'{"a:":":","a":"::"}',
    b'{"":{"":[[],{},[{}]]}}',
    b'{"a":["]","[","}"],"b":{"c":"}","d":"{"},"e":["a]"],"f":["\\"]}',
    b'{"a":["]]","b":1}',
    b'{"a":[1}],"b":{"c":1]}}',
]


@pytest.mark.parametrize("body", ODD)
def test_odd_documents_give_the_same_result_as_one_call(body: bytes) -> None:
    """The parser of large bodies parses or refuses each document like one `from_json` call."""
    assert found(body) == expected(body)


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("inmost", [b"0", b"[]", b"{}", b"[0]"])
def test_nesting_has_the_bound_of_small_bodies(opening: bytes, closing: bytes, inmost: bytes) -> None:
    """The deepest body that one call parses is parsed here too, and a deeper one is refused."""
    verdicts = []
    for depth in range(MAX_DEPTH - 3, MAX_DEPTH + 1):
        body = b'{"a":' + opening * depth + inmost + closing * depth + b"}"
        verdicts.append(found(body) is not None)
        assert verdicts[-1] == (expected(body) is not None)
    assert set(verdicts) == {True, False}


def test_each_call_of_the_parser_gets_a_bounded_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `from_json` call gets at most PIECE_BYTES, or one text of bounded length."""
    lengths = []

    def parsed(piece: bytes, **options: Any) -> Any:
        lengths.append(len(piece))
        return from_json(piece, **options)

    monkeypatch.setattr(large_bodies, "from_json", parsed)
    words = b",".join([b'"word"'] * 100_000)
    pairs = b",".join(b'"n%d":0' % number for number in range(50_000))
    assert found(b'{"a":[[%b]],"b":{"c":{%b}}}' % (words, pairs)) is not None
    assert max(lengths) <= large_bodies.PIECE_BYTES + 2
    assert kind(b'{"a":"%b"}' % (b'\\"' * 1_000_000)) == (["body"], "too_long")
    assert max(lengths) <= 2 * large_bodies.LONGEST_RUN_BYTES


@pytest.mark.parametrize(
    "body, place",
    [
        (b'{"requests":[1,2,3,4,5,', ["body", "requests"]),
        (b'{"requests":[{},{},{},{},{},', ["body", "requests"]),
        (b'{"other":[%b' % (b"1," * 11), ["body"]),
        (b"{%b" % b"".join(b'"n%d":[],' % number for number in range(20)), ["body"]),
    ],
)
def test_an_error_of_the_whole_body_ends_parsing(body: bytes, place: list[str]) -> None:
    """The parser ignores bytes after a top-level list or object that is too long."""
    assert kind(body) == (place, "too_long")


def test_an_error_of_an_element_is_left_to_validation() -> None:
    """The parser drops most values of an element's long list, but keeps its length.

    Of a large object it keeps one name too many, so that validation refuses the element.
    """
    body = {"requests": [{"a": list(range(30)), "b": [[0]] * 30}, {f"n{n}": [n] for n in range(30)}, {"a": 1}]}
    first, second, third = read(json.dumps(body).encode(), LONGEST)["requests"]
    assert (len(first["a"]), len(first["b"]), first["b"][-1]) == (30, 30, None)
    assert list(second) == [f"n{n}" for n in range(9)]
    assert third == {"a": 1}


@pytest.mark.parametrize(
    "body, reason",
    [
        (b'{"a":[%b[]]}' % (b'["x"],' * 100_000), "too_many_values"),
        (b'{"a":["x"%b]}' % (b',"x"' * 1_000_000), "too_many_values"),
        (b'{"a":"%b"}' % (b"x" * 300_000), "too_long"),
    ],
)
def test_too_many_or_too_long_values_refuse_the_body(body: bytes, reason: str) -> None:
    """The limits apply before the values are parsed."""
    assert kind(body, ROOMY) == (["body"], reason)


WORDS = b",".join([b'"word"'] * 100_000)


@pytest.mark.parametrize("start", [b'{"a":', b'{"a":[1,', b'{"a":{"b":2,"c":'])
@pytest.mark.parametrize("wrong", [b'"open', b"nope", b"nope,%b" % WORDS, b"01,%b" % WORDS, b'"\\x",%b' % WORDS, b""])
def test_invalid_json_is_named_with_its_place(start: bytes, wrong: bytes) -> None:
    """It is not taken for a long text, however long the rest of the body is."""
    with pytest.raises(ValidationFailed) as caught:
        read(start + wrong)
    (error,) = caught.value.errors or []
    assert (error["loc"], error["type"]) == (["body"], "json_invalid")
    assert int(error["msg"].removeprefix("Invalid JSON at or after byte ")) in range(len(start) + 1)


@pytest.mark.parametrize("step", [1_000, large_bodies.PIECE_BYTES, 10**7])
def test_blanks_may_stand_between_tokens(step: int) -> None:
    """120,000 blanks at any place leave the values unchanged. 200,000 blanks are refused like a long text."""
    tokens = [b"{", b'"a"', b":", b"[", b"1", b",", b'"x  y"', b"]", b"}"]
    for place in range(len(tokens) + 1):
        body = b"".join([*tokens[:place], b" \t\n\r" * 30_000, *tokens[place:]])
        assert read(body, LONGEST, step) == {"a": [1, "x  y"]}
    assert kind(b'{"a":%b1}' % (b" " * 200_000)) == (["body"], "too_long")


TEXTS = b"""{"0":{"1":"2","a":[1,"3","4",{},2,"5"]},"b":"6","c":[["7"],"8",["9",[]]]}"""


@pytest.mark.parametrize("place", range(9))
def test_the_longest_texts_between_the_longest_blanks_are_parsed(place: int) -> None:
    """Two such texts are parsed at any place of a body and of its parts."""
    text, between, around = b"x" * 130_000, b" " * 60_000, b" " * 125_000
    rest = TEXTS.removeprefix(b"{")
    rest = rest.replace(b'"%d"' % place, around + b'"%d%b"' % (place, text) + between)
    rest = rest.replace(b'"%d"' % (place + 1), between + b'"%b"' % text + around)
    for lead in range(0, 600_000, 30_000):
        body = b'{"lead":["%b"],%b' % (b'","'.join([b"x" * 1000] * (lead // 1000)), rest)
        assert found(body) == expected(body)


def test_parsed_bytes_are_freed() -> None:
    """The parser of an endless body keeps a bounded number of bytes.

    It refuses a list of too many items before the end.
    """
    large = LargeBody(ROOMY)
    part = b'"%b",' % (b"x" * 1000) * 60
    large.feed(b'{"a":{"b":[')
    for _ in range(100):
        large.feed(part)
        work(large)
        assert len(large._window) + len(large._received) <= 4 * AHEAD_BYTES
    large = LargeBody(LONGEST)
    with pytest.raises(ValidationFailed, match="at most 10 items"):
        large.feed(b'{"a":[')
        for _ in range(2 * AHEAD_BYTES // len(part)):
            large.feed(part)
            work(large)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[%b]}' % b",".join([b'["x",[]]'] * 1000),
        b'{"a":[%b]}' % b",".join([b'"word"'] * 10_000),
        b'{"a":{"b":[],%b}}' % b",".join(b'"%d":0' % n for n in range(10_000)),
    ],
)
def test_a_step_ends_at_the_first_token_after_its_time_slice(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step continues at this token."""
    monkeypatch.setattr(large_bodies, "SLICE_S", 0.0)
    monkeypatch.setattr(large_bodies, "PIECE_BYTES", 100)
    large = LargeBody(ROOMY)
    large.feed(body)
    large.end()
    steps = 0
    while not large.hungry:
        large.work()
        steps += 1
    assert steps > 700
    assert repr(large.value) == expected(body)
