"""What the pages for contributors say: files and names that exist, tests for every module, names that tell."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SVC = ROOT / "svc"
CODE = ROOT / "docs" / "explanation" / "code.md"
WITHOUT_TESTS = {
    "svc/__main__.py": "runs svc.cli.main, as tests/cli/test_main.py does in processes of its own",
    "svc/serving/api/request/state.py": "one dataclass without methods",
    "svc/serving/transport/messages.py": "protocols and a tuple",
}
"""Modules of declarations only, and why each needs no test module."""
VAGUE = ("found", "place", "known", "one")
VAGUE_AT_MOST: dict[str, tuple[int, int, int, int]] = {
    "": (0, 0, 0, 0),
    "artifact": (0, 0, 0, 0),
    "cli": (0, 0, 0, 0),
    "errors": (0, 0, 0, 0),
    "export": (0, 0, 0, 0),
    "library": (0, 0, 0, 0),
    "model": (0, 0, 0, 0),
    "recipe": (0, 0, 0, 0),
    "serving": (0, 0, 0, 0),
    "sources": (0, 0, 0, 0),
    "training": (0, 0, 0, 0),
}
"""How often a variable or parameter has each of these names in each part. Whoever renames some lowers the number."""
ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<file>svc/[\w/]+\.py)` \| `(?P<name>[^`]+)` \|$", re.MULTILINE)
ROWS = [match.groups() for match in ROW.finditer(CODE.read_text(encoding="utf-8"))]


def test_the_table_has_its_rows() -> None:
    """The pattern finds the rows: a table that no row matches would prove nothing."""
    assert len(ROWS) >= 10


@pytest.mark.parametrize(("what", "file", "name"), ROWS)
def test_to_change_something_look_where_the_table_says(what: str, file: str, name: str) -> None:
    """Each row is found in one open: the file exists and contains the name as a whole word."""
    assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", (ROOT / file).read_text(encoding="utf-8")), what


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/code.md"])
def test_named_files_exist(page: str) -> None:
    """Every file and folder of the project that the page names in backquotes is there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:svc|tests|docs|benchmarks|recipes|\.ci)/[\w./-]*)`", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_part_is_on_the_page() -> None:
    """The drawing of the parts names every folder and base file of the package."""
    drawn = CODE.read_text(encoding="utf-8")
    parts = [path for path in (ROOT / "svc").iterdir() if not path.name.startswith("_") and path.name != "py.typed"]
    assert [path.name for path in parts if path.name not in drawn] == []


def test_each_module_has_a_test_module_of_its_name() -> None:
    """svc/a/b.py is tested in tests/a/test_b.py; what only declares stands in the list above, and in no other way."""
    modules = [path for path in sorted((ROOT / "svc").rglob("*.py")) if path.name != "__init__.py"]
    untested = {
        f"svc/{path.relative_to(ROOT / 'svc').as_posix()}"
        for path in modules
        if not (ROOT / "tests" / path.relative_to(ROOT / "svc").parent / f"test_{path.name}").exists()
    }
    assert len(modules) > 200
    assert untested == WITHOUT_TESTS.keys()


def vague_names(tree: ast.AST) -> Iterator[str]:
    """Each parameter and each assignment to a variable that has such a name."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in VAGUE:
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) if name in VAGUE:
                yield name


def part_of(path: Path) -> str:
    """The folder of `svc` in which a module is; "" for a module in `svc` itself."""
    parts = path.relative_to(SVC).parts
    return parts[0] if len(parts) > 1 else ""


def counted() -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for path in sorted(SVC.rglob("*.py")):
        names = vague_names(ast.parse(path.read_text(encoding="utf-8")))
        counts.setdefault(part_of(path), Counter()).update(names)
    return counts


def test_vague_names_become_fewer() -> None:
    """Say `recommendations`, `interactions` or `trials` instead; where fewer are left, lower the number above."""
    counts = counted()
    assert counts.keys() == VAGUE_AT_MOST.keys()
    more = {
        f"{name} in svc/{part}": f"{counts[part][name]}, at most {most}"
        for part, row in VAGUE_AT_MOST.items()
        for name, most in zip(VAGUE, row, strict=True)
        if counts[part][name] > most
    }
    assert more == {}


@pytest.mark.parametrize(
    "text",
    ["found = 1", "for place in a: pass", "[known for known in a]", "def f(one): pass", "(one := 1)", "lambda one: 1"],
)
def test_every_way_to_name_a_variable_counts(text: str) -> None:
    """Reading a variable does not count again."""
    assert len(list(vague_names(ast.parse(text)))) == 1


def test_other_names_do_not_count() -> None:
    """Longer names say more; attributes and keywords may belong to a library."""
    assert list(vague_names(ast.parse("found_items = a.one = f(place=known)"))) == []
