"""Every regular expression of svc takes time in proportion to the length of the text, or less.

The interpreter runs no other thread during a match. An expression of quadratic time would therefore let a text of a few
kilobytes block the server for seconds. Expressions are collected from the source, so a new one is tested without being
listed here.
"""

from __future__ import annotations

import ast
import functools
import itertools
import random
import re
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import svc

SVC = Path(svc.__file__).parent
USES = ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")
MADE_AT_RUN_TIME = {
    "svc.atomic_write": [r"\.movies\.svc\.[0-9a-f]{16}\.tmp"],
    "svc.artifact.store": [r"movies\.[0-9a-f]{8}\.svc"],
    "svc.recipe.problems": [r"^[1-9][0-9]{0,5}(min|h|d|w|y)$"],
    "svc.export.manifest": [r"recs\.\d+-of-(\d+)\.parquet\.manifest\.json"],
    "svc.serving.api.key_policies": [r"\A(?:(?s:(?>.*?a)(?>.*?b).*)\Z)"],
    "svc.serving.api.endpoints": [r"(?s)(/v1/recipes/)([A-Za-z0-9_-]{1,64})(.*)"],
}
"""Expressions whose text depends on values: one of those that each module makes."""

LENGTHS = (1_500, 12_000)
MOST_GROWTH = 30
"""Eight times the length: linear is 8, quadratic 64."""
LEAST_S = 0.004
"""Below this a time says nothing; a quadratic expression takes a hundred times as long at the larger length."""

IMPORTS_RE = re.compile(r"^\s*(?:from|import)\b.*\bre\b", re.MULTILINE)

Pattern = re.Pattern[Any]


@functools.cache
def modules() -> list[tuple[str, ast.Module]]:
    """Return name and syntax tree of every module that imports `re`."""
    parsed = []
    for path in sorted(SVC.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if IMPORTS_RE.search(text):
            name = ".".join(("svc", *path.relative_to(SVC).with_suffix("").parts)).removesuffix(".__init__")
            parsed.append((name, ast.parse(text)))
    return parsed


def uses(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of functions of `re`, such as `re.compile`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=use)) if use in USES:
                yield node


def constants_of(name: str) -> dict[str, Pattern]:
    """Return the expressions that a module compiles at its import, by the names of their constants."""
    return {f"{name}.{key}": value for key, value in vars(import_module(name)).items() if type(value) is re.Pattern}


def collected() -> dict[str, Pattern]:
    found: dict[str, Pattern] = {}
    for name, tree in modules():
        calls = list(uses(tree))
        if not calls:
            continue
        compiled = constants_of(name)
        found |= compiled
        inline = [call.args[0] for call in calls if isinstance(call.args[0], ast.Constant)]
        known = {pattern.pattern for pattern in compiled.values()}
        found |= {f"{name}:{text.lineno}": re.compile(text.value) for text in inline if text.value not in known}
        found |= {f"{name}: {text}": re.compile(text) for text in MADE_AT_RUN_TIME.get(name, ())}
    return found


EXPRESSIONS = collected()


def test_every_expression_is_known() -> None:
    """Each regular expression is literal in its call, a constant of its module, or listed in `MADE_AT_RUN_TIME`."""
    for name, tree in modules():
        own = {ast.dump(call) for call in uses(tree)}
        top = {ast.dump(call) for node in tree.body for call in uses(ast.Module([node], [])) if _is_constant(node)}
        hidden = [
            call for call in uses(tree) if not isinstance(call.args[0], ast.Constant) and ast.dump(call) not in top
        ]
        assert len(hidden) <= len(MADE_AT_RUN_TIME.get(name, ())), f"{name}: make it a constant, or list it here"
        assert own or not top
    assert len(EXPRESSIONS) > 30


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign)


def test_no_module_imports_functions_of_re_by_name() -> None:
    """The collection of expressions would miss their calls."""
    for name, tree in modules():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "re"), name
            if isinstance(node, ast.Import):
                assert all(alias.asname is None for alias in node.names if alias.name == "re"), name


def samples(items: Any) -> Iterator[str]:
    """Yield short texts that parts of the expression match: literals, classes, repetitions and alternatives."""
    for is_literal, run in itertools.groupby(items, lambda item: item[0] is constants.LITERAL):
        if is_literal:
            yield "".join(chr(argument) for _, argument in run)
    for operation, argument in items:
        match operation:
            case constants.LITERAL | constants.NOT_LITERAL:
                yield chr(argument) if operation is constants.LITERAL else "x"
            case constants.ANY:
                yield "x"
            case constants.IN:
                yield from members(argument)
            case constants.MAX_REPEAT | constants.MIN_REPEAT | constants.POSSESSIVE_REPEAT:
                yield one_of(argument[2])
                yield from samples(argument[2])
            case constants.SUBPATTERN:
                yield one_of(argument[3])
                yield from samples(argument[3])
            case constants.BRANCH:
                for branch in argument[1]:
                    yield one_of(branch)
                    yield from samples(branch)
            case constants.ASSERT | constants.ASSERT_NOT:
                yield one_of(argument[1])
            case constants.ATOMIC_GROUP:
                yield from samples(argument)


def members(items: Any) -> list[str]:
    """Return up to four characters for a class. A negated class gives characters inside and outside it."""
    categories = {constants.CATEGORY_DIGIT: "7", constants.CATEGORY_SPACE: " ", constants.CATEGORY_WORD: "w"}
    negated = items[0][0] is constants.NEGATE
    found: list[str] = ["x", "\\", '"'] if negated else []
    for operation, argument in items:
        if operation is constants.LITERAL:
            found.append(chr(argument))
        elif operation is constants.RANGE:
            found += [chr(argument[0]), chr(argument[1])]
        elif operation is constants.CATEGORY:
            found.append(categories.get(argument, "x"))
    return found[:4]


def one_of(items: Any) -> str:
    """Return a text that the whole sequence matches, with few repetitions."""
    parts = []
    for operation, argument in items:
        if operation in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
            parts.append(one_of(argument[2]) * max(1, min(argument[0], 4)))
        elif operation is constants.SUBPATTERN:
            parts.append(one_of(argument[3]))
        elif operation is constants.BRANCH:
            parts.append(one_of(argument[1][0]))
        elif operation is constants.IN:
            parts.append(members(argument)[0])
        else:
            parts.append(next(samples([(operation, argument)]), ""))
    return "".join(parts)


def hostile(pattern: Pattern, length: int) -> Iterator[Any]:
    """Yield texts that repeat parts of the expression, after a beginning that matches.

    Some of them end with a character that does not match.
    """
    text = pattern.pattern
    parsed = parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(text, bytes) else pattern.flags)
    pieces = sorted({piece for piece in samples(parsed) if piece})
    whole = one_of(parsed)
    generator = random.Random(repr(text))
    pumps = pieces + ["".join(pair) for pair in itertools.permutations(pieces, 2)]
    generator.shuffle(pumps)
    starts = ["", *(whole[:end] for end in range(1, 1 + min(len(whole), 12)))]
    for pump in [*sorted(pieces, key=len)[:10], max(pieces, key=len), whole, *pumps[:8]]:
        for start in starts if len(pump) == 1 else ("", generator.choice(starts)):
            made = (start + pump * (length // len(pump)))[:length] + generator.choice(["", "\n", "!", "\x00"])
            yield made.encode("latin-1", "replace") if isinstance(text, bytes) else made


def methods(name: str) -> tuple[str, ...]:
    """Return the methods that svc calls on the expression of this name.

    Without such a call, these are all three methods of matching. Matching at one position may take time in proportion
    to the text, because only a search tries every position.
    """
    constant = name.rpartition(".")[2]
    call = re.compile(rf"\b{re.escape(constant)}\.({'|'.join(USES)})\(")
    used = {found for source in SOURCES if f"{constant}." in source for found in call.findall(source)}
    return tuple(sorted(used)) or ("search", "match", "fullmatch")


SOURCES = [path.read_text(encoding="utf-8") for path in SVC.rglob("*.py")]


def seconds(pattern: Pattern, text: Any, ways: tuple[str, ...]) -> float:
    began = time.thread_time()
    for way in ways:
        first = (b"" if isinstance(text, bytes) else "",) if way in ("sub", "subn") else ()
        for _ in getattr(pattern, way)(*first, text) if way == "finditer" else (getattr(pattern, way)(*first, text),):
            pass
    return time.thread_time() - began


def growth(pattern: Pattern, small: Any, large: Any, ways: tuple[str, ...]) -> float:
    """Return the factor between the times for the large and for the small text.

    Each time is the best of several attempts, because other processes run on the machine.
    """
    if seconds(pattern, large, ways) < LEAST_S:
        return 1.0
    times = [(seconds(pattern, small, ways), seconds(pattern, large, ways)) for _ in range(3)]
    return min(large_s for _, large_s in times) / max(min(small_s for small_s, _ in times), LEAST_S / MOST_GROWTH)


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_the_time_of_every_expression_is_linear_in_the_length(name: str) -> None:
    """The texts repeat parts of the expression, which make it backtrack."""
    pattern, ways = EXPRESSIONS[name], methods(name)
    for small, large in zip(hostile(pattern, LENGTHS[0]), hostile(pattern, LENGTHS[1]), strict=True):
        assert growth(pattern, small, large, ways) < MOST_GROWTH, f"{pattern.pattern!r} on {small[:60]!r}"


@pytest.mark.parametrize(
    "quadratic",
    [
        r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*://)[^/\s@\"']*@",
        r"[?&;](?:[\w.\-]*(?:secret|key|sig)[\w.\-]*)=",
        r"<metadata>.*?</metadata>",
    ],
)
def test_expressions_of_quadratic_time_are_detected(quadratic: str) -> None:
    """The check fails for expressions that svc once had."""
    pattern = re.compile(quadratic)
    pairs = zip(hostile(pattern, LENGTHS[0]), hostile(pattern, LENGTHS[1]), strict=True)
    assert any(growth(pattern, small, large, ("search",)) >= MOST_GROWTH for small, large in pairs)
