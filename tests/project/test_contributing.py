"""CONTRIBUTING.md is short, the pages about the code are true, modules have tests, and no variable has a vague name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SVC = ROOT / "svc"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CODE = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
MOST_WORDS = 1500
WITHOUT_TESTS = {
    "svc/__main__.py": "runs svc.cli.main, as tests/cli/test_main.py does in processes of its own",
    "svc/serving/transport/messages.py": "protocols and a tuple",
}
"""Modules of declarations only, and why each needs no test module."""
VAGUE = ("found", "place", "known", "one")
"""Names that would fit any variable."""
ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<file>svc/[\w/]+\.py)` \| `(?P<name>[^`]+)` \|$", re.MULTILINE)
ROWS = [match.groups() for match in ROW.finditer(CODE)]


def test_the_table_has_its_rows() -> None:
    """The pattern finds at least ten rows of the table in docs/code.md."""
    assert len(ROWS) >= 10


@pytest.mark.parametrize(("what", "file", "name"), ROWS)
def test_files_of_the_table_contain_the_named_symbols(what: str, file: str, name: str) -> None:
    """Each row names an existing file, which contains the symbol as a whole word."""
    assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", (ROOT / file).read_text(encoding="utf-8")), what


def test_a_newcomer_reads_it_in_minutes() -> None:
    """CONTRIBUTING.md has at most 1,500 words."""
    assert len(CONTRIBUTING.split()) <= MOST_WORDS


@pytest.mark.parametrize("text", [CONTRIBUTING, CODE], ids=["CONTRIBUTING", "code"])
def test_named_files_exist(text: str) -> None:
    """Every path of the project that a page names in backquotes exists."""
    named = set(re.findall(r"`((?:svc|tests|docs|benchmarks|recipes|\.ci)/[\w./-]*)`", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_part_is_on_the_page() -> None:
    """CONTRIBUTING.md names every subpackage and base module of the package."""
    parts = [path for path in (ROOT / "svc").iterdir() if not path.name.startswith("_") and path.name != "py.typed"]
    assert [path.name for path in parts if path.name not in CONTRIBUTING] == []


def test_each_module_has_a_test_module_of_its_name() -> None:
    """svc/a/b.py has tests/a/test_b.py. Only the modules of `WITHOUT_TESTS` have none."""
    modules = [path for path in sorted((ROOT / "svc").rglob("*.py")) if path.name != "__init__.py"]
    untested = {
        f"svc/{path.relative_to(ROOT / 'svc').as_posix()}"
        for path in modules
        if not (ROOT / "tests" / path.relative_to(ROOT / "svc").parent / f"test_{path.name}").exists()
    }
    assert len(modules) > 200
    assert untested == WITHOUT_TESTS.keys()


def vague_names(tree: ast.AST) -> Iterator[str]:
    """Yield each vague name of a parameter or of an assigned variable, once for each use."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in VAGUE:
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) if name in VAGUE:
                yield name


def test_no_variable_has_a_vague_name() -> None:
    """No variable or parameter of the package has a name of `VAGUE`, such as `found` or `one`."""
    vague = {
        path.relative_to(ROOT).as_posix(): names
        for path in sorted(SVC.rglob("*.py"))
        if re.search(rf"\b({'|'.join(VAGUE)})\b", text := path.read_text(encoding="utf-8"))
        if (names := sorted(vague_names(ast.parse(text))))
    }
    assert vague == {}


@pytest.mark.parametrize(
    "text",
    ["found = 1", "for place in a: pass", "[known for known in a]", "def f(one): pass", "(one := 1)", "lambda one: 1"],
)
def test_every_kind_of_assignment_is_checked_for_vague_names(text: str) -> None:
    """Each example counts once, although some also read the variable."""
    assert len(list(vague_names(ast.parse(text)))) == 1


def test_other_names_do_not_count() -> None:
    """Longer names, attributes and keyword arguments are allowed."""
    assert list(vague_names(ast.parse("found_items = a.one = f(place=known)"))) == []
