"""The comparison of the ids of a metadata table with the items of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.errors import MetadataError
from svc.settings import Settings
from svc.training.data.metadata_doubts import metadata_doubts
from tests.training.runs import Make


def test_ids_with_a_fault_are_named_beside_the_counts(make_recipe: Make, tmp_path: Path) -> None:
    """Quote marks or decimals may be the reason that ids differ. Without a table or items there is nothing to say."""
    assert [*metadata_doubts(make_recipe(), Settings(), {}, ["i1"])] == []
    (tmp_path / "items.csv").write_text('item_id,title\n"""i1""",a\n2.0,b\ni3,c\n', encoding="utf-8")
    metadata = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "item_id", "fields": ["title"]}
    recipe = make_recipe(item_metadata=metadata)
    assert [*metadata_doubts(recipe, Settings(), {}, [])] == []
    assert [*metadata_doubts(recipe, Settings(), {}, ["i3", "i4"])] == []
    (doubt,) = metadata_doubts(recipe, Settings(), {}, ["i3", "i4", "i5"])
    assert doubt.code == "metadata_few_items"
    assert "has 1 of 3 items" in doubt.message
    assert "ids with quote marks, such as '\"i1\"'" in doubt.message
    with pytest.raises(MetadataError, match=r"`source.dtype: \{item_id: int\}`"):
        list(metadata_doubts(recipe, Settings(), {}, ["9"]))
