"""The tables of the report, read from the header of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from svc.recipe.algorithms import short_name
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.intervals import percent
from svc.training.judging.metrics import PER_USER
from svc.training.report.sentences import (
    NO_BREAK,
    interval_of,
    plain_name,
    row_figure,
    sampled,
    tried_values,
    with_interval,
)

Header = Mapping[str, Any]

_DATA = {
    "n_rows": "rows",
    "n_users": "users",
    "n_items": "items",
    "n_interactions": "distinct user–item pairs",
    "n_heldout_interactions": "held out for validation",
    "drop_count": "dropped by cleansing",
    "dropped_by_where": "of these by cleansing.where",
    "hidden_by_rule": "of these hidden by cleansing.hide",
    "dropped_by_min_interactions": "of these by cleansing.min_interactions",
}
_SCORED = {
    "live": "as it is served: it was trained before all that is held out",
    "refitted": "its class and parameters, trained on the same data as the new model",
}
_OPPONENTS = {"incumbent": "the live model", "TopPop": "popularity"}
_NEW_ITEMS = {
    "recall": "of a user's new items, found on the page",
    "popularity_recall": "the same, new items by popularity of their features",
    "known_change": "change of ndcg of known items",
    "share": "of a page, new items",
}
_PARTS = {
    ("all", "all"): "everybody",
    ("activity", "few"): "users with the shortest third of the histories",
    ("activity", "some"): "users with the middle third",
    ("activity", "many"): "users with the longest third",
    ("popularity", "head"): "choices among the most popular items (a third of the interactions)",
    ("popularity", "middle"): "among the next (another third)",
    ("popularity", "tail"): "among the long tail (the last third)",
    ("met_before", "yes"): "choices of items that the user met before",
    ("met_before", "no"): "of items that were new to the user",
}


class Table(NamedTuple):
    """A table of the page: names of columns, and rows of cells. The page leaves out a table without rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __bool__(self) -> bool:
        return bool(self.rows)


def tables(header: Header, metric: str, best: Sequence[TrialRecord], earlier: Header | None) -> dict[str, Table]:
    """Return every table of the page by its name in the template. `best` has the best trial of each algorithm."""
    evaluation, promotion = header["evaluation"], header.get("promotion")
    everybody = breakdown(header).get("everybody", {})
    return {
        "winner": Table(
            ("metric", "value"),
            [
                (plain_name(name), everybody.get(name, value))
                for name, value in evaluation.items()
                if isinstance(value, float) and name != "confidence"
            ],
        ),
        "comparisons": Table(
            ("against", f"new {metric}", f"other {metric}", "change", "users", "scored"),
            list(comparison_rows(header)) if promotion else (),
        ),
        "guardrails": Table(
            ("guardrail", "new", "live", "change", "allowed", "verdict"),
            list(guardrail_rows(header)) if promotion else (),
        ),
        "parts": Table(
            ("answers", "part", "score", "bytes", "parameters"),
            [
                (
                    part["answers"],
                    short_name(part["class"]),
                    _score(header, part["score"]),
                    part["bytes"],
                    parameters(part["params"]),
                )
                for part in header.get("parts", ())
            ],
        ),
        "runs": Table(("", "this run", "earlier run"), [] if earlier is None else _runs(header, earlier)),
        "breakdown": Table(
            ("", *PER_USER),
            [
                [part, *(cells.get(name, "") for name in PER_USER)]
                for part, cells in (*_by_cutoff(header, earlier), *breakdown(header).items())
                if part != "everybody"
            ],
        ),
        "diversity": Table(
            ("diversity", "ndcg", "distance", "coverage"),
            [
                (
                    f"{row['diversity']:g}",
                    with_interval(row["ndcg"], row["interval"]),
                    row["distance"] or "",
                    row["coverage"],
                )
                for row in sampled(header, "diversity", "ndcg")
            ],
        ),
        "recency": Table(("recency", metric), list(recency_rows(header))),
        "weights": Table(("feature", "group", "weight"), list(weight_rows(header))),
        "best": Table(
            ("algorithm", metric, "recall", "seconds", "parameters"),
            [
                (
                    short_name(trial.algorithm),
                    _score(header, trial.score or 0.0),
                    (trial.metrics | (everybody if trial.algorithm == header["best_class"] else {})).get("recall", ""),
                    f"{trial.seconds:.3g}",
                    parameters(trial.params),
                )
                for trial in best
            ],
        ),
        "data": Table(("", ""), _data(header["data_stats"])),
        "cold_start": Table(
            ("side", "order", "ids", *_cold_metrics(header)),
            list(_cold_start(header, evaluation.get("cold_start", {}))),
        ),
        "new_items": Table(("new items", "value"), list(_new_items(evaluation.get("new_items", {})))),
    }


def breakdown(header: Header) -> dict[str, dict[str, str]]:
    """Return the winner's figures by group of users or items, each with its interval, or nothing without groups.

    The score of the search has one interval on the page, which is corrected for the choice of the winner.
    """
    groups: dict[str, dict[str, str]] = {}
    for row in header["evaluation"].get("breakdown", ()):
        groups.setdefault(_PARTS[row["group"], row["part"]], {})[row["metric"]] = row_figure(row)
    if "everybody" in groups:
        groups["everybody"][header["metric"]] = _score(header, header["evaluation"][header["metric"]])
    return groups


def _score(header: Header, score: float) -> str:
    return with_interval(score, interval_of(header, score))


def _by_cutoff(header: Header, earlier: Header | None) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the winner's figures over all users at each measured cutoff, with those of the earlier run behind them."""
    runs = [(_at_cutoffs(header), ""), ({} if earlier is None else _at_cutoffs(earlier), ", earlier run")]
    for cutoff in sorted(runs[0][0]):
        for figures, when in runs:
            if cutoff in figures:
                yield f"everybody, {cutoff} items{when}", figures[cutoff]


def _at_cutoffs(header: Header) -> dict[int, Mapping[str, object]]:
    figures = {int(cutoff): at for cutoff, at in header["evaluation"].get("cutoffs", {}).items()}
    if everybody := breakdown(header).get("everybody"):
        figures[header["cutoff"]] = everybody
    return figures


def parameters(params: Mapping[str, Any]) -> str:
    """Return the parameters of a trial in one line."""
    shown = (
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in params.items()
    )
    return ", ".join(shown) or "nothing to tune"


def moment(iso: str) -> str:
    """Return a time of the header in words that no line break divides."""
    return iso.replace("+00:00", "Z").replace("Z", " UTC").replace("T", " ", 1).replace(" ", NO_BREAK)


def figure(value: float) -> str:
    """Return a number for a cell: whole numbers with separators of thousands, others with four decimals.

    From 1,000 on, others have one decimal. The floats 0.0, 1.0 and −1.0 have four, like other scores and shares.
    """
    if isinstance(value, float) and not (value.is_integer() and abs(value) > 1):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"
    return f"{int(value):,}"


def _runs(header: Header, earlier: Header) -> list[Sequence[object]]:
    """Return rows that compare this run with an earlier one of the same recipe."""
    metric = header["metric"]
    lines: list[tuple[str, Callable[[Header], object]]] = [
        ("trained", lambda head: moment(head["trained_at"])),
        ("winner", lambda head: short_name(head["best_class"])),
        (
            # An earlier run may have been searched by another metric.
            f"{metric} at its cutoff",
            lambda head: _score(head, head["evaluation"][metric]) if metric in head["evaluation"] else "",
        ),
        ("cutoff", lambda head: head["cutoff"]),
        ("rows", lambda head: head["data_stats"]["n_rows"]),
        ("users", lambda head: head["data_stats"]["n_users"]),
        ("items", lambda head: head["data_stats"]["n_items"]),
        ("recipe", lambda head: head["recipe_hash"]),
    ]
    return [(label, value(header), value(earlier)) for label, value in lines]


def _data(stats: Mapping[str, Any]) -> list[Sequence[object]]:
    counts = [(label, stats[name]) for name, label in _DATA.items() if name in stats]
    return [*counts, ("density", f"{stats['density']:.4%}")]


def _cold_metrics(header: Header) -> list[str]:
    return list(dict.fromkeys(("recall", "ndcg", header["metric"])))


def _cold_start(header: Header, sides: Mapping[str, Mapping[str, Any]]) -> Iterable[Sequence[object]]:
    names = _cold_metrics(header)
    for side, measured in sides.items():
        if "model" not in measured:
            yield side, f"not measured: {measured['skipped']}", "", *("" for _ in names)
            continue
        for order in ("model", "popularity", "random"):
            scores, interval = dict(measured[order]), measured.get("intervals", {}).get(order, ())
            if header["metric"] in scores:
                scores[header["metric"]] = with_interval(scores[header["metric"]], interval)
            yield side, order, f"{measured['n_held']:,}", *(scores.get(name, "") for name in names)


def _new_items(measured: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    if "skipped" in measured:
        yield "not measured", measured["skipped"]
        return
    intervals = measured.get("intervals", {})
    for name, label in _NEW_ITEMS.items():
        if name in measured:
            yield label, with_interval(measured[name], intervals.get(name, ()))


def recency_rows(header: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield recency and score of each of `tried_values`, with a mark at the chosen one.

    There are no rows for a training without a report.
    """
    for row in tried_values(header):
        mark = " (taken)" if row["recency"] == header.get("recency", 0.0) else ""
        yield f"{row['recency']:g}{mark}", with_interval(row["score"], row["interval"])


def comparison_rows(header: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    """Yield a row for each comparison: opponent, both scores, change, users, how the opponent was scored."""
    for comparison in header["promotion"]["against"]:
        low, high = map(percent, comparison["interval"])
        yield (
            _OPPONENTS.get(comparison["name"], comparison["name"]),
            _score(header, comparison["candidate"]),
            comparison["other"],
            f"{percent(comparison['change'])} ({NO_BREAK.join((low, 'to', high))})",
            comparison["n_users"],
            _SCORED.get(comparison["scored"], comparison["scored"]),
        )


def guardrail_rows(header: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    """Yield a row for each guardrail: both values, change, the bound of the change, and whether it passes."""
    for name, guardrail in header["promotion"]["guardrails"].items():
        passed = "passes" if guardrail["passed"] else "refuses the model"
        is_cost = "max_relative_change" in guardrail
        bound = guardrail["max_relative_change"] if is_cost else guardrail["min_relative_change"]
        allowed = f"{'at most' if is_cost else 'at least'} {percent(bound)}"
        yield name, guardrail["candidate"], guardrail["other"], percent(guardrail["change"]), allowed, passed


def weight_rows(header: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield name, group and weight of each feature, the largest absolute weight first."""
    features = header.get("ranker", {}).get("features", ())
    for feature in sorted(features, key=lambda feature: -abs(feature["weight"])):
        yield feature["name"], feature["group"], f"{feature['weight']:+.3f}"
