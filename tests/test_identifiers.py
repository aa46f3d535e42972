"""Variables are named for what they hold: names that would fit anything are counted, and may only become fewer."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SVC = Path(__file__).parents[1] / "svc"
VAGUE = ("found", "place", "known", "one")
MOST: dict[str, tuple[int, int, int, int]] = {
    "": (2, 1, 2, 3),
    "artifact": (9, 9, 4, 1),
    "cli": (6, 2, 1, 0),
    "errors": (0, 0, 0, 0),
    "export": (6, 1, 0, 0),
    "library": (2, 1, 1, 0),
    "model": (34, 32, 13, 12),
    "recipe": (11, 15, 2, 2),
    "serving": (42, 23, 9, 17),
    "sources": (34, 8, 3, 5),
    "training": (64, 33, 23, 12),
}
"""How often a variable or parameter has each of these names in each part. Whoever renames some lowers the number."""


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
    assert counts.keys() == MOST.keys()
    more = {
        f"{name} in svc/{part}": f"{counts[part][name]}, at most {most}"
        for part, row in MOST.items()
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
