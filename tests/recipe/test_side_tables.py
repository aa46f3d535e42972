"""What a recipe says about the tables beside the interactions, and what of it makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recipe.loading import METADATA, load, refusal

FEATURES = {
    "source": {"type": "csv", "path": "films.csv"},
    "id_column": "film",
    "columns": [{"name": "year", "kind": "numerical"}],
}

PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"item_metadata": {**METADATA, "fields": [], "filter_fields": []}}, "needs `fields`, `filter_fields` or both"),
    ({"item_metadata": {**METADATA, "filter_fields": [{"name": "any", "kind": "numerical"}]}}, "a word of filters"),
    ({"item_metadata": {**METADATA, "filter_fields": METADATA["filter_fields"] * 2}}, "names 'genres' twice"),
    ({"item_metadata": {**METADATA, "fields": ["title", "score"]}}, "names 'score', which every answer already has"),
    ({"features": {"item": {**FEATURES, "columns": FEATURES["columns"] * 2}}}, "names 'year' twice"),
    ({"features": {"item": {**FEATURES, "columns": []}}}, "features.item.columns"),
    ({"features": {}}, "needs `item`, `user` or both"),
]


@pytest.mark.parametrize(("more", "words"), PROBLEMS)
def test_wrong_side_tables_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """With the place of what is wrong."""
    assert words in refusal(tmp_path, more)


def test_fields_may_be_empty_when_there_are_filter_fields(tmp_path: Path) -> None:
    """A table may serve filters alone."""
    recipe = load(tmp_path, {"item_metadata": {**METADATA, "fields": []}}).recipe
    assert recipe.item_metadata is not None
    assert recipe.filter_kinds == {"genres": "multi_label", "year": "numerical"}
