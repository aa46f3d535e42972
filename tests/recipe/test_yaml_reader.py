"""The YAML reader and its limits."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import RecipeError, RecipeSecurityError
from svc.recipe.yaml_reader import MAX_BYTES, parse_yaml

BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
LONG_TEXT = "a: &a " + "x" * 200_000 + "\nb: [" + ",".join(["*a"] * 500) + "]\n"


def test_plain_values_are_read() -> None:
    """Keys are text as written, dates stay text, and aliases share the value of their anchor."""
    text = f"on: &x {{1: 2024-01-01, n: 010, f: 1e3, long: {'9' * 128}}}\nb: *x\n? z\n: null\n"
    inner = {"1": "2024-01-01", "n": 8, "f": "1e3", "long": int("9" * 128)}
    assert parse_yaml(text.encode(), "r") == {"on": inner, "b": inner, "z": None}


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        LONG_TEXT,
        "[" * 100,
        "a: !!python/object/apply:os.system [ls]",
        "a: !!python/name:os.system",
        "a: !x 1",
        "!!set {a}",
    ],
)
def test_attacks_are_security_errors(text: str) -> None:
    """Aliases that multiply, deep nesting, and tags that build objects raise RecipeSecurityError."""
    with pytest.raises(RecipeSecurityError):
        parse_yaml(text.encode(), "r")


def nested(depth: int, value: str = "1") -> str:
    """Return `value` inside of `depth` lists."""
    return "[" * depth + value + "]" * depth


def repeated(value: str, count: int, more: str = "") -> str:
    """Return a list of `value` and of `count - 1` aliases of it, with `more` at the end."""
    return f"[&a {value}{', *a' * (count - 1)}{more}]"


@pytest.mark.parametrize(
    ("longest", "longer", "words"),
    [
        (nested(32), nested(33), "nested deeper than 32 levels$"),
        (f"a: &a {nested(10)}\nb: {nested(21, '*a')}", f"a: &a {nested(10)}\nb: {nested(22, '*a')}", "through aliases"),
        (f"a: &a {{x: {{y: 1}}}}\nb: {nested(29, '*a')}", f"a: &a {{x: {{y: 1}}}}\nb: {nested(30, '*a')}", "through"),
        (repeated("[1, 2]", 6666, ", 1"), repeated("[1, 2]", 6666, ", 1, 1"), "more than 20000 values"),
        (repeated("{x: 1}", 6666, ", 1"), repeated("{x: 1}", 6666, ", 1, 1"), "more than 20000 values"),
        (repeated("x" * 6367, 100), repeated("x" * 6368, 100), "more than 20000 values"),
        ("a: 1 #" + "x" * (MAX_BYTES - 6), "a: 1 #" + "x" * (MAX_BYTES - 5), "larger than 262144 bytes"),
    ],
    ids=["depth", "aliases", "mappings", "lists", "keys", "text", "bytes"],
)
def test_limits_are_inclusive(longest: str, longer: str, words: str) -> None:
    """A document at a limit is read, and one more level, value or byte is refused."""
    assert parse_yaml(longest.encode(), "r")
    with pytest.raises(RecipeSecurityError, match=words):
        parse_yaml(longer.encode(), "r")


def test_depth_through_aliases_is_bounded() -> None:
    """The depth of a value includes the depth of the aliases in it."""
    lines = ["a0: &a0 [1]"] + [f"a{n}: &a{n} [[[*a{n - 1}]]]" for n in range(1, 15)]
    with pytest.raises(RecipeSecurityError, match="through aliases"):
        parse_yaml("\n".join(lines).encode(), "r")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "line 2: the key 'a' appears twice"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("a: 1\nb: {<<: {c: 2}}\n", "line 2: merge keys"),
        ("a: 1\n# \a\n", "line 2: not valid YAML: special characters"),
        ('a: "C:\\data"\n', "use single quotes, in which a backslash is itself"),
        ("? [1]\n: 2\n", "key must be plain text"),
        ("a: .nan\n", "not a finite number"),
        ("a: .inf\n", "not a finite number"),
        ("a: *b\n", "names no anchor"),
        ("a: &a [*a]\n", "names no anchor"),
        ("a:\n\t- b\n", "line 2"),
        ("a: " + "9" * 129 + "\n", "is too long: a number has at most 128"),
        ("a: " + "9" * 5000 + "\n", "is too long: a number has at most"),
        ("a: 0x" + "f" * 5000 + "\n", "is too long: a number has at most"),
        ("a: " + ":".join(["59"] * 80_000) + "\n", "is too long: a number has at most"),
        ("a: " + "1" * 5000 + ".5\n", "is too long: a number has at most"),
    ],
)
def test_mistakes_name_their_line(text: str, words: str) -> None:
    """Mistakes raise RecipeError with the file and the line, not RecipeSecurityError."""
    with pytest.raises(RecipeError, match=words) as caught:
        parse_yaml(text.encode(), "r.yaml")
    assert not isinstance(caught.value, RecipeSecurityError)
    assert caught.value.message.startswith("r.yaml")


@given(st.one_of(st.binary(max_size=200), st.text(alphabet="a:-[]{}&*!|>'\"#\n ,?%@", max_size=200).map(str.encode)))
def test_any_bytes_give_a_value_or_a_recipe_error(data: bytes) -> None:
    """No other exception escapes for any content of a file."""
    with contextlib.suppress(RecipeError):
        parse_yaml(data, "r")
