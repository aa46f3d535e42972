"""The tables of the report, cell by cell."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.fitting.trial import TrialRecord
from svc.training.report.sentences import NO_BREAK
from svc.training.report.tables import figure, parameters, tables

AT = {"ndcg": 0.1, "recall": 0.2, "hit": 0.3, "map": 0.4, "precision": 0.5}
COLD = {
    "n_held": 1234,
    "model": AT,
    "popularity": {"recall": 0.5, "ndcg": 0.4},
    "random": {"recall": 0.0, "ndcg": 0.0},
    "intervals": {"model": [0.1, 0.2]},
}
COMPARISON = {"candidate": 0.3, "other": 0.2, "change": 0.5, "interval": [0.25, 0.75], "n_users": 9}
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

MEASURED: dict[str, Any] = {
    **HEADER,
    "recency": 0.5,
    "data_stats": {
        "n_rows": 9,
        "n_users": 3,
        "n_items": 2,
        "n_interactions": 8,
        "n_heldout_interactions": 4,
        "drop_count": 7,
        "dropped_by_where": 5,
        "hidden_by_rule": 1,
        "density": 0.123456,
        "future_times": 6,
    },
    "tuning": {"best_per_algorithm": {"IALSRecommender": {"score": 0.2, "interval": [0.1, 0.3]}}},
    "parts": [{"answers": "everything", "class": "IALSRecommender", "score": 0.2, "bytes": 99, "params": {"reg": 0.5}}],
    "ranker": {
        "features": [
            {"name": "small", "group": "scores", "weight": 0.25},
            {"name": "large", "group": "labels", "weight": -1.5},
        ]
    },
    "promotion": {
        "against": [
            {**COMPARISON, "name": "incumbent", "scored": "live"},
            {**COMPARISON, "name": "TopPop", "scored": "refitted", "change": 1000.0},
        ],
        "guardrails": {
            "catalog_coverage": {**COMPARISON, "min_relative_change": -0.1, "passed": True},
            "rank_ms": {**COMPARISON, "change": 1.0, "max_relative_change": 0.5, "passed": False},
        },
    },
    "evaluation": {
        "ndcg": 0.1,
        "gini_index": 0.5,
        "confidence": 0.95,
        "n_users": 3,
        "interval": [0.05, 0.15],
        "cutoffs": {"5": {**AT, "map": 0.25}},
        "breakdown": [
            {"group": "all", "part": "all", "metric": "ndcg", "value": 0.1, "low": 0.05, "high": 0.15},
            {"group": "all", "part": "all", "metric": "hit", "value": 0.5, "low": None, "high": None},
            {"group": "activity", "part": "few", "metric": "recall", "value": 0.2, "low": 0.1, "high": 0.3},
        ],
        "diversity": {
            "values": [
                {"diversity": 0.0, "ndcg": 0.1, "interval": [0.05, 0.15], "distance": None, "coverage": 0.5},
                {"diversity": 0.3, "ndcg": 0.2, "interval": [0.1, 0.3], "distance": 0.25, "coverage": 0.75},
            ]
        },
        "recency": {
            "values": [
                {"recency": 0.0, "score": 0.1, "interval": [0.05, 0.15]},
                {"recency": 0.5, "score": 0.2, "interval": [0.1, 0.3]},
            ]
        },
        "cold_start": {"item": COLD, "user": COLD},
        "new_items": {
            "recall": 0.3,
            "popularity_recall": 0.1,
            "known_change": -0.01,
            "share": 0.2,
            "intervals": {"recall": [0.2, 0.4]},
        },
    },
}
EXPECTED: dict[str, list[list[object]]] = {
    "winner": [["ndcg", "0.1000 (0.0500 to 0.1500)"], ["inequality among items (Gini)", 0.5]],
    "comparisons": [
        [
            "the live model", "0.3000", 0.2, "+50.0% (+25.0% to +75.0%)", 9,
            "as it is served: it was trained before all that is held out",
        ],
        [
            "popularity", "0.3000", 0.2, "more than a thousandfold (+25.0% to +75.0%)", 9,
            "its class and parameters, trained on the same data as the new model",
        ],
    ],
    "guardrails": [
        ["catalog_coverage", 0.3, 0.2, "+50.0%", "at least -10.0%", "passes"],
        ["rank_ms", 0.3, 0.2, "+100.0%", "at most +50.0%", "refuses the model"],
    ],
    "parts": [["everything", "IALS", "0.2000 (0.1000 to 0.3000)", 99, "reg = 0.5"]],
    "runs": [
        ["trained", "2027-01-01 00:00:00 UTC", "2027-01-01 00:00:00 UTC"],
        ["winner", "IALS", "TopPop"],
        ["ndcg at its cutoff", "0.1000 (0.0500 to 0.1500)", "0.1000"],
        ["cutoff", 20, 10],
        ["rows", 9, 19],
        ["users", 3, 13],
        ["items", 2, 12],
        ["recipe", "abc", "old"],
    ],
    "breakdown": [
        ["everybody, 5 items", 0.1, 0.25, 0.2, 0.3],
        ["everybody, 5 items, earlier run", 0.1, 0.4, 0.2, 0.3],
        ["everybody, 20 items", "0.1000 (0.0500 to 0.1500)", "", "", "0.5000"],
        ["users with the shortest third of the histories", "", "", "0.2000 (0.1000 to 0.3000)", ""],
    ],
    "diversity": [["0", "0.1000 (0.0500 to 0.1500)", "", 0.5], ["0.3", "0.2000 (0.1000 to 0.3000)", 0.25, 0.75]],
    "recency": [["0", "0.1000 (0.0500 to 0.1500)"], ["0.5 (taken)", "0.2000 (0.1000 to 0.3000)"]],
    "weights": [["large", "labels", "-1.500"], ["small", "scores", "+0.250"]],
    "best": [
        ["IALS", "0.2000 (0.1000 to 0.3000)", 0.3, "1.5", "reg = 0.5"],
        ["TopPop", "0.0000", "", "0.5", "nothing to tune"],
    ],
    "data": [
        ["rows", 9],
        ["users", 3],
        ["items", 2],
        ["distinct user–item pairs", 8],
        ["held out for validation", 4],
        ["dropped by cleansing", 7],
        ["of these by cleansing.where", 5],
        ["of these hidden by cleansing.hide", 1],
        ["density", "12.3456%"],
    ],
    "cold_start": [
        ["item", "model", "1,234", 0.2, "0.1000 (0.1000 to 0.2000)"],
        ["item", "popularity", "1,234", 0.5, "0.4000"],
        ["item", "random", "1,234", 0.0, "0.0000"],
        ["user", "model", "1,234", 0.2, "0.1000 (0.1000 to 0.2000)"],
        ["user", "popularity", "1,234", 0.5, "0.4000"],
        ["user", "random", "1,234", 0.0, "0.0000"],
    ],
    "new_items": [
        ["of a user's new items, found on the page", "0.3000 (0.2000 to 0.4000)"],
        ["the same, new items by popularity of their features", "0.1000"],
        ["change of ndcg of known items", "-0.0100"],
        ["of a page, new items", "0.2000"],
    ],
}  # fmt: skip


def plain(cell: object) -> object:
    """Return a cell with ordinary spaces."""
    return cell.replace(NO_BREAK, " ") if isinstance(cell, str) else cell


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (12345, "12,345"),
        (12.0, "12"),
        (2.0, "2"),
        (1.0, "1.0000"),
        (-1.0, "-1.0000"),
        (0.12345, "0.1235"),
        (999.75, "999.7500"),
        (1000.25, "1,000.2"),
        (-1234.5, "-1,234.5"),
    ],
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
        "diversity",
        "recency",
        "new_items",
    } <= empty
    assert {"winner", "breakdown", "data", "cold_start"}.isdisjoint(empty)


def test_an_earlier_run_without_a_cutoff_adds_no_row() -> None:
    earlier = {**HEADER, "evaluation": {"cutoffs": {"10": AT}}}
    rows = tables(HEADER, "ndcg@20", [], earlier)["breakdown"].rows
    assert [row[0] for row in rows] == ["everybody, 5 items"]


def test_a_score_has_one_interval_on_the_page() -> None:
    """It is the corrected one of the search, also for a sample of all users and for the figures by group."""
    evaluation = {
        **MEASURED["evaluation"],
        "interval": [0.02, 0.18],
        "recency": {"values": [{"recency": 0.5, "score": 0.1, "interval": [0.05, 0.15]}]},
    }
    found = tables({**MEASURED, "evaluation": evaluation}, "ndcg@20", [], None)
    text = str([table.rows for table in found.values()]).replace("\\xa0", " ")
    assert text.count("0.1000 (0.0200 to 0.1800)") == 4
    assert "0.0500 to 0.1500" not in text


def test_a_measurement_that_was_skipped_has_the_reason() -> None:
    skipped = {"skipped": "too much work"}
    evaluation = {"new_items": skipped, "cold_start": {"item": skipped, "user": COLD}}
    found = tables({**HEADER, "evaluation": evaluation}, "ndcg@20", [], None)
    assert found["new_items"].rows[0][:2] == ("not measured", "too much work")
    skipped_side, measured_side = (row[:2] for row in found["cold_start"].rows[:2])
    assert (skipped_side, measured_side) == (("item", "not measured: too much work"), ("user", "model"))


def test_every_table_has_the_figures_of_the_header() -> None:
    """Scores are numbers, which the page formats. Names are in the words of the page."""
    best = [
        TrialRecord(1, "IALSRecommender", {"reg": 0.5}, "complete", 0.2, {"recall": 0.3}, None, 1.5),
        TrialRecord(0, "TopPopRecommender", {}, "complete", None, {}, None, 0.5),
    ]
    stats = {"n_rows": 19, "n_users": 13, "n_items": 12}
    changes = {"recipe_hash": "old", "cutoff": 10, "best_class": "TopPopRecommender", "data_stats": stats}
    found = tables(MEASURED, "ndcg@20", best, {**HEADER, **changes})
    assert {name: [[plain(cell) for cell in row] for row in table.rows] for name, table in found.items()} == EXPECTED
    for name, table in found.items():
        assert {len(row) for row in table.rows} == {len(table.columns)}, name


def test_the_recency_0_of_a_model_is_marked_too() -> None:
    """The row of the recency in use has the mark `(taken)`. A training without a report has no rows."""
    rows = tables({**MEASURED, "recency": 0.0}, "ndcg@20", [], None)["recency"].rows
    assert [row[0] for row in rows] == ["0 (taken)", "0.5"]
    assert not tables({**MEASURED, "evaluation": {}}, "ndcg@20", [], None)["recency"]
