"""The definitions of the report."""

from __future__ import annotations

from svc.training.judging.metrics import METRICS
from svc.training.report.words import definitions, feature_sentences, plain_name

EVERY_METRIC = {"metric": "ndcg", "cutoff": 5, "evaluation": dict.fromkeys(METRICS, 0.1)}


def test_metrics_are_defined_in_order_the_searched_one_first() -> None:
    """Metrics that the evaluation lacks are left out."""
    header = {"metric": "recall", "cutoff": 20, "evaluation": {"ndcg": 0.1, "recall": 0.2, "entropy": 3.0}}
    assert [name for name, _ in definitions(header)] == [plain_name(name) for name in ("recall", "ndcg", "entropy")]


def test_the_page_says_whether_the_model_uses_features() -> None:
    """Recipes without features get no sentence about them."""
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
    """No name of a library with underscores is on the page."""
    assert not any("_" in name + meaning for name, meaning in definitions(EVERY_METRIC))
    assert plain_name("ndcg") == "ndcg"
