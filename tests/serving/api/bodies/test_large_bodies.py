"""Large bodies are parsed while they arrive, refused early, and give the same values as small ones."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from svc.asking import fields
from svc.asking.requests import RecommendRequest, RelatedRequest, UsersRequest
from svc.errors import ValidationFailed
from svc.recipe.training_schema import MAX_DIMENSIONS
from svc.serving.api.bodies import large_bodies
from svc.serving.api.bodies.large_bodies import AHEAD_BYTES, KEPT_ITEMS, KEPT_NAMES, MAX_DEPTH, PIECE_BYTES, LargeBody
from tests.serving.bodies import expected, found, read, several, work

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


def kind(body: bytes) -> tuple[list[str], str]:
    """Return the type and the place of a refusal."""
    with pytest.raises(ValidationFailed) as caught:
        read(body)
    (error,) = caught.value.errors or []
    return error["loc"], error["type"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_large_and_small_bodies_give_the_same_values(body: bytes) -> None:
    """Values and errors equal those of one `from_json` call, for every size of parts."""
    by_pydantic = expected(body)
    for piece in (1, 24, PIECE_BYTES):
        with patch.object(large_bodies, "PIECE_BYTES", piece):
            assert found(body) == by_pydantic


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_the_result_does_not_depend_on_the_cuts_between_parts(document: bytes) -> None:
    """A document longer than the look-ahead parses to the same values for every size of parts."""
    body = several(document, 3 << 13)
    with patch.multiple(large_bodies, AHEAD_BYTES=1 << 13, PIECE_BYTES=100, KEPT_ITEMS=10**6):
        for step in (1, 777, 1 << 16):
            assert found(body, step=step) == expected(body)


ODD = [
    *(b"", b" ", b"{}", b" {} \r\n\t", b"{} {}", b"{},", b"{}\x00", b"\xef\xbb\xbf{}", b"\x0b{}"),
    *('{"a": 1}'.encode("utf-16"), b'["a"]', b'"a"', b"7", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}'),
    *(b"{,}", b'{"a" 1}', b"{a:1}", b"{1:1}", b'{"a":[1,]}', b'{"a":[,1]}', b'{"a":[1 2]}', b'{"a":[1}}'),
    *(b'{"a":{"b":1]}', b'{"a":["b" "c"]}', b'{"a":1"b"}', b'{"a":NaN,"b":[Infinity,-Infinity]}', b'{"a":nan}'),
    *(b'{"a":inf}', b'{"a":+1}', b'{"a":01}', b'{"a":1.}', b'{"a":.5}', b'{"a":-}'),
    b'{"a":-0,"b":-0.0,"c":1e400,"d":1e-400,"e":1E+2,"f":1e99999999999999999999}',
    *(b'{"a":0.1,"b":123456789012345678901234567890,"c":[1.0,2]}', b'{"a":%b}' % (b"9" * 4300)),
    *(b'{"a":%b}' % (b"9" * 4301), b'{"a":truefalse}', b'{"a":[true,false,null],"b":True}', b'{"a":"\xff"}'),
    *(b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}'),
    *(b'{"a":"\\ud83d\\ude00","b":"\xf0\x9f\x98\x80"}', b'{"a":"\\u00zz"}', b'{"a":"\\x41"}', b'{"a":"\\"}'),
    *(b'{"a":"\\\\"}', b'{"a":"tab\t"}', b'{"a":"\\u0000\x7f"}', b'{"a":1/**/}', b"{'a':1}", b'{"a":1,"a":1}'),
    *(b'{"a":1,"\\u0061":1}', b'{"a":[],"a":1}', b'{"a":{"b":1,"c":2,"b":3}}', b'{"a":[{"b":[],"b":[]}]}'),
    *(b'{"a:":":","a":"::"}', b'{"":{"":[[],{},[{}]]}}'),
    *(b'{"a":["]","[","}"],"b":{"c":"}","d":"{"},"e":["a]"],"f":["\\"]}', b'{"a":["]]","b":1}'),
    b'{"a":[1}],"b":{"c":1]}}',
]


@pytest.mark.parametrize("body", ODD)
def test_odd_documents_give_the_same_result_as_one_call(body: bytes) -> None:
    """The parser of large bodies parses or refuses each document like one `from_json` call."""
    assert found(body) == expected(body)


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("inmost", [b"0", b"[]", b"{}", b"[0]"])
def test_nesting_has_the_bound_of_small_bodies(opening: bytes, closing: bytes, inmost: bytes) -> None:
    """The deepest body that one `from_json` call parses is parsed in parts, too. A deeper body is refused."""
    verdicts = []
    for depth in range(MAX_DEPTH - 3, MAX_DEPTH + 1):
        body = b'{"a":' + opening * depth + inmost + closing * depth + b"}"
        verdicts.append(found(body) is not None)
        assert verdicts[-1] == (expected(body) is not None)
    assert set(verdicts) == {True, False}


def test_each_call_of_the_parser_gets_a_bounded_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `from_json` call gets at most PIECE_BYTES and the open brackets, or one text of bounded length."""
    lengths = []

    def parsed(piece: bytes, **options: Any) -> Any:
        lengths.append(len(piece))
        return from_json(piece, **options)

    monkeypatch.setattr(large_bodies, "from_json", parsed)
    words = b",".join([b'"word"'] * 100_000)
    pairs = b",".join(b'"n%d":0' % number for number in range(50_000))
    assert found(b'{"a":[[%b]],"b":[%b]}' % (words, b"{},".join([b'"],[,"'] * 30_000))) is None
    assert found(b'{"a":[[%b]],"b":{"c":{%b}}}' % (words, pairs)) is not None
    assert max(lengths) <= PIECE_BYTES + 100
    assert kind(b'{"a":"%b"}' % (b'\\"' * 1_000_000)) == (["body"], "too_long")
    assert found(b'{"a":["%b","b"]}' % (b"," * 300_000)) is not None
    assert max(lengths) <= AHEAD_BYTES


def test_a_long_object_keeps_enough_names_to_be_refused() -> None:
    """The parser drops the other names, so that validation reports few errors."""
    names = b",".join(b'"n%d":[%d]' % (number, number) for number in range(20_000))
    body = b'{"requests":[{%b},{"a":[%b]},{"a":1}]}' % (names, b",".join([b"0"] * 20_000))
    first, second, third = read(body)["requests"]
    assert KEPT_NAMES <= len(first) <= KEPT_NAMES + PIECE_BYTES // 8
    assert list(first.values())[-1] == [19_999]
    assert second["a"][:KEPT_ITEMS] == [0] * KEPT_ITEMS
    assert third == {"a": 1}


def test_no_valid_list_or_object_is_as_long_as_the_kept_part() -> None:
    """Validation therefore refuses every object or list of which the parser drops a part."""
    lists = {name: value for name, value in vars(fields).items() if name.startswith("MAX_") and "CHAR" not in name}
    assert max(MAX_DIMENSIONS, *lists.values()) < KEPT_ITEMS
    requests = (RecommendRequest, RelatedRequest, UsersRequest)
    names = (fields.MAX_FEATURES, fields.MAX_FEATURE_ITEMS, *(len(one.model_fields) for one in requests))
    assert max(names) < KEPT_NAMES


def test_a_long_list_keeps_its_length_and_enough_values_to_be_refused() -> None:
    """Later values become None. Otherwise a body of short texts would take many times its size in memory."""
    texts = [f"{n:07}" for n in range(100_000)]
    found = read(b'{"a":["%b"]}' % '","'.join(texts).encode(), 1 << 16)["a"]
    assert len(found) == len(texts) and found[:KEPT_ITEMS] == texts[:KEPT_ITEMS]
    assert found.count(None) > len(texts) - KEPT_ITEMS - 2 * PIECE_BYTES / len('"0000000",') - len(texts) / 500


def test_a_piece_ends_at_the_first_comma_behind_a_long_text() -> None:
    """The values after the text are parsed in later pieces."""
    large = LargeBody()
    large.feed(b'{"a":["%b",%b' % (b"x" * 400_000, b"{}," * 90_000))
    large.work()
    assert len(large._received) == 3 * 90_000


@pytest.mark.parametrize("brackets", [b"[" * 99_000 + b"]" * 99_000, b"[" * 99_000, b"[{" * 40_000])
def test_more_brackets_than_a_piece_may_have_are_refused(brackets: bytes) -> None:
    """The refusal comes before the brackets are matched, which would take a tenth of a second."""
    assert kind(b'{"a":%b}' % brackets) == (["body"], "json_invalid")


@pytest.mark.parametrize(
    "body, reason",
    [
        (b'{"a":[%b[]]}' % (b'["x"],' * 100_000), "too_many_values"),
        (b'{"a":["x"%b]}' % (b',"x"' * 1_000_000), "too_many_values"),
        (b'{"a":"%b"}' % (b"x" * 800_000), "too_long"),
    ],
)
def test_too_many_or_too_long_values_refuse_the_body(body: bytes, reason: str) -> None:
    """The limits apply before values are parsed."""
    assert kind(body) == (["body"], reason)


WORDS = b",".join([b'"word"'] * 100_000)


@pytest.mark.parametrize("start", [b'{"a":', b'{"a":[1,', b'{"a":{"b":2,"c":'])
@pytest.mark.parametrize("wrong", [b'"open', b"nope", b"nope,%b" % WORDS, b"01,%b" % WORDS, b'"\\x",%b' % WORDS, b""])
def test_invalid_json_is_named_with_its_place(start: bytes, wrong: bytes) -> None:
    """The error is not that of a too long text, however long the rest of the body is."""
    with pytest.raises(ValidationFailed) as caught:
        read(start + wrong)
    (error,) = caught.value.errors or []
    assert (error["loc"], error["type"]) == (["body"], "json_invalid")
    assert int(error["msg"].removeprefix("Invalid JSON at or after byte ")) in range(len(start) + 1)


@pytest.mark.parametrize("step", [1_000, PIECE_BYTES, 10**7])
def test_blanks_may_stand_between_tokens(step: int) -> None:
    """120,000 blanks between two tokens leave the values unchanged. 800,000 blanks are refused like a long text."""
    tokens = [b"{", b'"a"', b":", b"[", b"1", b",", b'"x  y"', b"]", b"}"]
    for place in range(len(tokens) + 1):
        body = b"".join([*tokens[:place], b" \t\n\r" * 30_000, *tokens[place:]])
        assert read(body, step) == {"a": [1, "x  y"]}
    assert kind(b'{"a":%b1}' % (b" " * 800_000)) == (["body"], "too_long")


TEXTS = b"""{"0":{"1":"2","a":[1,"3","4",{},2,"5"]},"b":"6","c":[["7"],"8",["9",[]]]}"""


@pytest.mark.parametrize("place", range(9))
def test_the_longest_texts_between_the_longest_blanks_are_parsed(place: int) -> None:
    """Two such texts are parsed at any place of a body and of its parts."""
    text, between, around = b"x" * 130_000, b" " * 60_000, b" " * 125_000
    rest = TEXTS.removeprefix(b"{")
    rest = rest.replace(b'"%d"' % place, around + b'"%d%b"' % (place, text) + between)
    rest = rest.replace(b'"%d"' % (place + 1), between + b'"%b"' % text + around)
    for lead in range(0, 600_000, 70_000):
        body = b'{"lead":["%b"],%b' % (b'","'.join([b"x" * 1000] * (lead // 1000)), rest)
        assert found(body) == expected(body)


def test_parsed_bytes_are_freed() -> None:
    """The parser of an endless body keeps a bounded number of bytes, and none after an error."""
    large = LargeBody()
    part = b'"%b",' % (b"x" * 1000) * 60
    large.feed(b'{"a":{"b":[')
    for _ in range(100):
        large.feed(part)
        work(large)
        assert len(large._received) <= AHEAD_BYTES
    large.feed(b"wrong," * 10)
    for _ in range(100):
        large.feed(part)
        work(large)
    assert len(large._received) == 0
    with pytest.raises(ValidationFailed, match="Invalid JSON at or after byte 60"):
        large.result()


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[%b]}' % b",".join([b'["x",[]]'] * 1000),
        b'{"a":[%b]}' % b",".join([b'"word"'] * 10_000),
        b'{"a":{"b":[],%b}}' % b",".join(b'"%d":0' % n for n in range(10_000)),
    ],
)
def test_a_step_parses_one_piece(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of steps is that of the body's pieces, and the result equals that of one `from_json` call."""
    monkeypatch.setattr(large_bodies, "PIECE_BYTES", 100)
    monkeypatch.setattr(large_bodies, "KEPT_NAMES", 20_000)
    monkeypatch.setattr(large_bodies, "KEPT_ITEMS", 20_000)
    large = LargeBody()
    large.feed(body)
    large.end()
    steps = 0
    while not large.hungry:
        large.work()
        steps += 1
    assert len(body) / 100 < steps < len(body) / 80
    assert repr(large.result()) == expected(body)
