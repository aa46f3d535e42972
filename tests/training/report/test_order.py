"""The order of histories in the report."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.report.order import order_sentences, recency_rows

TIMED = {"schema": {"time_column": "ts"}}
TRIED = {
    "recency": {
        "n_users": 2000,
        "values": [
            {"recency": 0.0, "score": 0.1, "interval": [0.08, 0.12]},
            {"recency": 0.5, "score": 0.2, "interval": [0.18, 0.22]},
        ],
    }
}


def header(recipe: dict[str, Any], evaluation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"recipe": recipe, "best_class": "TopPopRecommender", "evaluation": evaluation or {}, **more}


def test_the_chosen_recency_is_marked() -> None:
    """This includes the value 0, which the header leaves out."""
    assert list(recency_rows(header(TIMED, TRIED, recency=0.5))) == [
        ("0", "0.1000", "0.0800 to 0.1200"),
        ("0.5 (taken)", "0.2000", "0.1800 to 0.2200"),
    ]
    assert [row[0] for row in recency_rows(header(TIMED, TRIED))] == ["0 (taken)", "0.5"]


def test_a_blend_with_recencies_by_part_has_an_additional_row() -> None:
    """The other rows have one recency for all parts."""
    of_parts = {"n_users": 2000, **TRIED["recency"], "by_part": {"score": 0.3, "interval": [0.28, 0.32]}}
    parts = [
        {"class": "RP3betaRecommender", "weight": 0.4, "recency": 0.5},
        {"class": "IALSRecommender", "weight": 0.6},
        {"class": "IALSRecommender", "recency": 2.0},
    ]
    head = header(TIMED, {"recency": of_parts}, recency=0.5, parts=parts)
    assert list(recency_rows(head))[1:] == [
        ("0.5", "0.2000", "0.1800 to 0.2200"),
        ("of each part (taken)", "0.3000", "0.2800 to 0.3200"),
    ]
    assert "each part of the blend: RP3beta 0.5, IALS 0. Judged on 2,000" in order_sentences(head)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (header(TIMED, TRIED, recency=0.5), "multiplies by 0.607 (recency 0.5). Judged on 2,000 validation users"),
        (header({"schema": {}}), "could not be judged: the recipe names no <code>schema.time_column"),
        (header(TIMED), "could not be judged: <code>split.scheme: random</code> holds out items from anywhere"),
        (header({**TIMED, "training": {"recency": "off"}}), "<code>training.recency: off</code>"),
        (header({**TIMED, "training": {"recency": 0.7}}, recency=0.7), "<code>training.recency: 0.7</code>"),
        (header({**TIMED, "training": {"split": {"scheme": "time_user"}}}), "do not follow from a history alone"),
        (
            header({**TIMED, "training": {"split": {"scheme": "time_user"}}}, best_class="IALSRecommender"),
            "The search compared the values",
        ),
    ],
)
def test_the_reason_for_the_recency_is_one_sentence(head: dict[str, Any], words: str) -> None:
    """Each reason has its own sentence."""
    assert words in order_sentences(head)
