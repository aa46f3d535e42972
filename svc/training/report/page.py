"""The HTML report of a training: one self-contained page, written by `svc train --report` and by `svc report`.

Everything on it is read from the artifact, from its header and the interactions in it, so the page can be made again
without training.
"""

from __future__ import annotations

import html
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc import install_command
from svc.atomic_write import replace_file
from svc.errors import ArtifactWriteError, ConfigError
from svc.model.history import History
from svc.training.evaluation.intervals import PER_USER
from svc.training.report.confidence import doubts, headline, lead_told, popularity_told, span
from svc.training.report.order import order_told, recency_rows, tried
from svc.training.report.promotion import comparison_rows, decision_told, guardrail_rows
from svc.training.report.style import STYLE
from svc.training.report.verdict import sample_rows, verdict
from svc.training.report.words import features_used, metrics_explained, plain_name
from svc.training.search.trials import TrialRecord


def check_report(path: Path) -> None:
    """Raise ConfigError if a report could not be written: no extra, no folder, or a folder that is read-only."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"a report needs matplotlib: {install_command('report')}")
    folder = path.absolute().parent
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):  # noqa: PTH112 - never raises
        raise ConfigError(f"the report {path} cannot be written: name a file in a folder that exists and is writable")


class Counts(NamedTuple):
    """The number of interactions of each item, shape (items,), and of each user, shape (users,)."""

    items: NDArray[np.int64]
    users: NDArray[np.int64]

    @classmethod
    def of(cls, history: History, n_items: int) -> Counts:
        return cls(np.bincount(history.columns, minlength=n_items), np.diff(history.offsets))


def write_report(
    path: Path, header: Mapping[str, Any], counts: Counts, earlier: Mapping[str, Any] | None = None
) -> None:
    """Write the page for an artifact's `header`. With the header of an `earlier` run it compares the two.

    Raises ArtifactWriteError; an older page at `path` is then intact.
    """
    page = render(header, counts, earlier)
    try:
        replace_file(path, page.encode(), mode=0o644, durable=False)
    except OSError as error:
        raise ArtifactWriteError(f"the report {path} cannot be written: {error.strerror or error}") from error


def render(header: Mapping[str, Any], counts: Counts, earlier: Mapping[str, Any] | None = None) -> str:
    """The whole page as text."""
    from svc.training.report.plots import algorithms_plot, search_plot, tail_plot

    metric = f"{header['metric']}@{header['cutoff']}"
    best, found = _best(header), header["tuning"]["best_per_algorithm"]
    intervals = {name: one["interval"] for name, one in found.items() if "interval" in one}
    course, (items, users) = _course(header), counts
    cards = [
        _card("In short", verdict(header, metric), "wide winner"),
        _samples(header),
        _winner(header, metric),
        _promotion(header, metric),
        _parts(header),
        _card(
            "Algorithms", algorithms_plot(best, metric, intervals) + _against_baseline(best) + lead_told(header, metric)
        ),
        _cutoffs(header, earlier),
        _beside(header, earlier, metric),
        _breakdown(header),
        _diversity(header),
        _order(header, metric),
        _card("How the search went", (search_plot(course, metric) if course else "") + _tuning(header), "wide"),
        _card("Best of each algorithm", _best_table(best, intervals, metric), "wide"),
        _card("Data", _data(header) + popularity_told(header)),
        _card("Features", features_used(header)),
        _card("What the metrics mean", metrics_explained(header)),
        _card("The long tail", tail_plot(items[items > 0], users[users > 0]) + _tail(items)),
        _cold_start(header),
        _warnings(header),
    ]
    title = html.escape(f"{header['recipe_name']}: training report")
    about = (
        f"trained {header['trained_at']} · run {header['run_id']} · recipe {header['recipe_hash']}"
        f" · svc {header['svc_version']} · irspack {header['irspack_version']}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{title}</h1><p>{html.escape(about)}</p>"
        f'<div class="cards">{"".join(cards)}</div></main></body></html>\n'
    )


_PARTS = {
    ("all", "all"): "everybody",
    ("activity", "few"): "users with the shortest third of the histories",
    ("activity", "some"): "users with the middle third",
    ("activity", "many"): "users with the longest third",
    ("popularity", "head"): "choices among the most popular items (a third of the interactions)",
    ("popularity", "middle"): "among the next (another third)",
    ("popularity", "tail"): "among the long tail (the last third)",
}


def _card(title: str, body: str, extra: str = "") -> str:
    return f'<section class="card {extra}"><h2>{html.escape(title)}</h2>{body}</section>' if body else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """On a narrow page the cells of a row with more than two stand below each other, each behind its column's name."""
    names = list(head)
    top = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(_cell(value, name) for value, name in zip(row, names, strict=False)) + "</tr>" for row in rows
    )
    stacked = ' class="stacked"' if len(names) > 2 else ""
    return f"<table{stacked}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object, column: str) -> str:
    label = f' data-label="{html.escape(column)}"' if column else ""
    if isinstance(value, float) and value.is_integer() and abs(value) > 1:
        value = int(value)
    if isinstance(value, float):
        return (
            f'<td class="n"{label}>{value:.4f}</td>' if abs(value) < 1000 else f'<td class="n"{label}>{value:,.1f}</td>'
        )
    if isinstance(value, int):
        return f'<td class="n"{label}>{value:,}</td>'
    text = str(value)
    return f'<td class="{"long" if len(text) > 40 else ""}"{label}>{html.escape(text)}</td>'


def _params(params: Mapping[str, Any]) -> str:
    shown = (
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in params.items()
    )
    return ", ".join(shown) or "nothing to tune"


def _samples(header: Mapping[str, Any]) -> str:
    """What ten users are recommended, beside what they chose."""
    rows = list(sample_rows(header))
    about = "<p>Ten users by chance, and the first three items of each list, by title where the recipe names one.</p>"
    return (
        _card("Do these look right?", _table(("user", "chose", "is recommended"), rows) + about, "wide") if rows else ""
    )


def _winner(header: Mapping[str, Any], metric: str) -> str:
    found = header["evaluation"]
    measured = {
        plain_name(name): value for name, value in found.items() if isinstance(value, float) and name != "confidence"
    }
    body = (
        headline(header, metric)
        + f"<p>{html.escape(_params(header['best_params']))}</p>"
        + _rank_cost(header)
        + _table(("metric", "value"), measured.items())
    )
    return _card(f"Winner: {header['best_class']}", body)


def _rank_cost(header: Mapping[str, Any]) -> str:
    return f"<p>A single ranking takes {header['rank_ms']:.3g} ms of processor time.</p>" if "rank_ms" in header else ""


def _cutoffs(header: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> str:
    """The metrics of the winner at other cutoffs, beside those of the earlier run's winner."""
    found = header["evaluation"].get("cutoffs")
    if not found:
        return ""
    before = {} if earlier is None else earlier["evaluation"].get("cutoffs", {})
    head = ["cutoff", *PER_USER, *(f"{name}, earlier" for name in PER_USER if before)]
    rows = [
        [
            cutoff,
            *(at[name] for name in PER_USER),
            *(before.get(cutoff, {}).get(name, "") for name in PER_USER if before),
        ]
        for cutoff, at in found.items()
    ]
    return _card("The winner at other cutoffs", _table(head, rows), "wide" if before else "")


def _breakdown(header: Mapping[str, Any]) -> str:
    """The winner's metrics for groups of users and of items, each with its interval; then its coverage and novelty."""
    found = header["evaluation"].get("breakdown")
    if not found:
        return ""
    parts: dict[str, dict[str, str]] = {}
    for row in found:
        ends = "" if row["low"] is None else f" ({row['low']:.4f} to {row['high']:.4f})"
        parts.setdefault(_PARTS[row["group"], row["part"]], {})[row["metric"]] = f"{row['value']:.4f}{ends}"
    rows = [[part, *(cells.get(name, "") for name in PER_USER)] for part, cells in parts.items()]
    everybody = parts[_PARTS["all", "all"]]
    about = f"<p>Coverage {everybody.get('coverage', '?')}, novelty {everybody.get('novelty', '?')} bits.</p>"
    return _card("By activity of users and popularity of items", _table(["", *PER_USER], rows) + about, "wide")


def _diversity(header: Mapping[str, Any]) -> str:
    """How accuracy falls and variety grows with `diversity`, for the winner."""
    from svc.training.report.plots import diversity_plot

    found = header["evaluation"].get("diversity")
    if not found:
        return ""
    head = ("diversity", "ndcg", "interval", "distance", "coverage")
    rows = [
        [f"{row['diversity']:g}", row["ndcg"], span(row["interval"]), row["distance"] or "", row["coverage"]]
        for row in found["values"]
    ]
    about = f"<p>{found['n_users']:,} validation users, as svc serves with <code>serving.diversity</code>.</p>"
    plot = diversity_plot(found["values"], f"ndcg@{header['cutoff']}")
    return _card("What diversity costs", plot + _table(head, rows) + about, "wide")


def _order(header: Mapping[str, Any], metric: str) -> str:
    from svc.training.report.plots import recency_plot

    values = tried(header)
    plot = (
        recency_plot(values, metric) + _table(("recency", metric, "interval"), recency_rows(header)) if values else ""
    )
    return _card("The order of histories", plot + order_told(header))


def _beside(header: Mapping[str, Any], earlier: Mapping[str, Any] | None, metric: str) -> str:
    """A table of this run and an earlier one of the same recipe."""
    if earlier is None:
        return ""
    lines: list[tuple[str, Callable[[Mapping[str, Any]], object]]] = [
        ("trained", lambda head: head["trained_at"]),
        ("winner", lambda head: head["best_class"]),
        (f"{header['metric']} at its cutoff", lambda head: head["evaluation"].get(header["metric"], "")),
        ("cutoff", lambda head: head["cutoff"]),
        ("interval", lambda head: span(head["evaluation"]["interval"]) if "interval" in head["evaluation"] else ""),
        ("rows", lambda head: head["data_stats"]["n_rows"]),
        ("users", lambda head: head["data_stats"]["n_users"]),
        ("items", lambda head: head["data_stats"]["n_items"]),
        ("recipe", lambda head: head["recipe_hash"]),
    ]
    rows = [(label, value(header), value(earlier)) for label, value in lines]
    note = "" if header["recipe_hash"] == earlier["recipe_hash"] else "<p>The recipe has changed in between.</p>"
    other = f"<p>The two runs were scored on different data, so {html.escape(metric)} compares them only roughly.</p>"
    return _card("Beside the earlier run", _table(("", "this run", "earlier run"), rows) + note + other)


def _best(header: Mapping[str, Any]) -> list[TrialRecord]:
    """The best trial of each algorithm, best first."""
    found = header["tuning"]["best_per_algorithm"]
    best = [
        TrialRecord(0, name, one["params"], "complete", one["score"], one.get("metrics", {}), None, one["seconds"])
        for name, one in found.items()
    ]
    return sorted(best, key=lambda trial: -(trial.score or 0.0))


def _course(header: Mapping[str, Any]) -> list[TrialRecord]:
    """The completed trials of the search; empty for artifacts whose headers were written before they held trials."""
    found = header["tuning"].get("trials")
    if not found:
        return []
    return [
        TrialRecord(number, found["algorithms"][of], {}, "complete", score, {}, None, 0.0)
        for number, of, score in zip(found["numbers"], found["of"], found["scores"], strict=True)
    ]


def _promotion(header: Mapping[str, Any], metric: str) -> str:
    """The promotion decision and the comparisons that it rests on."""
    told = decision_told(header)
    if not told:
        return ""
    found, body = header["promotion"], told
    if found["against"]:
        from svc.training.report.plots import changes_plot

        body += changes_plot(found["against"], found["min_relative_change"], metric)
        head = ("against", f"new {metric}", f"other {metric}", "change", "interval", "users", "scored")
        body += _table(head, comparison_rows(header))
    if found["guardrails"]:
        body += _table(("guardrail", "new", "live", "change", "allowed", ""), guardrail_rows(header))
    return _card(f"Going live: {found['decision']}", body, "wide")


def _parts(header: Mapping[str, Any]) -> str:
    """Which requests each part of the model answers; nothing where there is only one part."""
    rows = (
        (part["answers"], part["class"], part["score"], part["bytes"], _params(part["params"]))
        for part in header.get("parts", ())
    )
    head = ("answers", "part", "score", "bytes", "parameters")
    return _card("Parts of the model", _table(head, rows), "wide") if header.get("parts") else ""


def _against_baseline(best: list[TrialRecord]) -> str:
    scores = {trial.algorithm: trial.score or 0.0 for trial in best}
    baseline = scores.get("TopPopRecommender")
    if not baseline or best[0].algorithm == "TopPopRecommender":
        return ""
    return (
        f"<p>The winner scores {(best[0].score or 0.0) / baseline:.2f} times what popularity alone does (TopPop).</p>"
    )


def _tuning(header: Mapping[str, Any]) -> str:
    found = header["tuning"]
    parts = [f"{found['completed']} of {found['n_trials']} trials complete"]
    parts += [f"{found[name]} {name}" for name in ("pruned", "failed", "n_orphaned") if found[name]]
    return f"<p>{html.escape(', '.join(parts))}, {found['seconds']:.1f} s</p>"


def _best_table(best: list[TrialRecord], intervals: Mapping[str, Sequence[float]], metric: str) -> str:
    rows = (
        (
            trial.algorithm,
            trial.score or 0.0,
            span(intervals[trial.algorithm]) if trial.algorithm in intervals else "",
            trial.metrics.get("recall", ""),
            trial.seconds,
            _params(trial.params),
        )
        for trial in best
    )
    return _table(("algorithm", metric, "interval", "recall", "seconds", "parameters"), rows)


def _data(header: Mapping[str, Any]) -> str:
    stats = header["data_stats"]
    names = {
        "n_rows": "rows",
        "n_users": "users",
        "n_items": "items",
        "n_interactions": "distinct user–item pairs",
        "n_heldout_interactions": "held out for validation",
        "drop_count": "dropped by cleansing",
        "dropped_by_where": "of these by cleansing.where",
    }
    rows: list[tuple[str, object]] = [(label, stats[name]) for name, label in names.items() if name in stats]
    rows.append(("density", f"{stats['density']:.4%}"))
    return _table(("", ""), rows)


def _tail(item_counts: Any) -> str:
    falling = np.sort(item_counts)[::-1]
    top = max(1, len(falling) // 100)
    share = falling[:top].sum() / max(falling.sum(), 1)
    return f"<p>The most popular 1% of items hold {share:.0%} of all interactions.</p>"


def _cold_start(header: Mapping[str, Any]) -> str:
    rows: list[tuple[object, ...]] = []
    for side, found in header["evaluation"].get("cold_start", {}).items():
        if "model" not in found:
            rows.append((side, "not measured", found["skipped"], "", "", ""))
            continue
        intervals = found.get("intervals", {})
        for order in ("model", "popularity", "random"):
            measured, interval = found[order], span(intervals[order]) if order in intervals else ""
            rows.append((side, order, found["n_held"], measured["recall"], measured["ndcg"], interval))
    head = ("side", "order", "ids", "recall", "ndcg", f"interval of {header['metric']}")
    return _card("Cold start: items and users that training never saw", _table(head, rows) if rows else "")


def _warnings(header: Mapping[str, Any]) -> str:
    stats, found = header["data_stats"], []
    if header["best_class"] == "TopPopRecommender":
        found.append(
            "Popularity alone won: nobody gets personal recommendations. Look for more data or a longer search."
        )
    if stats["n_heldout_interactions"] < 1000:
        found.append(f"Only {stats['n_heldout_interactions']} interactions were held out: scores are uncertain.")
    if header["tuning"]["failed"]:
        found.append(f"{header['tuning']['failed']} trials failed; the log says why.")
    found += doubts(header)
    unasked = stats["drop_count"] - stats.get("dropped_by_where", 0)  # the recipe asks for what its filter drops
    if unasked > 0.2 * max(stats["n_rows"] + unasked, 1):
        found.append(f"Cleansing dropped {unasked:,} rows.")
    if stats.get("future_times"):
        found.append(f"{stats['future_times']:,} rows have a time that is later than the start of the training.")
    return _card("Warnings", "".join(f'<p class="warn">{html.escape(text)}</p>' for text in found))
