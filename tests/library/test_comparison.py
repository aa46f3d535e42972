"""`svc.compare`: all candidates get the same splits and paired differences, and repeated calls the same figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import svc
from svc.errors import TrainingError, UsageError
from svc.library.comparison import _comparison, _Options
from tests.library.test_tables import SMALL, sales

CANDIDATES: dict[str, Any] = {
    "popular": {"algorithms": ["TopPop"], "n_trials": 1, "cutoff": 5, "parallelism": 1},
    "neighbours": {"training": {**SMALL, "algorithms": ["CosineKNN"]}},
}


def test_means_intervals_and_differences_are_reproducible(capsys: pytest.CaptureFixture[str]) -> None:
    """Means lie within their intervals, differences are those of the means, and repeated calls agree."""
    found = svc.compare(CANDIDATES, sales(), seeds=2, metrics=["ndcg", "hit"], cutoff=5)
    assert found.index.tolist() == ["popular", "neighbours"]
    assert found.columns.tolist() == [(metric, part) for metric in ("ndcg", "hit") for part in ("mean", "low", "high")]
    for metric in ("ndcg", "hit"):
        assert (found[metric]["low"] <= found[metric]["mean"]).all()
        assert (found[metric]["mean"] <= found[metric]["high"]).all()
        means, change = found[metric]["mean"], found.differences.loc["neighbours", metric]
        assert change["diff"] == pytest.approx(means["neighbours"] - means["popular"])
        assert change["low"] <= change["diff"] <= change["high"]
    again = svc.compare(CANDIDATES, sales(), seeds=2, metrics=["ndcg", "hit"], cutoff=5, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("comparing")
    assert lines[-1].startswith("comparing · 4/4 trained")
    pd.testing.assert_frame_equal(pd.DataFrame(again), pd.DataFrame(found))
    pd.testing.assert_frame_equal(again.differences, found.differences)


def test_more_seeds_do_not_shorten_the_intervals() -> None:
    """All splits share the data, so an interval is as wide as that of one split."""
    asked = _Options("user", "item", None, None, ("ndcg",), 5, 0.2, 0.95)
    users = [f"u{number}" for number in range(400)]
    draws = np.random.default_rng(0)
    splits = [pd.DataFrame({"ndcg": draws.random(400)}, index=users) for _ in range(9)]
    for seeds in (1, 3, 9):
        found = _comparison([splits[:seeds], [scores + 1 for scores in splits[:seeds]]], ["a", "b"], asked)["ndcg"]
        assert (found["high"] - found["low"]).tolist() == pytest.approx([2 * 1.96 * np.sqrt(1 / 12 / 400)] * 2, rel=0.1)


def test_data_without_new_choices_of_one_user_are_refused() -> None:
    """Each split can judge one user, but no user can be judged in both."""
    asked = _Options("user", "item", None, None, ("ndcg",), 5, 0.2, 0.95)
    splits = [pd.DataFrame({"ndcg": [0.5]}, index=[user]) for user in ("u1", "u2")]
    with pytest.raises(TrainingError, match="no user can be judged"):
        _comparison([splits, splits], ["a", "b"], asked)


def test_results_are_trained_again_by_their_recipe() -> None:
    """A candidate differs from itself by 0. With a time column, the latest rows are held out."""
    result = svc.train(sales(), **SMALL)
    found = svc.compare([result, result], sales(), seeds=1, time="when", cutoff=5)
    assert found.index.tolist() == [result.best_class, f"{result.best_class} (2)"]
    assert np.count_nonzero(found.differences) == 0


def test_the_plot_has_each_candidate() -> None:
    """Each candidate has one series of points on an axis of metrics."""
    import matplotlib

    matplotlib.use("Agg")
    axes = svc.compare(CANDIDATES, sales(), seeds=1, cutoff=5).plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["popular", "neighbours"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["ndcg", "recall"]


@pytest.mark.parametrize(
    ("candidates", "options", "words"),
    [
        ("a.yaml", {}, "two or more in a list"),
        ([{"algorithms": ["TopPop"]}], {}, "svc.evaluate judges one"),
        ([7, 8], {}, "not a int"),
        (CANDIDATES, {"seeds": 0}, "seeds"),
        (CANDIDATES, {"heldout": 1.0}, "heldout"),
        (CANDIDATES, {"metrics": ["mrr"]}, "'mrr' is none of"),
        (CANDIDATES, {"user": "userid"}, "did you mean 'user_id'"),
    ],
)
def test_wrong_arguments_are_named(candidates: Any, options: dict[str, Any], words: str) -> None:
    """Errors name the argument before any training."""
    with pytest.raises(UsageError, match=words):
        svc.compare(candidates, sales(), **options)
