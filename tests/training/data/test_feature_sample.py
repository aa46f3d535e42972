"""The report of `svc validate` on texts and vectors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from svc.errors import FeatureTableError
from svc.training.data.feature_sample import described_sample
from tests.training.data.test_features import side

TITLE = {"name": "title", "kind": "text"}
POINT = {"name": "point", "kind": "vector", "dimensions": 2}


def report_of(*columns: dict[str, Any], **values: list[Any]) -> str:
    frame = pd.DataFrame({"id": [f"i{number}" for number in range(4)], **values})
    return "\n".join(described_sample(side(*columns), "item", frame))


def test_words_and_vectors_of_the_first_rows_are_counted() -> None:
    """Plain texts in any script cause no warning."""
    report = report_of(
        TITLE, POINT, title=["old sea", "the sea < 3", "人民 & 🦆", None], point=["1|2", None, [3, 4], "5|6"]
    )
    assert "title: of 5 words in the first 4 rows 1 would be kept, those of at least 2 rows; 2 rows have none" in report
    assert "point: 3 of the first 4 rows have a vector" in report
    assert "warning" not in report


def test_markup_and_repeated_ids_cause_warnings() -> None:
    """They have the row, and the first id."""
    report = report_of(TITLE, title=["old", "<p class='x'>sea</p>", "fish &amp; chips", "sea"], id=["a", "b", "a", "c"])
    assert "warning: title: 2 of the first 4 texts hold markup, such as row 2" in report
    assert (
        "id 'a' is there more than once in the first 4 rows, as are 0 others: the first row of an id counts" in report
    )


def test_an_error_of_a_training_is_an_error_of_the_check() -> None:
    """It has column and row."""
    with pytest.raises(FeatureTableError, match="row 3 of the table: feature 'point': the vector has 1 numbers"):
        report_of(POINT, point=["1|2", None, "5", "1"])
