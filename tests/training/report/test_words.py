"""What the words of the report mean."""

from __future__ import annotations

from svc.training.evaluation.evaluator import METRICS
from svc.training.report.words import features_used, metrics_explained, plain_name


def test_the_page_explains_its_metrics_and_whether_features_count() -> None:
    """Nobody must know what ndcg is; a recipe without features has no word about them."""
    header = {"metric": "recall", "cutoff": 20, "evaluation": {"ndcg": 0.1, "recall": 0.2, "entropy": 3.0}}
    explained = metrics_explained(header)
    places = [explained.index(f"<dt>{plain_name(name)}</dt>") for name in ("recall", "ndcg", "entropy")]
    assert places == sorted(places)
    assert "<dt>map</dt>" not in explained
    assert features_used(header) == ""
    for active, told in ((True, "answers for users and items"), (False, "does not use these features")):
        shown = features_used({"features": {"active": active, "item": {"columns": ["genres", "<year>"]}}})
        assert told in shown and "item: genres, &lt;year&gt;" in shown


def test_every_metric_of_the_evaluation_is_explained() -> None:
    """But the counts beside them, which explain themselves."""
    explained = metrics_explained({"metric": "ndcg", "cutoff": 5, "evaluation": dict.fromkeys(METRICS, 0.1)})
    assert [name for name in METRICS if f"<dt>{plain_name(name)}</dt>" not in explained] == ["appeared_item"]


def test_no_name_of_a_library_stands_on_the_page() -> None:
    """A metric is named in words, unless its name is the one that everybody uses."""
    explained = metrics_explained({"metric": "ndcg", "cutoff": 5, "evaluation": dict.fromkeys(METRICS, 0.1)})
    assert "_" not in explained
    assert plain_name("ndcg") == "ndcg"
