"""The side tables of a recipe: their defaults, and messages for invalid fields."""

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


def with_column(**column: Any) -> dict[str, Any]:
    """Return a recipe block with this feature column."""
    return {"features": {"item": {**FEATURES, "columns": [{"name": "about", **column}]}}}


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"item_metadata": {**METADATA, "fields": [], "filter_fields": []}}, "needs `fields`, `filter_fields` or both"),
    ({"item_metadata": {**METADATA, "filter_fields": [{"name": "any", "kind": "numerical"}]}}, "a word of filters"),
    ({"item_metadata": {**METADATA, "filter_fields": METADATA["filter_fields"] * 2}}, "names 'genres' twice"),
    ({"item_metadata": {**METADATA, "fields": ["title", "score"]}}, "names 'score', which every answer already has"),
    ({"features": {"item": {**FEATURES, "columns": FEATURES["columns"] * 2}}}, "names 'year' twice"),
    ({"features": {"item": {**FEATURES, "columns": []}}}, "features.item.columns"),
    ({"features": {}}, "needs `item`, `user` or both"),
    (with_column(kind="vector"), "kind vector needs `dimensions`"),
    (with_column(kind="vector", dimensions=5000), "features.item.columns[0].dimensions"),
    (with_column(kind="text", min_frequency=3), "min_frequency is for kind"),
    (with_column(kind="text", max_words=40_000), "features.item.columns[0].max_words"),
    (with_column(kind="text", analyzer="stem"), "features.item.columns[0].analyzer"),
    (with_column(kind="numerical", min_items=3), "min_items is for kind text, not for numerical"),
]


@pytest.mark.parametrize(("more", "words"), PROBLEMS)
def test_invalid_side_tables_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """The message names the place and the reason."""
    assert words in refusal(tmp_path, more)


def test_fields_may_be_empty_with_filter_fields(tmp_path: Path) -> None:
    """The metadata table may be for filters only."""
    recipe = load(tmp_path, {"item_metadata": {**METADATA, "fields": []}}).recipe
    assert recipe.item_metadata is not None
    assert recipe.filter_kinds == {"genres": "multi_label", "year": "numerical"}


def test_texts_and_vectors_have_defaults(tmp_path: Path) -> None:
    """The defaults of text and vector columns do not change the hash."""
    block = load(tmp_path, with_column(kind="text")).recipe.features
    assert block is not None and block.item is not None
    text = block.item.columns[0]
    assert (text.max_words, text.min_items, text.analyzer) == (8192, 2, "word")
    spelled = with_column(kind="text", max_words=8192, min_items=2, analyzer="word")
    assert load(tmp_path, spelled).recipe_hash == load(tmp_path, with_column(kind="text")).recipe_hash
    assert load(tmp_path, with_column(kind="vector", dimensions=4096)).recipe.features is not None
