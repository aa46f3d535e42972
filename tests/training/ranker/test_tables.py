"""The tables of labels and numbers for the ranker."""

from __future__ import annotations

from pathlib import Path

from svc.progress import Progress
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.ranker.record import item_record
from svc.training.ranker.tables import item_tables
from tests.training.judging.gated import Make


def test_a_column_of_two_tables_is_read_from_the_features(make_recipe: Make, items_csv: Path) -> None:
    source = {"type": "csv", "path": str(items_csv)}
    fields = [{"name": "group", "kind": "multi_label", "delimiter": "e"}, {"name": "size", "kind": "numerical"}]
    loaded = make_recipe(
        features={
            "item": {"source": source, "id_column": "item_id", "columns": [{"name": "group", "kind": "categorical"}]}
        },
        item_metadata={"source": source, "id_column": "item_id", "filter_fields": fields},
    )
    data = fetch.load(loaded, Settings(), {}, Progress())
    record = item_record(data.interactions.matrix(), None, (), item_tables(loaded, data, Settings(), {}))
    assert record.label_names == ("group",)
    assert record.first_labels.tolist() == [0, 2]  # even and odd, not what a division at each e leaves
    assert record.number_names == ("size",)
    assert item_tables(make_recipe(), data, Settings(), {}).sides == (data.sides["item"],)
