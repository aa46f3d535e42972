"""The names of the ranker's features, and the labels of items."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranker.item_record import has_no_label, label_columns, names
from tests.model.ranker.records import plain_features, random_record, require_fitting


@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_names_are_those_of_the_features_computed_one_by_one(ordered: bool, tables: bool) -> None:
    record = random_record(np.random.default_rng(3), 30, ordered=ordered, tables=tables)
    require_fitting(record, 30)
    assert sorted(feature.name for feature in names(record)) == sorted(plain_features(record, [1, 2], [3, 4], [1, 0]))


def test_an_item_without_a_label_is_told_for_each_column() -> None:
    record = random_record(np.random.default_rng(3), 30)
    columns = label_columns(record)
    assert columns.tolist() == [0] * 5 + [1] * 3
    for item, is_missing in enumerate(has_no_label(record).tolist()):
        own = record.labels[record.label_offsets[item] : record.label_offsets[item + 1]]
        assert is_missing == [column not in columns[own] for column in (0, 1)]
