"""A minimal recipe for tests, and functions that load variations of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from svc.errors import RecipeError
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.settings import Settings

BASE: dict[str, Any] = {
    "name": "movies",
    "source": {"type": "csv", "path": "data/ratings.csv"},
    "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
    "output": {"path": "artifacts/movies.svc"},
}
METADATA = {
    "source": {"type": "csv", "path": "data/items.csv"},
    "id_column": "item_id",
    "fields": ["title"],
    "filter_fields": [{"name": "genres", "kind": "multi_label"}, {"name": "year", "kind": "numerical"}],
}
AVAILABILITY = {"source": {"type": "csv", "path": "s3://shop/list.csv"}, "id_column": "item_id", "mode": "allow"}


def load(folder: Path, more: dict[str, Any] | str | None = None, **options: Any) -> LoadedRecipe:
    """Load BASE updated with `more`, or the recipe text `more`."""
    path = folder / "recipe.yaml"
    text = more if isinstance(more, str) else yaml.safe_dump({**BASE, **(more or {})})
    path.write_text(text, encoding="utf-8")
    settings = options.pop("settings", Settings())
    return load_recipe(path, options.pop("variables", {}), settings=settings, **options)


def refusal(folder: Path, more: dict[str, Any] | str, **options: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        load(folder, more, **options)
    return caught.value.message
