"""The registry of sources, and the requirements of a plug-in."""

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
    """A plug-in like the one in docs/howto/extend.md."""

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
    """Install plug-ins: a valid one, one that is no source, one without a module, and one with a built-in type."""
    here = "tests.sources.test_base"
    names = {"lines": f"{here}:Lines", "wrong": f"{here}:CONTEXT", "broken": "no.such.module:X", "csv": f"{here}:Lines"}
    points = [EntryPoint(name, value, base.ENTRY_POINT_GROUP) for name, value in names.items()]
    monkeypatch.setattr(base, "entry_points", lambda group: points)


@pytest.mark.usefixtures("installed")
def test_an_installed_source_is_found_by_its_type() -> None:
    """The plug-in's own model checks its options. A plug-in cannot replace a built-in type."""
    source = build_source(spec("lines", path="a"), CONTEXT)
    assert type(source).__name__ == "Lines"
    assert isinstance(build_source(spec("csv", path="a.csv"), CONTEXT), CsvSource)
    assert known_types()["csv"] == "svc.sources.csv:CsvSource"
    with pytest.raises(RecipeError, match="path"):
        check_spec(spec("lines", pth="a"), "source")


def test_two_packages_with_one_source_type_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice would be arbitrary, so the error names both. A package that is found twice counts once."""
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
        ("wrong", "is not a data source: it needs `Config` and `fetch"),
        ("broken", "cannot be loaded: ModuleNotFoundError"),
        ("CVS", "'CVS' is not an installed source; did you mean 'csv'"),
        ("nothing-like-it", "is not an installed source; installed are bigquery"),
    ],
)
def test_unknown_and_invalid_source_types_are_refused(type_name: str, words: str) -> None:
    """The error begins with the field of the recipe that has the type."""
    with pytest.raises(RecipeError, match=r"^features\.item\.source\.type: ") as caught:
        check_spec(spec(type_name), "features.item.source")
    assert words in caught.value.message
