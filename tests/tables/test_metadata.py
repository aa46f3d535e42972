"""Tables of metadata that describe other items than those of the model."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import structlog
import yaml

import svc
from svc.errors import UsageError
from svc.recipe.serving_schema import FilterField
from svc.training.data.doubts import label_doubts
from tests.serving.live import live
from tests.tables.tables import KEYS, SPLIT, TRAINING, both_accept, both_refuse, choices, tried, write_csv

ITEMS = [f"i{number}" for number in range(12)]


def metadata(folder: Path, ids: list[str], id_column: str = "item_id") -> dict[str, Any]:
    rows = [(item, f"b{number}", f"title {number}") for number, item in enumerate(ids)]
    write_csv(folder / "items.csv", rows, "item_id,book_id,title")
    return {"source": {"type": "csv", "path": "items.csv"}, "id_column": id_column, "fields": ["title"]}


@pytest.mark.parametrize(("n_found", "warns"), [(5, True), (6, False), (12, False)])
def test_metadata_of_few_items_is_named_with_both_counts(tmp_path: Path, n_found: int, *, warns: bool) -> None:
    """Half of the items are enough."""
    write_csv(tmp_path / "rows.csv", choices())
    result = tried(tmp_path, item_metadata=metadata(tmp_path, [*ITEMS[:n_found], "x1", "x2"]))
    both_accept(result)
    assert result.is_silent("metadata_few_items") is not warns
    if warns:
        assert f"item_metadata has {n_found} of 12 items" in result.hint("metadata_few_items")


def test_metadata_by_the_wrong_id_column_is_refused(tmp_path: Path) -> None:
    """The column that the error asks for makes it go away."""
    write_csv(tmp_path / "rows.csv", choices())
    error = both_refuse(tried(tmp_path, item_metadata=metadata(tmp_path, ITEMS, "book_id")))
    assert "item_metadata has 0 of 12 items" in error
    assert "items are such as 'i0', and book_id has such as 'b0'; set item_metadata.id_column" in error
    both_accept(tried(tmp_path, item_metadata=metadata(tmp_path, ITEMS)))


def test_old_items_at_the_beginning_may_have_left_the_metadata(tmp_path: Path) -> None:
    """The first rows alone would give a warning that is wrong, so all rows are read."""
    old = [(f"u{row % 200}", f"old{row % 9}") for row in range(1500)]
    write_csv(tmp_path / "rows.csv", old + choices())
    result = tried(tmp_path, item_metadata=metadata(tmp_path, ITEMS))
    both_accept(result)
    assert result.is_silent("metadata_few_items")
    assert not [line for line in result.checks if "item_metadata has" in line]


def test_metadata_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A server that starts with this recipe would refuse it too."""
    write_csv(tmp_path / "rows.csv", choices())
    declared = metadata(tmp_path, ITEMS)
    (tmp_path / "items.csv").unlink()
    assert "items.csv" in both_refuse(tried(tmp_path, item_metadata=declared))


def test_a_server_tells_of_few_items_at_the_load_and_in_health(tmp_path: Path) -> None:
    """Both counts are in `artifact_loaded` and in `/v1/health/details`, also for metadata of other items only."""
    write_csv(tmp_path / "rows.csv", choices())
    both_accept(tried(tmp_path, item_metadata=metadata(tmp_path, ITEMS[:5])))
    for n_found in (5, 0, 6):
        metadata(tmp_path, [*ITEMS[:n_found], "x1"])
        counts = {"n_found": n_found, "n_items": 12} if n_found < 6 else None
        with live(tmp_path, {"SVC_SIGNING_KEYS": KEYS}) as server:
            assert server.recipe("shop").get("metadata_few_items") == counts
            assert server.wait_for("artifact_loaded").get("metadata_few_items") == counts


def test_a_frame_of_other_items_is_named_in_python() -> None:
    """`svc.train` refuses a frame with none of the items before it trains."""
    rows = pd.DataFrame(choices(), columns=["user_id", "item_id"])
    training = {**TRAINING, "split": SPLIT}
    few = pd.DataFrame({"item_id": [*ITEMS[:2], "x"], "title": "a"})
    with structlog.testing.capture_logs() as log:
        model = svc.train(rows, items=few, keys=KEYS, progress=False, **training).recommender
    (warning,) = [record["message"] for record in log if record.get("code") == "metadata_few_items"]
    assert warning.startswith("items: the table has 2 of 12 items")
    assert model.n_items == 12
    with pytest.raises(UsageError, match="none of the items"):
        svc.train(rows, items=few.tail(1), keys=KEYS, progress=False, **training)


GENRES = ["Comedy", "Drama", "Crime", "Film-Noir"]


def of_labels(folder: Path, cells: list[str], field: str, line: dict[str, Any]) -> dict[str, Any]:
    """Return the block of a recipe that declares the column `genres` by `line` as a feature or a filter field."""
    rows = [(f"i{number}", f'"{cell}"') for number, cell in enumerate(cells)]
    write_csv(folder / "items.csv", rows, "item_id,genres")
    table = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "item_id"}
    if field == "item_metadata.filter_fields":
        return {"item_metadata": {**table, "fields": ["genres"], "filter_fields": [line]}}
    return {"features": {"item": {**table, "columns": [line]}}, "training": {**TRAINING, "algorithms": ["IALS"]}}


@pytest.mark.parametrize(
    ("delimiter", "declared"),
    [
        *((delimiter, {"kind": "categorical"}) for delimiter in ("|", ";", ",", "/", ", ")),
        ("|", {"kind": "multi_label", "delimiter": ","}),
    ],
)
@pytest.mark.parametrize("field", ["features.item.columns", "item_metadata.filter_fields"])
def test_labels_within_cells_are_named_with_the_line_to_write(
    tmp_path: Path, field: str, delimiter: str, declared: dict[str, str]
) -> None:
    """The line makes the hint go away, and the cells become their labels. A delimiter that no cell has is one too."""
    write_csv(tmp_path / "rows.csv", choices())
    cells = [delimiter.join(chosen) for n in (1, 2) for chosen in combinations(GENRES, n)]
    plain = {"name": "genres", **declared}
    result = tried(tmp_path, **of_labels(tmp_path, [*cells, GENRES[0], cells[-1]], field, plain))
    both_accept(result)
    hint = result.hint("labels_within_cells")
    assert f"in {field} splits it" in hint
    line = yaml.safe_load(hint.split("`")[1])
    assert line == {"name": "genres", "kind": "multi_label", "delimiter": delimiter.strip()}
    mended = tried(tmp_path, **of_labels(tmp_path, cells, field, line))
    assert mended.is_silent("labels_within_cells")
    assert not [check for check in mended.checks if "multi_label" in check]
    both_accept(mended)
    if field == "item_metadata.filter_fields":
        with live(tmp_path, {"SVC_SIGNING_KEYS": KEYS}) as server:
            answer = server.recommend("shop", "u1", filter={"genres": {"any": ["Crime"]}}).json()
        assert {item["genres"] for item in answer["items"]} <= {cell for cell in cells if "Crime" in cell}
        assert answer["items"]


@pytest.mark.parametrize(
    "cells",
    [
        GENRES,
        ["", "Crime", " Crime", ""],
        [f"2024/{month:02}/{day:02}" for month, day in product(range(1, 13), range(1, 29))],
        [f"Town {number}, {state}" for number, state in enumerate(["TX", "CA", "NY"] * 30)],
        [f"['{first}', '{second}']" for first, second in combinations("abcdefgh", 2)],
        [["Crime", "Drama"], None, 3.5],
        [f"{whole},{part}" for whole, part in product(range(9), range(9))],
    ],
)
def test_other_cells_have_no_hint_of_labels(cells: list[Any]) -> None:
    """Dates, names with a comma, lists in the form of Python and decimals are no labels between delimiters.

    Neither are blank cells, nor cells that differ by blanks at an end.
    """
    columns = [FilterField(name="genres", kind="categorical")]
    assert not [*label_doubts(pd.DataFrame({"genres": cells}), columns, "item_metadata.filter_fields")]
