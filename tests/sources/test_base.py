"""How a source is found by its type, and what an installed one must have."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from svc.errors import RecipeError
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources import base
from svc.sources.base import SourceContext, build_source, check_spec, known_types
from svc.sources.csv import CsvSource

CONTEXT = SourceContext(Path(), Settings(), None, frozenset(), "interactions", {}, None)


class Lines:
    """A plug-in as docs/howto/extend.md describes one."""

    type_name = "lines"

    class Config(BaseModel):
        path: str

    def __init__(self, config: Any, context: SourceContext) -> None:
        self.config = config

    def fetch(self) -> Any: ...


def spec(type: str, **options: Any) -> SourceSpec:
    return SourceSpec(type=type, **options)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plug-ins: a good one, one that is no source, one that cannot be imported, one that claims a built-in type."""
    here = "tests.sources.test_base"
    names = {"lines": f"{here}:Lines", "wrong": f"{here}:CONTEXT", "broken": "no.such.module:X", "csv": f"{here}:Lines"}
    points = [EntryPoint(name, value, base.ENTRY_POINT_GROUP) for name, value in names.items()]
    monkeypatch.setattr(base, "entry_points", lambda group: points)


@pytest.mark.usefixtures("installed")
def test_an_installed_source_is_found_by_its_type() -> None:
    """Its options are checked by its own model; a built-in type cannot be replaced."""
    source = build_source(spec("lines", path="a"), CONTEXT)
    assert type(source).__name__ == "Lines"
    assert isinstance(build_source(spec("csv", path="a.csv"), CONTEXT), CsvSource)
    assert known_types()["csv"] == "svc.sources.csv:CsvSource"
    with pytest.raises(RecipeError, match="path"):
        check_spec(spec("lines", pth="a"), "source")


def test_two_packages_with_one_type_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them would be used is chance; a package that is found twice on the path is one."""
    places = [f"{folder}:Lines" for folder in ("tests.sources.test_base", "other_package.lines")]
    points = [EntryPoint("lines", place, base.ENTRY_POINT_GROUP) for place in places]
    monkeypatch.setattr(base, "entry_points", lambda group: points)
    with pytest.raises(RecipeError, match=r"^source\.type: several .*'lines': other_package.lines, tests.sources"):
        check_spec(spec("lines", path="a"), "source")
    monkeypatch.setattr(base, "entry_points", lambda group: [points[0], points[0]])
    check_spec(spec("lines", path="a"), "source")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("type_name", "words"),
    [
        ("wrong", "is no data source: it needs `Config` and `fetch"),
        ("broken", "cannot be loaded: ModuleNotFoundError"),
        ("CVS", "'CVS' is no installed source; did you mean 'csv'"),
        ("nothing-like-it", "is no installed source; there are bigquery"),
    ],
)
def test_what_is_no_source_is_named_with_its_place(type_name: str, words: str) -> None:
    """As the field of the recipe that names it."""
    with pytest.raises(RecipeError, match=r"^features\.item\.source\.type: ") as caught:
        check_spec(spec(type_name), "features.item.source")
    assert words in caught.value.message
