"""The plots of the report, as inline SVG drawn by matplotlib (extra `report`)."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from svc.recipe.algorithms import short_name
from svc.training.fitting.trial import TrialRecord

_COLOURS = ("#2f6fb0", "#d9822b", "#3a9a5b", "#a8518a", "#7a6a4f", "#c0453f", "#5a6b7b")
_SIZES = re.compile(r'\s(?:width|height)="[^"]*"')
_INK, _GREY = "#3d4650", "#9aa5b1"
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_WIDTH_IN = 4.2
"""One width for all plots, so that their text has one size on the page, and can be read on a phone."""
_MOST_CHANGE = 10.0
"""Larger relative changes are drawn at this value. An axis up to them would hide all other intervals."""


def _figure(height: float) -> tuple[Any, Any]:
    # Not pyplot, which keeps each figure until it is closed, and chooses a backend for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c5ccd3")
    axes.tick_params(colors=_INK, labelsize=9)
    axes.grid(axis="y", color="#e6eaee", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any, label: str, x: str, y: str = "", *, legend: bool = False) -> Markup:
    """Return the figure, with the labels of its axes, as one <svg> that scales with its column and is named `label`."""
    import matplotlib as mpl

    (axes,) = figure.axes
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    if legend:
        figure.legend(fontsize=9, frameon=False, ncols=3, loc="outside lower center")
    out = io.StringIO()
    # Readers can select and search text that is not drawn as paths. A fixed salt and no date give the same bytes again.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "svc", "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata=_NO_METADATA, transparent=True)
    text = out.getvalue()
    # HTML permits no XML declaration and no document type within a page.
    tag, _, rest = text[text.index("<svg") :].partition(">")
    # Without a size of its own, an SVG takes the width of its column.
    tag = _SIZES.sub("", tag).replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return Markup(f"{tag}>{rest}")  # matplotlib has escaped its texts


def search_plot(trials: Sequence[TrialRecord], metric: str) -> Markup:
    """Draw the score of each trial by its number, with one colour per algorithm and a line for the best so far."""
    figure, axes = _figure(3.0)
    numbers = [trial.number + 1 for trial in trials]
    _scatter(axes, numbers, trials)
    best = np.maximum.accumulate([trial.score or 0.0 for trial in trials])
    axes.step(numbers, best, where="post", color=_INK, linewidth=1, label="best so far")
    return _svg(figure, "Score of each trial", "trial", metric, legend=True)


def cost_plot(trials: Sequence[TrialRecord], metric: str, intervals: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the score of each trial against the milliseconds of a single ranking by its model, on a logarithmic axis.

    The best trial of each algorithm gets its interval.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = _figure(3.0)
    for name, colour in _scatter(axes, [trial.rank_ms for trial in trials], trials).items():
        if name in intervals:
            own = [trial for trial in trials if trial.algorithm == name]
            best = max(own, key=lambda trial: trial.score or 0.0)
            axes.plot([best.rank_ms] * 2, intervals[name], color=colour, linewidth=1.2, marker="_", markersize=7)
    axes.set_xscale("log")
    # The default marks powers of ten only, of which a short range has one or none.
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    # Labels of minor ticks would overlap.
    axes.xaxis.set_minor_locator(NullLocator())
    label = "Score of each trial against what a ranking costs"
    return _svg(figure, label, "milliseconds of a single ranking", metric, legend=True)


def _scatter(axes: Any, across: Sequence[float | None], trials: Sequence[TrialRecord]) -> dict[str, str]:
    """Draw the score of each trial at its place in `across`, and return the colour of each algorithm."""
    names = list(dict.fromkeys(trial.algorithm for trial in trials))
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    for name, colour in colours.items():
        own = [(x, trial.score) for x, trial in zip(across, trials, strict=True) if trial.algorithm == name]
        axes.scatter(*zip(*own, strict=True), s=30, color=colour, label=short_name(name))
    return colours


def algorithms_plot(best: Sequence[TrialRecord], metric: str, intervals: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the best score of each algorithm with its interval, and a dashed line at the baseline TopPop."""
    figure, axes = _figure(0.9 + 0.42 * len(best))
    ordered = list(reversed(best))
    names = [short_name(trial.algorithm) for trial in ordered]
    scores = [trial.score or 0.0 for trial in ordered]
    colours = [_GREY if name == "TopPop" else _COLOURS[0] for name in names]
    axes.barh(names, scores, color=colours, height=0.6)
    ends = list(scores)
    for height, (trial, score) in enumerate(zip(ordered, scores, strict=True)):
        span = intervals.get(trial.algorithm)
        if span is not None:
            axes.plot(span, [height, height], color=_INK, linewidth=1.2, marker="|", markersize=7)
            ends[height] = max(score, span[1])
        axes.annotate(
            f"{score:.4f}",
            (ends[height], height),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=_INK,
        )
    baseline = dict(zip(names, scores, strict=True)).get("TopPop")
    if baseline is not None:
        axes.axvline(baseline, color=_GREY, linestyle="--", linewidth=1)
    # Room for the labels. The bound is above 0 if all scores are 0, because equal ends are no axis.
    axes.set_xlim(0, max([*ends, 1e-9]) * 1.18)
    axes.grid(visible=False, axis="y")
    return _svg(figure, "Best score of each algorithm", metric)


def changes_plot(against: Sequence[Mapping[str, Any]], bound: float, metric: str) -> Markup:
    """Draw the relative change from each opponent with its interval. A dashed line marks the required bound."""
    figure, axes = _figure(1.0 + 0.42 * len(against))
    shown = list(reversed(against))
    for height, comparison in enumerate(shown):
        low, high = np.clip(comparison["interval"], -1.0, _MOST_CHANGE)
        colour = _COLOURS[2] if comparison["interval"][0] >= bound else _COLOURS[5]
        axes.plot([low, high], [height, height], color=colour, linewidth=2.2, marker="|", markersize=10)
        axes.plot([np.clip(comparison["change"], -1.0, _MOST_CHANGE)], [height], color=colour, marker="o", markersize=6)
    axes.axvline(0.0, color=_INK, linewidth=1)
    axes.axvline(bound, color=_GREY, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(shown)), [str(comparison["name"]) for comparison in shown])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.4g}%" if value else "0%")
    axes.grid(visible=False, axis="y")
    return _svg(figure, "Relative change from each opponent, with its interval", f"relative change of {metric}")


def diversity_plots(values: Sequence[Mapping[str, Any]], metric: str) -> list[Markup]:
    """Draw the ndcg with its interval against two measures of variety, one plot each.

    Each point is labelled with its `diversity`. A value without a mean distance has no point in the first plot.
    """
    drawn = []
    sides = (("distance", "mean distance of two items of a list"), ("coverage", "share of all items shown to somebody"))
    for number, (name, label) in enumerate(sides):
        figure, axes = _figure(3.0)
        shown = [row for row in values if row[name] is not None]
        _draw_curve(axes, shown, name, "ndcg", _COLOURS[number])
        labels: dict[tuple[float, float], str] = {}
        for row in shown:
            point = row[name], row["ndcg"]
            # Points of equal place would have labels on top of each other.
            labels[point] = f"{labels[point]}, {row['diversity']:g}" if point in labels else f"{row['diversity']:g}"
        for position, (point, text) in enumerate(labels.items()):  # on both sides: neighbours may lie close
            side, offset = ("right", (-6, -12)) if position % 2 else ("left", (6, 6))
            axes.annotate(text, point, offset, textcoords="offset points", fontsize=9, ha=side)
        drawn.append(_svg(figure, f"Accuracy and {label} for each value of diversity", label, metric))
    return drawn


def _draw_curve(axes: Any, rows: Sequence[Mapping[str, Any]], x: str, y: str, colour: str) -> None:
    """Draw the values `y` of the rows over their values `x`, with their intervals."""
    up = [row[y] for row in rows]
    # The shape is that of errorbar, (2, rows), also without rows.
    reach = np.abs(np.array([row["interval"] for row in rows]).reshape(-1, 2).T - up)
    axes.errorbar([row[x] for row in rows], up, reach, color=colour, ecolor=_GREY, marker="o", markersize=5, capsize=3)


def recency_plot(values: Sequence[Mapping[str, Any]], metric: str) -> Markup:
    """Draw the score at each recency as a curve, with its interval."""
    figure, axes = _figure(2.6)
    _draw_curve(axes, values, "recency", "score", _COLOURS[0])
    return _svg(figure, "Score at each recency, with its interval", "recency", metric)


def groups_plot(groups: Mapping[str, float]) -> Markup:
    """Draw a bar for each group of the ranker's features, the first one on top."""
    figure, axes = _figure(0.9 + 0.32 * len(groups))
    names = list(groups)[::-1]
    axes.barh(names, [groups[name] for name in names], color=_COLOURS[0], height=0.6)
    return _svg(
        figure, "How far each group of features moves the items of a page", "deviation of its part of the score"
    )


def tail_plot(item_counts: NDArray[np.int64], user_counts: NDArray[np.int64]) -> Markup:
    """Draw the interactions of each item and each user, sorted by descending count, on logarithmic axes."""
    figure, axes = _figure(2.6)
    for counts, name, colour in ((item_counts, "items", _COLOURS[0]), (user_counts, "users", _COLOURS[1])):
        falling = np.sort(counts)[::-1]
        # 400 points look like all on a logarithmic axis, and keep the page small with millions of items.
        ranks = np.unique(np.geomspace(1, len(falling), 400).astype(np.int64))
        axes.plot(ranks, falling[ranks - 1], color=colour, linewidth=1.8, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    return _svg(figure, "The long tail of items and users", "rank", "interactions", legend=True)
