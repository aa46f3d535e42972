"""The tables of the report, read from the header of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from svc.recipe.algorithms import short_name
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.intervals import percent
from svc.training.judging.metrics import PER_USER
from svc.training.report.sentences import plain_name, span, tried_values

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
    rows_of_search = header["tuning"]["best_per_algorithm"]
    return {
        "winner": Table(
            ("metric", "value"),
            [
                (plain_name(name), value)
                for name, value in evaluation.items()
                if isinstance(value, float) and name != "confidence"
            ],
        ),
        "comparisons": Table(
            ("against", f"new {metric}", f"other {metric}", "change", "interval", "users", "scored"),
            list(comparison_rows(header)) if promotion else (),
        ),
        "guardrails": Table(
            ("guardrail", "new", "live", "change", "allowed", ""), list(guardrail_rows(header)) if promotion else ()
        ),
        "parts": Table(
            ("answers", "part", "score", "bytes", "parameters"),
            [
                (part["answers"], short_name(part["class"]), part["score"], part["bytes"], parameters(part["params"]))
                for part in header.get("parts", ())
            ],
        ),
        "cutoffs": _cutoffs(evaluation, {} if earlier is None else earlier["evaluation"]),
        "runs": Table(("", "this run", "earlier run"), [] if earlier is None else _runs(header, earlier)),
        "breakdown": Table(
            ("", *PER_USER), [[part, *_of_each(cells)] for part, cells in breakdown(evaluation).items()]
        ),
        "diversity": Table(
            ("diversity", "ndcg", "interval", "distance", "coverage"),
            [
                (f"{row['diversity']:g}", row["ndcg"], span(row["interval"]), row["distance"] or "", row["coverage"])
                for row in evaluation.get("diversity", {}).get("values", ())
            ],
        ),
        "recency": Table(("recency", metric, "interval"), list(recency_rows(header))),
        "weights": Table(("feature", "group", "weight"), list(weight_rows(header))),
        "best": Table(
            ("algorithm", metric, "interval", "recall", "seconds", "parameters"),
            [
                (
                    short_name(trial.algorithm),
                    trial.score or 0.0,
                    span(rows_of_search[trial.algorithm].get("interval", ())),
                    trial.metrics.get("recall", ""),
                    trial.seconds,
                    parameters(trial.params),
                )
                for trial in best
            ],
        ),
        "data": Table(("", ""), _data(header["data_stats"])),
        "cold_start": Table(
            ("side", "order", "ids", "recall", "ndcg", f"interval of {header['metric']}"),
            list(_cold_start(evaluation.get("cold_start", {}))),
        ),
        "new_items": Table(("new items", "value", "interval"), list(_new_items(evaluation.get("new_items", {})))),
    }


def breakdown(evaluation: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the winner's figures by group of users or items, each with its interval, or nothing without groups."""
    groups: dict[str, dict[str, str]] = {}
    for row in evaluation.get("breakdown", ()):
        ends = "" if row["low"] is None else f" ({span((row['low'], row['high']))})"
        groups.setdefault(_PARTS[row["group"], row["part"]], {})[row["metric"]] = f"{row['value']:.4f}{ends}"
    return groups


def parameters(params: Mapping[str, Any]) -> str:
    """Return the parameters of a trial in one line."""
    shown = (
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in params.items()
    )
    return ", ".join(shown) or "nothing to tune"


def figure(value: float) -> str:
    """Return a number for a cell: whole numbers with separators of thousands, others with four decimals.

    From 1,000 on, others have one decimal. The floats 0.0, 1.0 and −1.0 have four, like other scores and shares.
    """
    if isinstance(value, float) and not (value.is_integer() and abs(value) > 1):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"
    return f"{int(value):,}"


def _of_each(figures: Mapping[str, Any]) -> list[object]:
    return [figures.get(name, "") for name in PER_USER]


def _cutoffs(evaluation: Mapping[str, Any], earlier: Mapping[str, Any]) -> Table:
    """Return the winner's metrics at several cutoffs (`CUTOFFS` in curves.py).

    If the header of the earlier run has such metrics, they stand beside them.
    """
    before = earlier.get("cutoffs", {})
    columns = ["cutoff", *PER_USER, *(f"{name}, earlier" for name in PER_USER if before)]
    rows = [
        [cutoff, *_of_each(at), *(_of_each(before.get(cutoff, {})) if before else ())]
        for cutoff, at in evaluation.get("cutoffs", {}).items()
    ]
    return Table(columns, rows)


def _runs(header: Header, earlier: Header) -> list[Sequence[object]]:
    """Return rows that compare this run with an earlier one of the same recipe."""
    lines: list[tuple[str, Callable[[Header], object]]] = [
        ("trained", lambda head: head["trained_at"]),
        ("winner", lambda head: short_name(head["best_class"])),
        (f"{header['metric']} at its cutoff", lambda head: head["evaluation"].get(header["metric"], "")),
        ("cutoff", lambda head: head["cutoff"]),
        ("interval", lambda head: span(head["evaluation"].get("interval", ()))),
        ("rows", lambda head: head["data_stats"]["n_rows"]),
        ("users", lambda head: head["data_stats"]["n_users"]),
        ("items", lambda head: head["data_stats"]["n_items"]),
        ("recipe", lambda head: head["recipe_hash"]),
    ]
    return [(label, value(header), value(earlier)) for label, value in lines]


def _data(stats: Mapping[str, Any]) -> list[Sequence[object]]:
    counts = [(label, stats[name]) for name, label in _DATA.items() if name in stats]
    return [*counts, ("density", f"{stats['density']:.4%}")]


def _cold_start(sides: Mapping[str, Mapping[str, Any]]) -> Iterable[Sequence[object]]:
    for side, measured in sides.items():
        if "model" not in measured:
            yield side, "not measured", measured["skipped"], "", "", ""
            continue
        intervals, held = measured.get("intervals", {}), f"{measured['n_held']:,}"
        for order in ("model", "popularity", "random"):
            scores = measured[order]
            yield side, order, held, scores["recall"], scores["ndcg"], span(intervals.get(order, ()))


def _new_items(measured: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    if "skipped" in measured:
        yield "not measured", measured["skipped"], ""
        return
    intervals = measured.get("intervals", {})
    for name, label in _NEW_ITEMS.items():
        if name in measured:
            yield label, measured[name], span(intervals.get(name, ()))


def recency_rows(header: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield recency, score and interval of each of `tried_values`, with a mark at the chosen one.

    There are no rows for a training without a report.
    """
    for row in tried_values(header):
        mark = " (taken)" if row["recency"] == header.get("recency", 0.0) else ""
        yield f"{row['recency']:g}{mark}", f"{row['score']:.4f}", span(row["interval"])


def comparison_rows(header: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    """Yield a row for each comparison: opponent, both scores, change, interval, users, how the opponent was scored."""
    for comparison in header["promotion"]["against"]:
        yield (
            _OPPONENTS.get(comparison["name"], comparison["name"]),
            comparison["candidate"],
            comparison["other"],
            percent(comparison["change"]),
            f"{percent(comparison['interval'][0])} to {percent(comparison['interval'][1])}",
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
