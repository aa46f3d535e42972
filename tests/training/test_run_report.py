"""The figures that a training gathers for its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svc.artifact.keys import development_keys
from svc.errors import ConfigError
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.run_report import RunReport

Make = Callable[..., LoadedRecipe]


def report_at(path: Path | None, loaded: LoadedRecipe) -> RunReport:
    return RunReport(path, loaded, Settings(), {}, Progress())


def test_without_a_path_nothing_is_gathered(make_recipe: Make) -> None:
    """Nothing is measured, and the earlier artifact is not read."""
    report, unused = report_at(None, make_recipe()), Any
    report.check()
    assert report.curves(unused, unused, unused) == {}
    assert report.earlier(development_keys()) is None
    report.write({}, unused, None)


def test_a_report_that_cannot_be_written_is_refused_before_the_training(make_recipe: Make, tmp_path: Path) -> None:
    """A missing folder then costs no search."""
    with pytest.raises(ConfigError, match="cannot be written"):
        report_at(tmp_path / "missing" / "page.html", make_recipe()).check()


def test_a_first_run_has_no_earlier_artifact(make_recipe: Make, tmp_path: Path) -> None:
    """There is no artifact at the output yet."""
    assert report_at(tmp_path / "page.html", make_recipe()).earlier(development_keys()) is None
