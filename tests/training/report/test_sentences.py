"""The sentences of the report."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.judging.metrics import METRICS
from svc.training.report.sentences import (
    NO_BREAK,
    decision_sentences,
    definitions,
    doubts,
    feature_sentences,
    headline,
    lead_sentences,
    order_sentences,
    plain_name,
    popularity_sentences,
    ranker_groups,
    ranker_sentences,
    span,
    verdict,
    warnings,
)

HEADER: dict[str, Any] = {
    "best_class": "IALSRecommender",
    "best_score": 0.1065,
    "metric": "ndcg",
    "tuning": {"best_per_algorithm": {"TopPopRecommender": {"score": 0.1}}},
    "evaluation": {
        "interval": [0.1047, 0.1084],
        "breakdown": [
            {"group": "popularity", "part": "head", "metric": "ndcg", "value": 0.283},
            {"group": "popularity", "part": "tail", "metric": "ndcg", "value": 0.002},
        ],
    },
}
BETTER = "6.5% better than popularity (4.7% to 8.4%, by the interval of its score): 0.106 against 0.100 ndcg@20."
GATE = {"name": "TopPop", "candidate": 0.12, "other": 0.11, "interval": [-0.02, 0.2], "n_users": 1200}
WEAK = " Weak in the long tail: 0.002 among the rarest items against 0.283 among the most popular ones."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, BETTER + WEAK),
        ({"evaluation": {}}, "6.5% better than popularity: 0.106 against 0.100 ndcg@20."),
        ({"best_score": 0.09, "evaluation": {}}, "10.0% worse than popularity: 0.090 against 0.100 ndcg@20."),
        (
            {"evaluation": {"test": {}}},
            "6.5% better than popularity: 0.106 against 0.100 ndcg@20 on the validation users.",
        ),
        (
            {"promotion": {"against": [{"name": "incumbent"}, GATE]}},
            "9.1% better than popularity (-2.0% to 20.0%, the interval of the gate): 0.120 against 0.110 ndcg@20 on",
        ),
        ({"best_class": "TopPopRecommender"}, "Popularity alone won: everybody is recommended the same items"),
        ({"tuning": {"best_per_algorithm": {}}}, "there is no baseline, because TopPop has no score above 0."),
    ],
)
def test_the_verdict_compares_with_popularity_and_names_a_weak_tail(changes: dict[str, Any], expected: str) -> None:
    """With a gate, the verdict has its comparison. Headers of earlier versions give a shorter verdict."""
    assert expected in verdict({**HEADER, **changes}, "ndcg@20")


EVALUATION = {"confidence": 0.95, "interval": [0.1, 0.3], "n_scored_users": 500, "n_users": 900}
TEST = {"ndcg": 0.19, "n_scored_users": 120, "interval": [0.15, 0.25]}
LEAD = {"over": "TopPop", "change": 0.01, "interval": [-0.02, 0.04], "more_than_chance": False, "users": "validation"}


def scored(**more: Any) -> dict[str, Any]:
    return {"metric": "ndcg", "best_score": 0.2, "evaluation": {**EVALUATION, **more}}


def test_the_headline_is_the_score_on_test_users_if_there_are_any() -> None:
    """The validation score follows below the headline."""
    assert headline(scored())[:2] == (0.2, span([0.1, 0.3]))
    score, interval, lines = headline(scored(test=TEST))
    assert (score, interval) == (0.19, span([0.15, 0.25]))
    assert "120 test users that no trial has seen" in lines[0]
    assert lines[1].startswith(f"0.2000 {span([0.1, 0.3])} on the validation users")


@pytest.mark.parametrize(("among", "words"), [((40, 0), "among 40 trials"), ((38, 2), "among 40 trials"), ((1, 0), "")])
def test_an_interval_names_its_correction(among: tuple[int, int], words: str) -> None:
    """The page says whether an interval is corrected for the choice among trials.

    A single trial needs no correction.
    """
    line = headline(scored(chosen_among=dict(zip(("trials", "unknown"), among, strict=True)))).lines[0]
    assert words in line
    assert ("but not for the fact" in line) == ("(set split.test to avoid this)" in line) == bool(words)


def test_headers_of_earlier_versions_lack_corrections() -> None:
    """In such headers, intervals have no correction, and leads have no number of users."""
    assert "corrected" not in " ".join(headline(scored()).lines)
    old = {name: value for name, value in LEAD.items() if name != "users"}
    assert f"{span([-0.02, 0.04])}: no more than chance" in lead_sentences(scored(lead=old), "ndcg@20")[0]


def test_a_lead_names_the_users_it_was_measured_on() -> None:
    """On the test users, the winner may also be behind."""
    assert "corrected for the choice of both: no more" in lead_sentences(scored(lead=LEAD), "ndcg@20")[0]
    behind = {**LEAD, "change": -0.01, "users": "test"}
    assert "Behind TopPop by 0.0100 ndcg@20" in lead_sentences(scored(lead=behind), "ndcg@20")[0]
    assert "on the test users" in lead_sentences(scored(lead=behind), "ndcg@20")[0]
    assert lead_sentences(scored(), "ndcg@20") == []


def test_few_scored_users_cause_a_warning() -> None:
    """The warning counts test users if there are any."""
    assert doubts(scored()) == []
    assert "Only 199 users" in doubts(scored(n_scored_users=199))[0]
    found = doubts(scored(test=TEST, lead=LEAD))
    assert [text.split(":")[0] for text in found] == [
        "The winner's lead over TopPop may be chance.",
        "Only 120 users were scored",
    ]


def test_the_popularity_of_held_out_and_training_items_is_compared() -> None:
    """Headers of earlier versions lack these figures."""
    means = {"held_out": 1230.0, "trained": 1000.04}
    assert (
        "1,230.0 training users on average. For training interactions it is 1,000.0"
        in popularity_sentences(scored(mean_popularity=means))[0]
    )
    assert popularity_sentences(scored()) == []


def test_each_cause_of_uncertain_scores_has_a_warning() -> None:
    """Rows that the recipe's own filter drops cause no warning."""
    stats = {"n_heldout_interactions": 2000, "drop_count": 500, "dropped_by_where": 500, "n_rows": 1000}
    about = {**scored(), "best_class": "IALSRecommender", "tuning": {"failed": 0}, "data_stats": stats}
    assert warnings(about) == []
    assert warnings({**about, "data_stats": {**stats, "drop_count": 750}}) == []
    (dropped,) = warnings({**about, "data_stats": {**stats, "drop_count": 751}})
    assert dropped == "Cleansing dropped 251 rows."
    poor = {"n_heldout_interactions": 20, "drop_count": 500, "n_rows": 1000, "future_times": 7}
    texts = warnings({**about, "best_class": "TopPopRecommender", "tuning": {"failed": 3}, "data_stats": poor})
    assert [text.split(" ")[0] for text in texts] == ["Popularity", "Only", "3", "Cleansing", "7"]


COMPARISON = {
    "name": "incumbent", "candidate": 0.2, "other": 0.25, "change": -0.2, "interval": [-0.3, -0.1], "n_users": 900,
    "scored": "live",
}  # fmt: skip
GUARDRAIL = {"candidate": 40, "other": 80, "change": -0.5, "min_relative_change": -0.3, "passed": False}


def decided(**changes: Any) -> dict[str, Any]:
    decision = {
        "decision": "refused", "mode": "enforce", "metric": "ndcg", "min_relative_change": -0.01, "confidence": 0.95,
        "against": [COMPARISON], "guardrails": {"n_users": GUARDRAIL},
    }  # fmt: skip
    return {"promotion": decision | changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "The new model is refused."),
        ({"decision": "promoted"}, "The new model may go live."),
        ({"mode": "report"}, "the recipe only reports, so this does not keep it from going live"),
        ({"min_relative_change": 0.02, "confidence": 0.99}, "the lower end of each 99% interval must reach +2.0%."),
        ({"against": []}, "There was nothing to compare with."),
    ],
)
def test_the_decision_comes_with_its_rule(changes: dict[str, Any], expected: str) -> None:
    """Without a `promotion` block, the page shows neither a decision nor a rule."""
    assert expected in " ".join(decision_sentences(decided(**changes)))
    assert decision_sentences({}) == []


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


def ordered(recipe: dict[str, Any], evaluation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    head = {"metric": "ndcg", "recipe": recipe, "best_class": "TopPopRecommender", "tuning": {"best_per_algorithm": {}}}
    return {**head, "evaluation": evaluation or {}, **more}


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (ordered(TIMED, TRIED, recency=0.5), "by 0.607 (recency 0.5). Recencies were judged on 2,000 validation users"),
        (ordered({"schema": {}}), "could not be judged: the recipe names no <code>schema.time_column"),
        (ordered(TIMED), "could not be judged: <code>split.scheme: random</code> holds out items from anywhere"),
        (ordered({**TIMED, "training": {"recency": "off"}}), "<code>training.recency: off</code>"),
        (ordered({**TIMED, "training": {"recency": 0.7}}, recency=0.7), "<code>training.recency: 0.7</code>"),
        (ordered({**TIMED, "training": {"split": {"scheme": "time_user"}}}), "do not follow from a history alone"),
        (
            ordered({**TIMED, "training": {"split": {"scheme": "time_user"}}}, best_class="IALSRecommender"),
            "The search compared the values",
        ),
    ],
)
def test_the_reason_for_the_recency_is_one_sentence(head: dict[str, Any], words: str) -> None:
    """The sentence says how the recency was chosen, or why order could not be judged."""
    assert words in order_sentences(head)


GAIN = {"value": 0.0123, "low": 0.0011, "high": 0.02}
SHIPS: dict[str, Any] = {
    "ranker": {
        "ships": True,
        "gain": GAIN,
        "n_users": 3152,
        "groups": {"labels": 0.05, "scores": 0.2, "popularity": 1.1},
        "features": [
            {"name": "score", "group": "scores", "weight": 0.1},
            {"name": "popularity_7d", "group": "popularity", "weight": -1.26},
        ],
    }
}


def test_the_gain_of_a_ranker_has_its_interval_and_a_verdict() -> None:
    text = ranker_sentences(SHIPS, "ndcg@20")
    assert "are put in a learned order" in text
    assert "On 3,152 validation users" in text
    assert "ndcg@20 by +0.0123 (+0.0011 to +0.0200)" in text.replace(NO_BREAK, " ")
    stays = {"ranker": {"ships": False, "gain": {**GAIN, "low": -0.001}, "n_users": 300}}
    assert "not better than the winner's by more than chance" in ranker_sentences(stays, "ndcg@20")
    assert (ranker_sentences({}, "ndcg@20"), ranker_groups(stays)) == ("", {})


def test_the_strongest_feature_groups_come_first() -> None:
    assert list(ranker_groups(SHIPS).items()) == [("popularity", 1.1), ("scores", 0.2), ("labels", 0.05)]


EVERY_METRIC = {"metric": "ndcg", "cutoff": 5, "evaluation": dict.fromkeys(METRICS, 0.1)}


def test_metrics_are_defined_in_order_the_searched_one_first() -> None:
    """Metrics that the evaluation lacks are left out."""
    header = {"metric": "recall", "cutoff": 20, "evaluation": {"ndcg": 0.1, "recall": 0.2, "entropy": 3.0}}
    assert [name for name, _ in definitions(header)] == [plain_name(name) for name in ("recall", "ndcg", "entropy")]


def test_the_page_says_whether_the_model_uses_features() -> None:
    """The page of a recipe without features has no sentence about them."""
    assert feature_sentences({}) == []
    for active, words in ((True, "answers for users and items"), (False, "does not use these features")):
        use, columns = feature_sentences({"features": {"active": active, "item": {"columns": ["genres", "<year>"]}}})
        assert words in use
        assert columns == "item: genres, <year>"


def test_every_metric_of_the_evaluation_is_defined() -> None:
    """Plain counts need no definition."""
    names = {name for name, _ in definitions(EVERY_METRIC)}
    assert [name for name in METRICS if plain_name(name) not in names] == ["appeared_item"]


def test_metrics_are_named_in_words_unless_their_name_is_common() -> None:
    """The page has no library name with underscores."""
    assert not any("_" in name + meaning for name, meaning in definitions(EVERY_METRIC))
    assert plain_name("ndcg") == "ndcg"
