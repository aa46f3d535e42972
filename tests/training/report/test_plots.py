"""The plots of the report: inline SVG with labels, which scales with its column."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from svc.training.fitting.trial import TrialRecord
from svc.training.report.plots import (
    algorithms_plot,
    changes_plot,
    cost_plot,
    diversity_plots,
    groups_plot,
    recency_plot,
    search_plot,
    tail_plot,
)


def trial(number: int, algorithm: str, score: float) -> TrialRecord:
    return TrialRecord(number, algorithm, {}, "complete", score, {"ndcg": score}, None, 1.0)


TRIALS = [trial(0, "IALSRecommender", 0.2), trial(1, "TopPopRecommender", 0.1), trial(2, "IALSRecommender", 0.3)]


def draw() -> list[str]:
    counts = np.array([9, 3, 1, 1], dtype=np.int64)
    return [
        search_plot(TRIALS, "ndcg"),
        algorithms_plot(TRIALS[1:], "ndcg", {"IALSRecommender": (0.25, 0.35)}),
        tail_plot(counts, counts),
        cost_plot(
            [replace(trial, rank_ms=0.1 + trial.number) for trial in TRIALS], "ndcg", {"IALSRecommender": (0.25, 0.35)}
        ),
    ]


@pytest.fixture(scope="module")
def drawn() -> list[str]:
    return draw()


def test_each_plot_is_one_svg_without_a_size(drawn: list[str]) -> None:
    """The SVG can be embedded as it is, has a label for screen readers, and loads nothing."""
    for text in drawn:
        picture = ET.fromstring(text)
        assert picture.tag.endswith("svg")
        assert picture.get("aria-label")
        assert picture.get("width") is None
        assert "viewBox" in picture.attrib
        assert "<script" not in text and "<metadata" not in text


def test_the_same_figures_give_the_same_svg_bytes(drawn: list[str]) -> None:
    """A page that is made again from the artifact has the same bytes as the page of the training."""
    assert draw() == drawn


def test_names_and_scores_are_searchable_text(drawn: list[str]) -> None:
    """Algorithms are named without the ending `Recommender`."""
    text = drawn[1]
    for word in ("IALS", "TopPop", "0.3000", "ndcg"):
        assert f">{word}<" in text.replace(" ", "")


@pytest.fixture
def axes_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Axes]]:
    """Return a function that calls a plot with arguments and returns the axes of its pictures."""
    saved: list[Axes] = []
    save = Figure.savefig

    def watched(figure: Figure, *arguments: Any, **options: Any) -> None:
        saved.extend(figure.axes)
        save(figure, *arguments, **options)

    def axes(plot: Callable[..., Any], *arguments: Any) -> list[Axes]:
        saved.clear()
        plot(*arguments)
        return list(saved)

    monkeypatch.setattr(Figure, "savefig", watched)
    return axes


def lines(axes: Axes) -> list[list[tuple[float, float]]]:
    return [[(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)] for line in axes.get_lines()]


def points(axes: Axes) -> dict[str, list[list[float]]]:
    return {dots.get_label(): dots.get_offsets().tolist() for dots in axes.collections if dots.get_offsets().size}


def words(axes: Axes) -> list[str]:
    legends = axes.figure.legends
    return [text.get_text() for text in (legends[0].get_texts() if legends else axes.texts)]


def bars(axes: Axes) -> dict[str, float]:
    labels = [label.get_text() for label in axes.get_yticklabels()]
    return dict(zip(labels, [bar.get_width() for bar in axes.patches], strict=True))


def errors(axes: Axes) -> list[list[float]]:
    """Return the ends of the interval of each point."""
    (drawn,) = axes.collections
    return [[low, high] for (_, low), (_, high) in (path.vertices.tolist() for path in drawn.get_paths())]


def test_the_search_is_drawn_with_its_best_score_so_far(axes_of: Callable[..., list[Axes]]) -> None:
    """Trials count from 1."""
    (axes,) = axes_of(search_plot, [*TRIALS, trial(4, "X", 0.25)], "ndcg@5")
    assert points(axes) == {"IALS": [[1, 0.2], [3, 0.3]], "TopPop": [[2, 0.1]], "X": [[5, 0.25]]}
    assert lines(axes) == [[(1, 0.2), (2, 0.2), (3, 0.3), (5, 0.3)]]
    assert words(axes) == ["IALS", "TopPop", "X", "best so far"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trial", "ndcg@5")
    assert len({tuple(dots.get_facecolor()[0]) for dots in axes.collections}) == 3


def test_the_cost_of_a_ranking_is_drawn_on_a_logarithmic_axis(axes_of: Callable[..., list[Axes]]) -> None:
    """Only the best trial of an algorithm has an interval."""
    timed = [replace(trial, rank_ms=0.1 + trial.number) for trial in TRIALS]
    (axes,) = axes_of(cost_plot, timed, "ndcg@5", {"IALSRecommender": (0.25, 0.35)})
    assert points(axes) == {"IALS": [[0.1, 0.2], [2.1, 0.3]], "TopPop": [[1.1, 0.1]]}
    assert lines(axes) == [[(2.1, 0.25), (2.1, 0.35)]]
    assert (axes.get_xscale(), axes.get_yscale(), words(axes)) == ("log", "linear", ["IALS", "TopPop"])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("milliseconds of a single ranking", "ndcg@5")


def test_algorithms_are_drawn_beside_popularity(axes_of: Callable[..., list[Axes]]) -> None:
    """The best is on top. The dashed line is at TopPop's score. All ends of intervals are within the axis."""
    best = [TRIALS[2], TRIALS[1]]
    (axes,) = axes_of(algorithms_plot, best, "ndcg@5", {"IALSRecommender": (0.25, 0.35)})
    assert list(bars(axes).items()) == [("TopPop", 0.1), ("IALS", 0.3)]
    assert lines(axes) == [[(0.25, 1), (0.35, 1)], [(0.1, 0), (0.1, 1)]]
    assert words(axes) == ["0.1000", "0.3000"]
    assert [text.xy for text in axes.texts] == [(0.1, 0), (0.35, 1)]
    assert axes.get_xlim() == pytest.approx((0, 0.35 * 1.18))
    assert axes.get_xlabel() == "ndcg@5"
    (alone,) = axes_of(algorithms_plot, [TRIALS[2]], "ndcg@5", {})
    assert (lines(alone), list(bars(alone))) == ([], ["IALS"])
    (nothing,) = axes_of(algorithms_plot, [trial(0, "IALSRecommender", 0.0)], "ndcg@5", {})
    assert nothing.get_xlim()[1] > 0


def test_changes_are_drawn_beside_zero_and_the_required_bound(axes_of: Callable[..., list[Axes]]) -> None:
    """An interval that begins at the bound has the colour of a passed comparison. The first opponent is on top."""
    against = [
        {"name": "incumbent", "change": 0.1, "interval": [-0.2, 0.3]},
        {"name": "TopPop", "change": 0.5, "interval": [-0.1, 99.0]},
    ]
    (axes,) = axes_of(changes_plot, against, -0.1, "ndcg@5")
    assert lines(axes) == [
        [(-0.1, 0), (10.0, 0)],
        [(0.5, 0)],
        [(-0.2, 1), (0.3, 1)],
        [(0.1, 1)],
        [(0.0, 0), (0.0, 1)],
        [(-0.1, 0), (-0.1, 1)],
    ]
    passed, refused = (axes.get_lines()[at].get_color() for at in (0, 2))
    assert (passed, refused) == (axes.get_lines()[1].get_color(), axes.get_lines()[3].get_color())
    assert passed != refused
    assert [label.get_text() for label in axes.get_yticklabels()] == ["TopPop", "incumbent"]
    assert [axes.xaxis.get_major_formatter()(value, 0) for value in (-0.05, 0.0, 0.125)] == ["-5%", "0%", "+12.5%"]
    assert axes.get_xlabel() == "relative change of ndcg@5"


def test_accuracy_is_drawn_against_both_measures_of_variety(axes_of: Callable[..., list[Axes]]) -> None:
    """Each point has its diversity as a label. A value without a distance is only in the second picture."""
    rows: Sequence[Mapping[str, Any]] = [
        {"diversity": 0.0, "ndcg": 0.5, "interval": [0.25, 0.625], "distance": None, "coverage": 0.25},
        {"diversity": 0.3, "ndcg": 0.375, "interval": [0.25, 0.5], "distance": 0.75, "coverage": 0.5},
    ]
    distance, coverage = axes_of(diversity_plots, rows, "ndcg@5")
    assert (lines(distance)[0], words(distance), errors(distance)) == ([(0.75, 0.375)], ["0.3"], [[0.25, 0.5]])
    assert (lines(coverage)[0], words(coverage)) == ([(0.25, 0.5), (0.5, 0.375)], ["0", "0.3"])
    assert errors(coverage) == [[0.25, 0.625], [0.25, 0.5]]
    assert distance.get_xlabel() == "mean distance of two items of a list"
    assert coverage.get_xlabel() == "share of all items shown to somebody"
    assert distance.get_ylabel() == coverage.get_ylabel() == "ndcg@5"


def test_recencies_are_drawn_with_their_intervals(axes_of: Callable[..., list[Axes]]) -> None:
    rows = [
        {"recency": 0.0, "score": 0.5, "interval": [0.25, 0.625]},
        {"recency": 0.5, "score": 0.75, "interval": [0.5, 1.0]},
    ]
    (axes,) = axes_of(recency_plot, rows, "ndcg@5")
    assert lines(axes)[0] == [(0.0, 0.5), (0.5, 0.75)]
    assert errors(axes) == [[0.25, 0.625], [0.5, 1.0]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("recency", "ndcg@5")


def test_the_first_group_of_features_is_on_top(axes_of: Callable[..., list[Axes]]) -> None:
    (axes,) = axes_of(groups_plot, {"scores": 0.5, "labels": 0.25})
    assert list(bars(axes).items()) == [("labels", 0.25), ("scores", 0.5)]


def test_the_long_tail_falls_from_the_most_chosen_item(axes_of: Callable[..., list[Axes]]) -> None:
    """Both axes are logarithmic. At most 400 items are drawn, the first and the last among them."""
    (axes,) = axes_of(tail_plot, np.array([1, 9, 3]), np.arange(1, 5001))
    items, users = lines(axes)
    assert items == [(1, 9), (2, 3), (3, 1)]
    assert (users[0], users[-1]) == ((1, 5000), (5000, 1))
    assert 200 < len(users) <= 400
    assert (axes.get_xscale(), axes.get_yscale(), words(axes)) == ("log", "log", ["items", "users"])
