"""Arguments that several commands share, and the loading of a recipe for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli.common.options import load, load_for_serving
from svc.errors import RecipeError
from svc.settings import Settings

RECIPE = """\
name: books
source: {type: csv, path: "${SVC_RECIPE_ROWS}"}
schema: {user_column: u, item_column: i}
training: {algorithms: [TopPop]}
output: {path: books.svc}
"""


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SVC_RECIPE_ROWS", raising=False)
    path = tmp_path / "books.yaml"
    path.write_text(RECIPE)
    return path


def test_a_variable_of_the_command_line_overrides_the_environment(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load` returns the variables together with the recipe, because sources need more of them."""
    monkeypatch.setenv("SVC_RECIPE_ROWS", "environment.csv")
    loaded, variables = load(recipe_file, ["SVC_RECIPE_ROWS=given.csv"], Settings())
    assert loaded.recipe.source.options["path"] == "given.csv"
    assert variables["SVC_RECIPE_ROWS"] == "given.csv"
    assert load(recipe_file, None, Settings())[0].recipe.source.options["path"] == "environment.csv"


def test_only_training_needs_the_variables_of_its_source(recipe_file: Path) -> None:
    """A server and an export load the same recipe without them."""
    with pytest.raises(RecipeError, match="SVC_RECIPE_ROWS"):
        load(recipe_file, None, Settings())
    assert load_for_serving(recipe_file, None, Settings())[0].recipe.name == "books"
