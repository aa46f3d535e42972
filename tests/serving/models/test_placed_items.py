"""New items of a list, placed in a served model with vectors, metadata and filter fields."""

from __future__ import annotations

from pathlib import Path

from svc.model.ranking.rerank import Share
from svc.serving.models.placed_items import place_with_fragments
from tests.asking.test_item_lists import declared, listing
from tests.serving.client import model


def test_new_items_have_the_features_and_metadata_of_the_list(tmp_path: Path) -> None:
    """An item that the model knows is left out. The others keep their own features and metadata."""
    listed = listing(tmp_path, "age,item_id,tag,more\n20,i3,a,1\n,x,b,2\n33.5,007,,3\n")
    assert listed.ids == ("i3", "x", "007")
    assert listed.features == ({"tag": "a", "age": 20}, {"tag": "b", "age": None}, {"tag": None, "age": 33.5})
    placed = place_with_fragments(listed, model(), declared(max_share=0.5, min_share=0.1))
    assert placed.items.ids.all() == ["x", "007"]
    assert placed.items.share == Share(model().n_items, 0.5, 0.1)
    assert placed.fragments.describe(0) == b'{"item_id":"x","title":"First"}'
    assert placed.filters.items(("field", "title", (("any", ("First",)),))).columns().tolist() == [0]
    assert listing(tmp_path, "age,item_id,tag\n20,i3,a\n,x,b\n33.5,007,\n").digest == listed.digest
