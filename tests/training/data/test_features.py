"""Encoding of feature tables, and the check of their first rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from svc.errors import FeatureAxisError, FeatureDimensionExceeded, FeatureTableError
from svc.recipe.training_schema import FeatureSide
from svc.settings import Settings
from svc.training.data.features import fit_side, sample_warnings


def side(*columns: dict[str, Any]) -> FeatureSide:
    return FeatureSide.model_validate(
        {"source": {"type": "csv", "path": "x.csv"}, "id_column": "id", "columns": list(columns)}
    )


GENRES = {"name": "genres", "kind": "multi_label"}
YEAR = {"name": "year", "kind": "numerical"}
TABLE = pd.DataFrame(
    {
        "id": pd.Categorical(["a", "b", "c", "a", " ", None]),
        "genres": pd.Categorical(["Action|Drama", "Drama", None, "Comedy", "Horror", "Horror"]),
        "year": [1990.0, 2000.0, 2010.0, 1.0, 2.0, 3.0],
    }
)


def test_encoded_rows_are_in_the_order_of_the_ids() -> None:
    """An id without a row has only the constant. The values equal those that a server encodes."""
    fitted = fit_side(TABLE, side(GENRES, YEAR), "item", ["b", "zz", "a"], Settings())
    assert fitted.encoder.columns == ("genres", "year")
    assert fitted.encoder.dim == 4
    dense = fitted.matrix.toarray()
    assert dense[1].tolist() == [0, 0, 0, 1]
    served, _ = fitted.encoder.encode({"genres": "Action|Drama", "year": 1990})
    np.testing.assert_allclose(dense[2], served, rtol=1e-6)


def test_repeated_and_blank_ids_are_dropped_with_counts(log: list[dict[str, Any]]) -> None:
    """The first row of an id counts. Dropped rows add nothing to the vocabulary."""
    fitted = fit_side(TABLE, side(GENRES), "item", ["a"], Settings())
    dropped = next(record for record in log if record["event"] == "feature_rows_dropped")
    assert (dropped["duplicates"], dropped["blank_ids"]) == (1, 2)
    assert fitted.encoder.encoders[0].width == 2


def test_the_vocabulary_comes_from_the_whole_table() -> None:
    """The vocabulary includes tokens of items that no user has chosen."""
    fitted = fit_side(TABLE, side(GENRES), "item", ["b"], Settings())
    vector, _ = fitted.encoder.encode({"genres": "Action"})
    assert vector.sum() == 2


def test_partial_coverage_of_the_ids_is_logged_and_allowed(log: list[dict[str, Any]]) -> None:
    """A table is an error only if it has no id of the interactions."""
    fit_side(TABLE, side(YEAR), "item", ["a", "x", "y"], Settings())
    record = next(record for record in log if record["event"] == "feature_axis_coverage")
    assert (record["side"], record["matched"], record["total"]) == ("item", 1, 3)


def test_no_overlap_shows_ids_of_both_sides() -> None:
    """The message shows ids of both tables, such as integers that became floats."""
    table = TABLE.assign(id=pd.Categorical(["1.0", "2.0", "3.0", "4.0", "5.0", "6.0"]))
    with pytest.raises(FeatureAxisError, match=r"'1', '2'.*'1.0', '2.0'.*pinned to str"):
        fit_side(table, side(YEAR), "item", ["1", "2"], Settings())


def test_a_table_of_constant_columns_is_refused() -> None:
    """A constant column is allowed beside a column that varies."""
    table = TABLE.assign(country="se", year=7.0)
    country = {"name": "country", "kind": "categorical"}
    with pytest.raises(FeatureTableError, match="every declared column is constant"):
        fit_side(table, side(country, YEAR), "item", ["a", "b"], Settings())
    assert fit_side(table, side(country, GENRES), "item", ["a", "b"], Settings()).encoder.dim == 4


def test_a_table_without_any_signal_is_refused(log: list[dict[str, Any]]) -> None:
    """Each column without signal causes an event: all its tokens are pruned, or its number is constant."""
    table = TABLE.assign(year=7.0)
    with pytest.raises(FeatureTableError, match="min_frequency"):
        fit_side(table, side({**GENRES, "min_frequency": 50}, YEAR), "item", ["a"], Settings())
    empty = [record["column"] for record in log if record["event"] == "feature_empty_vocabulary_column"]
    assert empty == ["genres", "year"]


def test_heavy_pruning_causes_a_warning(log: list[dict[str, Any]]) -> None:
    """The warning has all counts. It is logged if 20% or more of the rows have no signal."""
    fit_side(TABLE, side({**GENRES, "min_frequency": 2}), "item", ["a"], Settings())
    record = next(record for record in log if record["event"] == "feature_vocabulary_pruned")
    assert (record["min_frequency"], record["distinct_values"], record["kept_values"]) == (2, 2, 1)
    assert (record["rows_without_signal"], record["n_rows"]) == (1, 3)
    log.clear()
    fit_side(TABLE, side({**GENRES, "kind": "text", "min_items": 2}), "item", ["a"], Settings())
    assert [record["rows_without_signal"] for record in log if record["event"] == "feature_vocabulary_pruned"] == [1]


def test_too_wide_a_side_is_refused_before_it_is_built() -> None:
    """The limit applies to each side. The message names the widest column."""
    table = pd.DataFrame({"id": pd.Categorical([str(i) for i in range(100)]), "tag": [f"t{i}" for i in range(100)]})
    tags = {"name": "tag", "kind": "categorical"}
    with pytest.raises(FeatureDimensionExceeded, match="'tag'"):
        fit_side(table, side(tags), "item", ["1"], Settings(max_feature_dim=50))
    with pytest.raises(FeatureDimensionExceeded, match=r"101 is above.*'tag'"):
        fit_side(table, side(tags), "item", ["1"], Settings(max_feature_dim=100))


def test_numbers_in_text_columns_are_read() -> None:
    """A numerical column of texts is standardized. A text that is no number counts as missing."""
    table = TABLE.assign(year=pd.Categorical(["1990", "2000", "n/a", "1", "2", "3"]))
    fitted = fit_side(table, side(YEAR), "item", ["a", "b", "c"], Settings())
    np.testing.assert_allclose(fitted.matrix.toarray()[:, 0], [-1, 1, 0])


TITLE = {"name": "title", "kind": "text"}
POINT = {"name": "point", "kind": "vector", "dimensions": 2}


def report_of(*columns: dict[str, Any], **values: list[Any]) -> str:
    frame = pd.DataFrame({"id": [f"i{number}" for number in range(4)], **values})
    return "\n".join(sample_warnings(side(*columns), "item", frame))


def test_plain_text_in_any_script_causes_no_warning() -> None:
    assert not report_of(
        TITLE, POINT, title=["old sea", "the sea < 3", "人民 & 🦆", None], point=["1|2", None, [3, 4], "5|6"]
    )


def test_markup_and_repeated_ids_cause_warnings() -> None:
    """The warnings name the row and the first repeated id."""
    report = report_of(TITLE, title=["old", "<p class='x'>sea</p>", "fish &amp; chips", "sea"], id=["a", "b", "a", "c"])
    assert "warning: title: 2 of the first 4 texts hold markup, such as row 2" in report
    assert "id 'a' occurs more than once in the first 4 rows, as do 0 others: the first row of an id counts" in report


def test_texts_in_a_numerical_column_cause_a_warning() -> None:
    """Numbers as texts, placeholders, booleans and missing cells cause none."""
    report = report_of(YEAR, year=["1,990", "8,5", "7.5", None])
    assert "2 cells of 'year' are no numbers and count as missing, such as '1,990': write numbers with a poi" in report
    for cells in (["1", " 2.5", "n/a", " "], [True, None, False, 3], [1.0, 2.0, float("nan"), 3.0]):
        assert not report_of(YEAR, year=cells)


def test_the_check_raises_the_error_of_a_training() -> None:
    """The error names the column and the row."""
    with pytest.raises(FeatureTableError, match="row 3 of the table: feature 'point': the vector has 1 numbers"):
        report_of(POINT, point=["1|2", None, "5", "1"])
