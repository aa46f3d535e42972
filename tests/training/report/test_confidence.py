"""The report's texts about the certainty of scores."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.report.confidence import doubts, headline, lead_sentences, popularity_sentences, warnings

EVALUATION = {"confidence": 0.95, "interval": [0.1, 0.3], "n_scored_users": 500, "n_users": 900}
TEST = {"ndcg": 0.19, "n_scored_users": 120, "interval": [0.15, 0.25]}
LEAD = {"over": "TopPop", "change": 0.01, "interval": [-0.02, 0.04], "more_than_chance": False, "users": "validation"}


def header(**more: Any) -> dict[str, Any]:
    return {"metric": "ndcg", "best_score": 0.2, "evaluation": {**EVALUATION, **more}}


def test_the_headline_is_the_score_on_test_users_if_there_are_any() -> None:
    """The validation score follows below it."""
    assert headline(header()).score == 0.2
    score, lines = headline(header(test=TEST))
    assert score == 0.19
    assert "120 test users that no trial has seen" in lines[0]
    assert lines[2].startswith("0.2000 on the validation users")


@pytest.mark.parametrize(("among", "words"), [((40, 0), "among 40 trials"), ((38, 2), "among 40 trials"), ((1, 0), "")])
def test_an_interval_names_its_correction(among: tuple[int, int], words: str) -> None:
    """The page says whether an interval is corrected for the choice among trials.

    A single trial needs no correction.
    """
    interval = headline(header(chosen_among=dict(zip(("trials", "unknown"), among, strict=True)))).lines[0]
    assert words in interval
    assert ("not corrected is" in interval) == bool(words)


def test_headers_of_earlier_versions_lack_corrections() -> None:
    """They have neither the correction of an interval nor the users of a lead."""
    assert "corrected" not in " ".join(headline(header()).lines)
    old = {name: value for name, value in LEAD.items() if name != "users"}
    assert "(interval -0.0200 to 0.0400): no more than chance" in lead_sentences(header(lead=old), "ndcg@20")[0]


def test_a_lead_names_the_users_it_was_measured_on() -> None:
    """On the test users the winner may also be behind."""
    assert "corrected for the choice of both: no more" in lead_sentences(header(lead=LEAD), "ndcg@20")[0]
    behind = {**LEAD, "change": -0.01, "users": "test"}
    assert "Behind TopPop by 0.0100 ndcg@20" in lead_sentences(header(lead=behind), "ndcg@20")[0]
    assert "on the test users" in lead_sentences(header(lead=behind), "ndcg@20")[0]
    assert lead_sentences(header(), "ndcg@20") == []


def test_few_scored_users_cause_a_warning() -> None:
    """Test users are counted if there are any."""
    assert doubts(header()) == []
    assert "Only 199 users" in doubts(header(n_scored_users=199))[0]
    found = doubts(header(test=TEST, lead=LEAD))
    assert [text.split(":")[0] for text in found] == [
        "The winner's lead over TopPop may be chance.",
        "Only 120 users were scored",
    ]


def test_the_popularity_of_held_out_and_training_items_is_compared() -> None:
    """Headers of earlier versions lack these figures."""
    means = {"held_out": 1230.0, "trained": 1000.04}
    assert (
        "1,230.0 training users in the mean, what trained 1,000.0"
        in popularity_sentences(header(mean_popularity=means))[0]
    )
    assert popularity_sentences(header()) == []


def test_each_cause_of_uncertain_scores_has_a_warning() -> None:
    """Rows that the recipe's own filter drops cause none."""
    stats = {"n_heldout_interactions": 2000, "drop_count": 500, "dropped_by_where": 500, "n_rows": 1000}
    about = {**header(), "best_class": "IALSRecommender", "tuning": {"failed": 0}, "data_stats": stats}
    assert warnings(about) == []
    poor = {"n_heldout_interactions": 20, "drop_count": 500, "n_rows": 1000, "future_times": 7}
    texts = warnings({**about, "best_class": "TopPopRecommender", "tuning": {"failed": 3}, "data_stats": poor})
    assert [text.split(" ")[0] for text in texts] == ["Popularity", "Only", "3", "Cleansing", "7"]
