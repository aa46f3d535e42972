"""The tables of the report, cell by cell."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.report.tables import figure, parameters, tables

AT = {"ndcg": 0.1, "recall": 0.2, "hit": 0.3, "map": 0.4, "precision": 0.5}
HEADER: dict[str, Any] = {
    "metric": "ndcg",
    "cutoff": 20,
    "trained_at": "2027-01-01T00:00:00Z",
    "best_class": "IALSRecommender",
    "recipe_hash": "abc",
    "tuning": {"best_per_algorithm": {}},
    "data_stats": {"n_rows": 9, "n_users": 3, "n_items": 2, "density": 0.5},
    "evaluation": {
        "ndcg": 0.1,
        "confidence": 0.95,
        "cutoffs": {"5": AT},
        "cold_start": {
            "item": {"skipped": "too much work"},
            "user": {"n_held": 4, "model": AT, "popularity": AT, "random": AT, "intervals": {"model": [0.1, 0.2]}},
        },
    },
}


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (12345, "12,345"), (12.0, "12"), (1.0, "1.0000"), (0.12345, "0.1235"), (1234.5, "1,234.5")],
)
def test_numbers_are_shown_with_four_digits_or_whole(value: float, text: str) -> None:
    """1.0 may be a score, so it keeps its decimals."""
    assert figure(value) == text


def test_parameters_are_shown_on_one_line() -> None:
    assert parameters({"alpha": 0.1234567, "n": 3}) == "alpha = 0.123457, n = 3"
    assert parameters({}) == "nothing to tune"


def test_a_table_without_rows_is_left_out() -> None:
    """The page has no card for figures that were not measured."""
    empty = {name for name, table in tables(HEADER, "ndcg@20", [], None).items() if not table}
    assert {
        "comparisons",
        "guardrails",
        "parts",
        "runs",
        "breakdown",
        "diversity",
        "recency",
        "new_items",
    } <= empty
    assert {"winner", "cutoffs", "data", "cold_start"}.isdisjoint(empty)


def test_an_earlier_run_adds_its_columns() -> None:
    """A row has the cutoffs of both runs. A cell is empty if the earlier run lacks the figure."""
    table = tables(HEADER, "ndcg@20", [], {**HEADER, "evaluation": {"cutoffs": {"10": AT}}})["cutoffs"]
    assert len(table.columns) == len(table.rows[0])
    assert list(table.columns)[-1].endswith(", earlier")
    assert table.rows[0][-1] == ""


def test_cold_start_rows_compare_the_model_with_popularity_and_chance() -> None:
    """A side that was not measured has the reason."""
    rows = tables(HEADER, "ndcg@20", [], None)["cold_start"].rows
    assert rows[0][:3] == ("item", "not measured", "too much work")
    assert [row[1] for row in rows[1:]] == ["model", "popularity", "random"]
    assert rows[1][-1] == "0.1000 to 0.2000"
    assert rows[2][-1] == ""


def test_new_items_have_their_intervals_or_the_reason_why_they_were_skipped() -> None:
    figures = {"recall": 0.3, "popularity_recall": 0.1, "known_change": -0.01, "share": 0.2}
    measured = {**figures, "intervals": {"recall": [0.2, 0.4]}}
    rows = tables({**HEADER, "evaluation": {"new_items": measured}}, "ndcg@20", [], None)["new_items"].rows
    assert [row[1] for row in rows] == list(figures.values())
    assert [row[2] for row in rows] == ["0.2000 to 0.4000", "", "", ""]
    skipped = {**HEADER, "evaluation": {"new_items": {"skipped": "too much work"}}}
    assert tables(skipped, "ndcg@20", [], None)["new_items"].rows[0][:2] == ("not measured", "too much work")
