"""`--report`: one HTML page, without any network, that tells a run in a minute."""

from __future__ import annotations

import html
import importlib.util
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from svc.errors import ConfigError
from svc.training.trials import SearchResult, TrialRecord

_STYLE = """
:root { color-scheme: light; --ink: #1f262d; --soft: #5b6670; --line: #dfe4e9; --accent: #2f6fb0; }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #f5f7f9; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 8px; }
p { margin: 4px 0; color: var(--soft); }
.cards { display: grid; gap: 16px; margin-top: 16px; }
@media (min-width: 900px) { .cards { grid-template-columns: 1fr 1fr; } }
.card { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 16px; min-width: 0; }
.wide { grid-column: 1 / -1; }
.scroll { overflow-x: auto; }
.winner { border-left: 4px solid var(--accent); }
.score { font-size: 2rem; font-weight: 650; color: var(--ink); line-height: 1.2; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 550; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.long { min-width: 260px; overflow-wrap: anywhere; }
svg { width: 100%; max-width: 720px; height: auto; display: block; margin: 0 auto; }
.warn { color: #9a4a00; }
"""


def check_report(path: Path) -> None:
    """Raise ConfigError if a report could not be written: missing extra, missing or closed folder."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--report needs matplotlib: pip install 'svc[report]'")
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--report: {path} cannot be written: name a file in a folder that exists and is writable")


def write_report(path: Path, header: Mapping[str, Any], result: SearchResult, matrix: sparse.csr_matrix) -> None:
    """Write the page for an artifact's `header`, the search behind it and the (users, items) interactions."""
    page = render(header, result, matrix)
    handle, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(page)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def render(header: Mapping[str, Any], result: SearchResult, matrix: sparse.csr_matrix) -> str:
    """The whole page as text."""
    from svc.training.report_plots import algorithms_plot, search_plot, tail_plot

    metric = f"{header['metric']}@{header['cutoff']}"
    best = list(result.best_per_algorithm.values())
    items, users = np.diff(matrix.tocsc().indptr), np.diff(matrix.indptr)
    cards = [
        _winner(header, metric),
        _card("Algorithms", algorithms_plot(best, metric) + _against_baseline(best)),
        _card("How the search went", search_plot(result.trials, metric) + _tuning(header), "wide"),
        _card("Best of each algorithm", _best_table(best, metric), "wide"),
        _card("Data", _data(header)),
        _card("The long tail", tail_plot(items[items > 0], users[users > 0]) + _tail(items)),
        _cold_start(header),
        _warnings(header, result),
    ]
    title = html.escape(f"{header['recipe_name']}: training report")
    about = (
        f"trained {header['trained_at']} · run {header['run_id']} · recipe {header['recipe_hash']}"
        f" · svc {header['svc_version']} · irspack {header['irspack_version']}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>{title}</h1><p>{html.escape(about)}</p>"
        f'<div class="cards">{"".join(cards)}</div></main></body></html>\n'
    )


def _card(title: str, body: str, extra: str = "") -> str:
    return f'<section class="card {extra}"><h2>{html.escape(title)}</h2>{body}</section>' if body else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) > 1:
        value = int(value)
    if isinstance(value, float):
        return f'<td class="n">{value:.4f}</td>' if abs(value) < 1000 else f'<td class="n">{value:,.1f}</td>'
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    text = str(value)
    return f'<td class="{"long" if len(text) > 40 else ""}">{html.escape(text)}</td>'


def _params(params: Mapping[str, Any]) -> str:
    shown = (
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in params.items()
    )
    return ", ".join(shown) or "nothing to tune"


def _winner(header: Mapping[str, Any], metric: str) -> str:
    measured = {name: value for name, value in header["evaluation"].items() if isinstance(value, float)}
    body = (
        f'<p class="score">{header["best_score"]:.4f} <small>{html.escape(metric)}</small></p>'
        f"<p>{html.escape(_params(header['best_params']))}</p>"
        + _table(("metric", "value"), ((name, value) for name, value in measured.items()))
    )
    return _card(f"Winner: {header['best_class']}", body, "winner")


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


def _best_table(best: list[TrialRecord], metric: str) -> str:
    rows = (
        (trial.algorithm, trial.score or 0.0, trial.metrics.get("recall", 0.0), trial.seconds, _params(trial.params))
        for trial in best
    )
    return _table(("algorithm", metric, "recall", "seconds", "parameters"), rows)


def _data(header: Mapping[str, Any]) -> str:
    stats = header["data_stats"]
    names = {
        "n_rows": "rows",
        "n_users": "users",
        "n_items": "items",
        "n_interactions": "distinct user–item pairs",
        "n_heldout_interactions": "held out for validation",
        "drop_count": "dropped by cleansing",
    }
    rows: list[tuple[str, object]] = [(label, stats[name]) for name, label in names.items()]
    rows.append(("density", f"{stats['density']:.4%}"))
    return _table(("", ""), rows)


def _tail(item_counts: Any) -> str:
    falling = np.sort(item_counts)[::-1]
    top = max(1, len(falling) // 100)
    share = falling[:top].sum() / max(falling.sum(), 1)
    return f"<p>The most popular 1% of items hold {share:.0%} of all interactions.</p>"


def _cold_start(header: Mapping[str, Any]) -> str:
    rows = []
    for side, found in header["evaluation"].get("cold_start", {}).items():
        if "model" not in found:
            rows.append((side, "not measured", found["skipped"], "", ""))
            continue
        for order in ("model", "popularity", "random"):
            measured = found[order]
            rows.append((side, order, found["n_held"], measured["recall"], measured["ndcg"]))
    return _card(
        "Never seen, from features alone", _table(("side", "order", "ids", "recall", "ndcg"), rows) if rows else ""
    )


def _warnings(header: Mapping[str, Any], result: SearchResult) -> str:
    stats, found = header["data_stats"], []
    if header["best_class"] == "TopPopRecommender":
        found.append(
            "Popularity alone won: nobody gets personal recommendations. Look for more data or a longer search."
        )
    if stats["n_heldout_interactions"] < 1000:
        found.append(f"Only {stats['n_heldout_interactions']} interactions were held out: scores are uncertain.")
    if result.count("failed"):
        found.append(f"{result.count('failed')} trials failed; the log says why.")
    if stats["drop_count"] > 0.2 * max(stats["n_rows"] + stats["drop_count"], 1):
        found.append(f"Cleansing dropped {stats['drop_count']:,} rows.")
    return _card("Warnings", "".join(f'<p class="warn">{html.escape(text)}</p>' for text in found))
