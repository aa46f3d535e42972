"""What the report says of how certain its scores are."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.report.confidence import doubts, headline, lead_told, popularity_told

EVALUATION = {"confidence": 0.95, "interval": [0.1, 0.3], "n_scored_users": 500, "n_users": 900}
TEST = {"ndcg": 0.19, "n_scored_users": 120, "interval": [0.15, 0.25]}
LEAD = {"over": "TopPop", "change": 0.01, "interval": [-0.02, 0.04], "more_than_chance": False, "users": "validation"}


def header(**more: Any) -> dict[str, Any]:
    return {"metric": "ndcg", "best_score": 0.2, "evaluation": {**EVALUATION, **more}}


def test_the_headline_is_the_score_by_which_nothing_was_chosen() -> None:
    """That of test users where there are such; the validation score stands below it."""
    assert '<p class="score">0.2000 ' in headline(header(), "ndcg@20")
    told = headline(header(test=TEST), "ndcg@20")
    assert '<p class="score">0.1900 ' in told
    assert told.index("120 test users that no trial has seen") < told.index("0.2000 on the validation users")


@pytest.mark.parametrize(("among", "words"), [((40, 0), "among 40 trials"), ((38, 2), "among 40 trials"), ((1, 0), "")])
def test_an_interval_says_what_it_is_corrected_for(among: tuple[int, int], words: str) -> None:
    """And what it is not; a single trial was not chosen."""
    told = headline(header(chosen_among=dict(zip(("trials", "unknown"), among, strict=True))), "ndcg@20")
    assert words in told
    assert ("not corrected is" in told) == bool(words)


def test_headers_of_earlier_versions_are_told_without_it() -> None:
    """They say neither what an interval is corrected for nor on whom a lead was measured."""
    assert "corrected" not in headline(header(), "ndcg@20")
    old = {name: value for name, value in LEAD.items() if name != "users"}
    assert "(interval -0.0200 to 0.0400): no more than chance" in lead_told(header(lead=old), "ndcg@20")


def test_a_lead_says_on_whom_it_was_measured() -> None:
    """On the test users the winner may also be behind."""
    assert "corrected for the choice of both: no more" in lead_told(header(lead=LEAD), "ndcg@20")
    behind = {**LEAD, "change": -0.01, "users": "test"}
    assert "Behind TopPop by 0.0100 ndcg@20" in lead_told(header(lead=behind), "ndcg@20")
    assert "on the test users" in lead_told(header(lead=behind), "ndcg@20")
    assert lead_told(header(), "ndcg@20") == ""


def test_few_users_are_warned_of() -> None:
    """Of the test users, where there are such."""
    assert doubts(header()) == []
    assert "Only 199 users" in doubts(header(n_scored_users=199))[0]
    found = doubts(header(test=TEST, lead=LEAD))
    assert [text.split(":")[0] for text in found] == [
        "The winner's lead over TopPop may be chance.",
        "Only 120 users were scored",
    ]


def test_the_popularity_of_what_is_held_out_stands_beside_that_of_training() -> None:
    """Headers of earlier versions do not say it."""
    means = {"held_out": 1230.0, "trained": 1000.04}
    assert "1,230.0 training users in the mean, what trained 1,000.0" in popularity_told(header(mean_popularity=means))
    assert popularity_told(header()) == ""
