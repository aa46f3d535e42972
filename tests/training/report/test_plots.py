"""The plots of the report: inline SVG with labels, which scales with its column."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np

from svc.training.fitting.trial import TrialRecord
from svc.training.report.plots import algorithms_plot, cost_plot, search_plot, tail_plot


def trial(number: int, algorithm: str, score: float | None) -> TrialRecord:
    return TrialRecord(number, algorithm, {}, "complete", score, {"ndcg": score or 0.0}, None, 1.0)


TRIALS = [trial(0, "IALSRecommender", 0.2), trial(1, "TopPopRecommender", 0.1), trial(2, "IALSRecommender", 0.3)]


def drawn() -> list[str]:
    counts = np.array([9, 3, 1, 1], dtype=np.int64)
    return [
        search_plot(TRIALS, "ndcg"),
        algorithms_plot(TRIALS[1:], "ndcg", {"IALSRecommender": (0.25, 0.35)}),
        tail_plot(counts, counts),
        cost_plot(
            [replace(trial, rank_ms=0.1 + trial.number) for trial in TRIALS], "ndcg", {"IALSRecommender": (0.25, 0.35)}
        ),
    ]


def test_each_plot_is_one_svg_without_a_size() -> None:
    """The SVG can be embedded as it is, has a label for screen readers, and loads nothing."""
    for text in drawn():
        picture = ET.fromstring(text)
        assert picture.tag.endswith("svg")
        assert picture.get("aria-label")
        assert picture.get("width") is None
        assert "viewBox" in picture.attrib
        assert "<script" not in text and "<metadata" not in text


def test_the_same_figures_give_the_same_svg_bytes() -> None:
    """A page made again from the artifact has the bytes of the page of the training."""
    assert drawn() == drawn()


def test_names_and_scores_are_searchable_text() -> None:
    """Algorithms are named without the ending `Recommender`."""
    text = drawn()[1]
    for word in ("IALS", "TopPop", "0.3000", "ndcg"):
        assert f">{word}<" in text.replace(" ", "")
