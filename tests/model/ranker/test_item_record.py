"""Records that do not belong to their model are refused."""

from __future__ import annotations

import numpy as np
import pytest

from svc.errors import PayloadInvalid
from tests.model.ranker.records import random_ranker, random_record


@pytest.mark.parametrize(
    "name",
    ["popularity", "neighbours", "similarities", "first_labels", "label_offsets", "label_parts", "numbers"],
)
def test_an_array_of_another_length_is_refused_by_its_name(name: str) -> None:
    record = random_record(np.random.default_rng(3), 30)
    record.check(30)
    setattr(record, name, getattr(record, name)[:-1])
    with pytest.raises(PayloadInvalid, match=f"ranker's {name} "):
        record.check(30)


def test_ids_outside_of_their_range_are_refused() -> None:
    for name, value in (("neighbours", 31), ("labels", 8), ("label_offsets", -1)):
        record = random_record(np.random.default_rng(3), 30)
        changed = getattr(record, name).copy()
        changed.flat[0] = value
        setattr(record, name, changed)
        with pytest.raises(PayloadInvalid, match=f"ranker's {name} "):
            record.check(30)


def test_a_ranker_without_a_weight_for_each_feature_is_refused() -> None:
    ranker = random_ranker(np.random.default_rng(4), 30)
    ranker.check(30)
    ranker.means = ranker.means[:-1]
    with pytest.raises(PayloadInvalid, match="features and numbers for"):
        ranker.check(30)
