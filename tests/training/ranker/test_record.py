"""The item record: popularity, neighbours and labels of the items of a small table."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from svc.model.ranker.item_record import NEIGHBOURS, ItemRecord
from svc.progress import Progress
from svc.recipe.training_schema import FeatureSide
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.data.features import FittedSide, fit_side
from svc.training.data.times import reference_time
from svc.training.ranker.record import DAY_NS, SHRINKAGE, item_record, item_tables, windows_within
from tests.model.ranker.records import require_fitting
from tests.training.runs import Make, features_of

USERS, ITEMS, DAYS = [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 2], [0.5, 100.0, 3.0, 8.0, 40.0, 89.0]
SHAPE = (4, 4)


def matrices() -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Return choices, and their times in nanoseconds before the reference time."""
    ages = np.array([-round(days * DAY_NS) for days in DAYS], dtype=np.int64)
    ones = np.ones(len(USERS), dtype=np.float32)
    return sparse.csr_matrix((ones, (USERS, ITEMS)), SHAPE), sparse.csr_matrix((ages, (USERS, ITEMS)), SHAPE)


def table() -> FittedSide:
    side = FeatureSide.model_validate(
        {
            "source": {"type": "csv", "path": "items.csv"},
            "id_column": "id",
            "columns": [{"name": "genres", "kind": "multi_label"}, {"name": "year", "kind": "numerical"}],
        }
    )
    frame = pd.DataFrame(
        {"id": ["a", "b", "c", "d"], "genres": ["x|y", "y", None, "z"], "year": [2000, 2010, None, 2005]}
    )
    return fit_side(frame, side, "item", ["a", "b", "c", "d"], Settings())


def record(windows: tuple[int, ...] = (7, 30, 90)) -> ItemRecord:
    matrix, ages = matrices()
    return item_record(matrix, ages, windows, (table(),))


def test_popularity_counts_users_over_all_time_and_within_windows() -> None:
    found = record()
    assert found.popularity_names == (
        "popularity", "popularity_7d", "popularity_30d", "popularity_90d", "since_last_choice"
    )  # fmt: skip
    expected = [
        [3, 2, 2, 3, 0.5],
        [2, 0, 1, 1, 8],
        [1, 0, 0, 1, 89],
        [0, 0, 0, 0, 89],  # never chosen: as long ago as choices usually are
    ]
    np.testing.assert_allclose(found.popularity, np.log1p(expected), rtol=1e-6)


def test_windows_longer_than_the_data_are_left_out() -> None:
    _, ages = matrices()
    ages.data[4] = -95 * DAY_NS
    assert windows_within(ages) == (7, 30, 90)
    ages.data //= 2
    assert windows_within(ages) == (7, 30)
    assert windows_within(None) == ()


@pytest.mark.parametrize("days", [27_000, 20, 0, -16_000], ids=["2099", "late", "at the end", "1970"])
def test_one_row_of_any_time_changes_only_the_record_of_its_own_item(days: int) -> None:
    """Windows, and the ages of items that others chose or nobody chose, stay the same."""
    rng = np.random.default_rng(3)
    n_users, n_items = 30, 12
    chosen = rng.random((n_users, n_items)) < 0.6
    chosen[:, [0, n_items - 1]] = False
    before = np.where(chosen, -rng.integers(1, 60, chosen.shape) * DAY_NS, 0)
    before[chosen.nonzero()[0][:4], chosen.nonzero()[1][:4]] = [0, 0, 0, -60 * DAY_NS]
    before[chosen.nonzero()[0][4:6], chosen.nonzero()[1][4:6]] = -60 * DAY_NS

    def of(users: np.ndarray, items: np.ndarray, times: np.ndarray) -> tuple[tuple[int, ...], ItemRecord]:
        reference = reference_time(times, 30_000 * DAY_NS)
        shape = (n_users, n_items)
        ones = np.ones(len(users), dtype=np.float32)
        matrix, ages = (sparse.csr_matrix((data, (users, items)), shape) for data in (ones, times - reference))
        return windows_within(ages), item_record(matrix, ages, windows_within(ages), ())

    users, items = chosen.nonzero()
    times = before[users, items]
    windows, plain = of(users, items, times)
    found_windows, found = of(np.append(users, 0), np.append(items, 0), np.append(times, days * DAY_NS))
    assert found_windows == windows == (7, 30)
    np.testing.assert_array_equal(found.popularity[1:], plain.popularity[1:])


def test_neighbours_are_the_other_items_with_the_largest_cosines() -> None:
    found = record()
    chosen = matrices()[0].toarray().T
    for item in range(4):
        cosines = {
            other: float(chosen[item] @ chosen[other])
            / (np.linalg.norm(chosen[item]) * np.linalg.norm(chosen[other]) + SHRINKAGE)
            for other in range(4)
            if other != item and chosen[item] @ chosen[other]
        }
        best = sorted(cosines, key=lambda other: (-cosines[other], other))
        padding = [4] * (NEIGHBOURS - len(best))
        assert found.neighbours[item].tolist() == best + padding
        similarities = [cosines[other] for other in best] + [0.0] * len(padding)
        assert found.similarities[item].tolist() == pytest.approx(similarities, abs=1e-5)


def test_labels_and_numbers_are_those_of_the_tables() -> None:
    found = record()
    assert (found.label_names, found.number_names) == (("genres",), ("year",))
    own = [found.label_parts[found.label_offsets[item] : found.label_offsets[item + 1]].tolist() for item in range(4)]
    assert own == [[0.5, 0.5], [1.0], [], [1.0]]
    years = found.numbers[:, 0].tolist()
    assert math.isnan(years[2])
    assert years[1] == -years[0] > 0
    assert years[3] == 0.0, "the mean is known"
    require_fitting(found, 4)


def test_without_times_and_tables_the_record_has_popularity_and_neighbours_only() -> None:
    found = item_record(matrices()[0], None, (), ())
    assert found.popularity_names == ("popularity",)
    assert not found.ordered
    assert (found.label_names, found.number_names) == ((), ())
    assert (found.numbers.shape, len(found.labels), found.label_offsets.tolist()) == ((4, 0), 0, [0] * 5)
    arrays = {name: value for name, value in vars(found).items() if isinstance(value, np.ndarray)}
    assert {name: array.dtype for name, array in arrays.items()} == {
        name: vars(record())[name].dtype for name in arrays
    }
    require_fitting(found, 4)


def test_a_column_of_two_tables_is_read_from_the_features(make_recipe: Make, items_csv: Path) -> None:
    source = {"type": "csv", "path": str(items_csv)}
    fields = [{"name": "group", "kind": "multi_label", "delimiter": "e"}, {"name": "size", "kind": "numerical"}]
    loaded = make_recipe(
        features=features_of(items_csv),
        item_metadata={"source": source, "id_column": "item_id", "filter_fields": fields},
    )
    data = fetch.load(loaded, Settings(), {}, Progress())
    record = item_record(data.interactions.matrix(), None, (), item_tables(loaded, data, Settings(), {}))
    assert record.label_names == ("group",)
    assert record.first_labels.tolist() == [0, 2]  # even and odd, not what a division at each e leaves
    assert record.number_names == ("size",)
    assert item_tables(make_recipe(), data, Settings(), {}) == (data.sides["item"],)
