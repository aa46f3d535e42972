"""The example plug-in of docs/ when it is not installed. tests/e2e/test_sources.py installs and uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.errors import RecipeError
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.sources.base import check_spec

RECIPE = """
name: lines
source: {type: lists, path: ratings.txt}
schema: {user_column: user_id, item_column: item_id}
output: {path: lines.svc}
"""


def test_without_the_package_the_type_is_refused(tmp_path: Path) -> None:
    """The message lists the installed types."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(RecipeError, match=r"source\.type: 'lists' is not an installed source; .*csv, .*parquet"):
        load_recipe(tmp_path / "recipe.yaml", {}, settings=Settings(), check_source=check_spec)
