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


def test_means_intervals_and_differences_are_reproducible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means lie within their intervals, differences are those of the means, and repeated calls agree.

    The progress names the candidate and the seed of each training.
    """
    found = svc.compare(CANDIDATES, sales(), seeds=2, metrics=["ndcg", "hit"], cutoff=5)
    assert (found.index.name, found.index.tolist()) == ("candidate", ["popular", "neighbours"])
    assert found.columns.tolist() == [(metric, part) for metric in ("ndcg", "hit") for part in ("mean", "low", "high")]
    for metric in ("ndcg", "hit"):
        assert (found[metric]["low"] <= found[metric]["mean"]).all()
        assert (found[metric]["mean"] <= found[metric]["high"]).all()
        means, change = found[metric]["mean"], found.differences.loc["neighbours", metric]
        assert change["diff"] == pytest.approx(means["neighbours"] - means["popular"])
        assert change["low"] <= change["diff"] <= change["high"]
    monkeypatch.setattr("svc.progress.EVERY_S", 0.0)
    again = svc.compare(CANDIDATES, sales(), seeds=2, metrics=["ndcg", "hit"], cutoff=5, progress=True)
    shown = [line.split(" · ")[:2] for line in capsys.readouterr().err.splitlines()]
    trainings = [f"now {name} with seed {seed}" for seed in (0, 1) for name in CANDIDATES]
    assert [phase for phase, _ in shown] == ["comparing"] * 6
    assert [note for _, note in shown[1:]] == [
        *(f"{number}/4 trained, {training}" for number, training in enumerate(trainings)),
        "4/4 trained",
    ]
    pd.testing.assert_frame_equal(pd.DataFrame(again), pd.DataFrame(found))
    pd.testing.assert_frame_equal(again.differences, found.differences)


@pytest.mark.parametrize(("options", "hints"), [({}, 1), ({"time": "when"}, 0)])
def test_a_hint_at_times_is_given_once(options: dict[str, Any], hints: int, caplog: pytest.LogCaptureFixture) -> None:
    """The four trainings do not repeat it. A column that only `cleansing.where` names is still read."""
    stars = {**CANDIDATES["popular"], "cleansing": {"where": {"stars": {"gte": 1}}}}
    svc.compare({**CANDIDATES, "popular": stars}, sales(), seeds=2, cutoff=5, **options)
    assert caplog.text.count("time_unused") == hints


def test_more_seeds_do_not_shorten_the_intervals() -> None:
    """All splits share the data, so an interval is as wide as that of one split."""
    asked = _Options({}, ("ndcg",), 5, 0.2, 0.95)
    users = [f"u{number}" for number in range(400)]
    draws = np.random.default_rng(0)
    splits = [pd.DataFrame({"ndcg": draws.random(400)}, index=users) for _ in range(9)]
    for seeds in (1, 3, 9):
        found = _comparison([splits[:seeds], [scores + 1 for scores in splits[:seeds]]], ["a", "b"], asked)["ndcg"]
        assert (found["high"] - found["low"]).tolist() == pytest.approx([2 * 1.96 * np.sqrt(1 / 12 / 400)] * 2, rel=0.1)


def test_data_without_new_choices_of_one_user_are_refused() -> None:
    """Each split can judge one user, but no user can be judged in both."""
    asked = _Options({}, ("ndcg",), 5, 0.2, 0.95)
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
    """Each candidate has one series of means and intervals on an axis of metrics, first metric at the top."""
    import matplotlib

    matplotlib.use("Agg")
    found = svc.compare(CANDIDATES, sales(), seeds=1, cutoff=5)
    axes = found.plot()
    places = []
    for name, (points, _, (bars,)) in zip(CANDIDATES, axes.containers, strict=True):
        for metric, mean, place, bar in zip(("ndcg", "recall"), *points.get_data(), bars.get_segments(), strict=True):
            expected = found.loc[name, metric]
            assert (mean, *bar[:, 0]) == pytest.approx((expected["mean"], expected["low"], expected["high"]))
            assert bar[:, 1].tolist() == [place, place]
            places.append(place)
    assert places == pytest.approx([-0.075, 0.925, 0.075, 1.075])
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["popular", "neighbours"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["ndcg", "recall"]


@pytest.mark.parametrize(
    ("candidates", "options", "words"),
    [
        ("a.yaml", {}, "two or more in a list"),
        ([{"algorithms": ["TopPop"]}], {}, "svc.evaluate judges one"),
        ([7, 8], {}, "not a int"),
        (CANDIDATES, {"seeds": 0}, "seeds: 0 is not within 1..100"),
        (CANDIDATES, {"seeds": 101}, "seeds: 101 is not within 1..100"),
        (CANDIDATES, {"heldout": 1.0}, "heldout: 1.0 is not between 0 and 1"),
        (CANDIDATES, {"heldout": 0.0}, "heldout: 0.0 is not between 0 and 1"),
        (CANDIDATES, {"metrics": ["mrr"]}, "'mrr' is none of"),
        (CANDIDATES, {"user": "userid"}, "did you mean 'user_id'"),
    ],
)
def test_wrong_arguments_are_named(candidates: Any, options: dict[str, Any], words: str) -> None:
    """Errors name the argument before any training."""
    with pytest.raises(UsageError, match=words):
        svc.compare(candidates, sales(), **options)
