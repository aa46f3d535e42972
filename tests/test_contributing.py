"""The pages for contributors name files and things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ROOT / "docs" / "explanation" / "code.md"
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
