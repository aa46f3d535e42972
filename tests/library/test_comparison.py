"""`svc.compare`: the same splits for all, paired differences, the same figures each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import svc
from svc.errors import UsageError
from svc.library.comparison import _comparison, _Options
from tests.library.test_tables import SMALL, sales

CANDIDATES: dict[str, Any] = {
    "popular": {"algorithms": ["TopPop"], "n_trials": 1, "cutoff": 5, "parallelism": 1},
    "neighbours": {"training": {**SMALL, "algorithms": ["CosineKNN"]}},
}


def test_means_intervals_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    """A figure within its interval, differences of the means to the first, nothing left to chance."""
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
    """All splits share the data: an interval is as wide as that of one split, whatever the seeds add."""
    asked = _Options("user", "item", None, None, ("ndcg",), 5, 0.2, 0.95)
    users = [f"u{number}" for number in range(400)]
    draws = np.random.default_rng(0)
    splits = [pd.DataFrame({"ndcg": draws.random(400)}, index=users) for _ in range(9)]
    for seeds in (1, 3, 9):
        found = _comparison([splits[:seeds], [scores + 1 for scores in splits[:seeds]]], ["a", "b"], asked)["ndcg"]
        assert (found["high"] - found["low"]).tolist() == pytest.approx([2 * 1.96 * np.sqrt(1 / 12 / 400)] * 2, rel=0.1)


def test_results_are_trained_again_by_their_recipe() -> None:
    """A candidate beside itself differs by nothing; the latest rows are held out where there is a time."""
    result = svc.train(sales(), **SMALL)
    found = svc.compare([result, result], sales(), seeds=1, time="when", cutoff=5)
    assert found.index.tolist() == [result.best_class, f"{result.best_class} (2)"]
    assert np.count_nonzero(found.differences) == 0


def test_the_plot_has_each_candidate() -> None:
    """One series of points each, on an axis of metrics."""
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
    """Before anything is trained."""
    with pytest.raises(UsageError, match=words):
        svc.compare(candidates, sales(), **options)
