"""What the words of the report mean."""

from __future__ import annotations

from svc.training.evaluation.evaluator import METRICS
from svc.training.report.words import features_used, metrics_explained


def test_the_page_explains_its_metrics_and_whether_features_count() -> None:
    """Nobody must know what ndcg is; a recipe without features has no word about them."""
    header = {"metric": "recall", "cutoff": 20, "evaluation": {"ndcg": 0.1, "recall": 0.2, "entropy": 3.0}}
    explained = metrics_explained(header)
    assert [explained.index(f"<dt>{name}</dt>") for name in ("recall", "ndcg", "entropy")] == sorted(
        explained.index(f"<dt>{name}</dt>") for name in ("recall", "ndcg", "entropy")
    )
    assert "<dt>map</dt>" not in explained
    assert features_used(header) == ""
    for active, told in ((True, "answers for users and items"), (False, "does not use these features")):
        shown = features_used({"features": {"active": active, "item": {"columns": ["genres", "<year>"]}}})
        assert told in shown and "item: genres, &lt;year&gt;" in shown


def test_every_metric_of_the_evaluation_is_explained() -> None:
    """But the counts beside them, which explain themselves."""
    explained = metrics_explained({"metric": "ndcg", "cutoff": 5, "evaluation": dict.fromkeys(METRICS, 0.1)})
    assert [name for name in METRICS if f"<dt>{name}</dt>" not in explained] == ["appeared_item"]
