"""The HTML report of a training: one self-contained page, written by `svc train --report` and by `svc report`.

All of its contents are read from the artifact, and from the header of an earlier one to compare with. So the page can
be made again without training.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc import events, install_command, logs
from svc.artifact.keys import SigningKeys
from svc.artifact.store import read_verified
from svc.atomic_write import replace_file
from svc.errors import ArtifactWriteError, ConfigError, SvcError
from svc.local_paths import failure
from svc.model.history import History
from svc.progress import Progress
from svc.recipe.algorithms import short_name
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.fitting.trial import TrialRecord

if TYPE_CHECKING:
    from jinja2 import Template

    from svc.model.model import Model
    from svc.training.judging.rankers import ServedRanker
    from svc.training.judging.search_result import SearchResult
    from svc.training.judging.task import Task


def check_report(path: Path) -> None:
    """Raise ConfigError if a report could not be written to `path`.

    This is so if the extra `report` is not installed, if `path` is a folder, or if its folder is missing or read-only.
    """
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"a report needs {missing[0]}: {install_command('report')}")
    folder = path.absolute().parent
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):  # noqa: PTH112 - never raises
        raise ConfigError(f"the report {path} cannot be written: name a file in a folder that exists and is writable")


class Counts(NamedTuple):
    """The number of distinct users of each item, (items,), and of distinct items of each user, (users,)."""

    items: NDArray[np.int64]
    users: NDArray[np.int64]

    @classmethod
    def of(cls, history: History, n_items: int) -> Counts:
        return cls(np.bincount(history.columns, minlength=n_items), np.diff(history.offsets))


def write_report(
    path: Path, header: Mapping[str, Any], counts: Counts, earlier: Mapping[str, Any] | None = None
) -> None:
    """Write the page for an artifact's `header`, with a comparison if the header of an `earlier` run is given.

    Raise ArtifactWriteError if the page cannot be written. An older page at `path` is then unchanged.
    """
    page = render(header, counts, earlier)
    try:
        replace_file(path, page.encode(), mode=0o644)
    except OSError as error:
        raise ArtifactWriteError(f"the report {path} cannot be written: {failure(error, path.parent)}") from error


def render(header: Mapping[str, Any], counts: Counts, earlier: Mapping[str, Any] | None = None) -> str:
    """Return the page as HTML. The template escapes every value except pictures and `Markup`."""
    # Late, because a training without a report needs neither matplotlib nor jinja2.
    from svc.training.report import plots
    from svc.training.report import sentences as say
    from svc.training.report.tables import breakdown, tables

    metric = f"{header['metric']}@{header['cutoff']}"
    best, searched, course = _best(header), header["tuning"]["best_per_algorithm"], _course(header)
    intervals = {name: figures["interval"] for name, figures in searched.items() if "interval" in figures}
    against, recency = header.get("promotion", {}).get("against"), say.tried_values(header)
    diversity, timed = (
        say.sampled(header, "diversity", "ndcg"),
        [trial for trial in course if trial.rank_ms is not None],
    )
    items, users = counts
    groups = say.ranker_groups(header)
    return _template().render(
        header=header,
        winner=short_name(header["best_class"]),
        earlier=earlier,
        metric=metric,
        verdict=say.verdict(header, metric),
        headline=say.headline(header),
        lead=say.lead_sentences(header, metric),
        decision=say.decision_sentences(header),
        order=say.order_sentences(header),
        ranker=say.ranker_sentences(header, metric),
        course=_course_sentence(header["tuning"]),
        popularity=say.popularity_sentences(header),
        features=say.feature_sentences(header),
        definitions=say.definitions(header),
        inequality=say.plain_name("gini_index"),
        everybody=breakdown(header).get("everybody", {}),
        tail_share=_tail_share(items),
        warnings=say.warnings(header),
        tables=tables(header, metric, best, earlier),
        plots={
            "algorithms": plots.algorithms_plot(best, metric, intervals),
            "search": plots.search_plot(course, metric) if course else "",
            "cost": plots.cost_plot(timed, metric, intervals) if timed else "",
            "changes": plots.changes_plot(against, header["promotion"]["min_relative_change"], metric)
            if against
            else "",
            "diversity": plots.diversity_plots(diversity, f"ndcg@{header['cutoff']}") if diversity else (),
            "recency": plots.recency_plot(recency, metric) if recency else "",
            "groups": plots.groups_plot(groups) if groups else "",
            # Logarithmic axes have no place for items without users.
            "tail": plots.tail_plot(items[items > 0], users[users > 0]),
        },
    )


def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from svc.training.report.tables import figure, moment, parameters

    environment = Environment(
        loader=PackageLoader("svc.training.report"),
        autoescape=True,
        # A name that the template misspells is an error, instead of an empty place on the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"figure": figure, "moment": moment, "parameters": parameters}
    return environment.get_template("page.html")


def _best(header: Mapping[str, Any]) -> list[TrialRecord]:
    """Return the best trial of each algorithm, best first."""
    best = [
        TrialRecord(0, name, row["params"], "complete", row["score"], row.get("metrics", {}), None, row["seconds"])
        for name, row in header["tuning"]["best_per_algorithm"].items()
    ]
    return sorted(best, key=lambda trial: -(trial.score or 0.0))


def _course(header: Mapping[str, Any]) -> list[TrialRecord]:
    """Return the completed trials of the search that the header has, at most 400.

    Headers of earlier versions of svc have no trials, or trials without `rank_ms`.
    """
    trials = header["tuning"].get("trials")
    if not trials:
        return []
    costs = trials.get("rank_ms", [None] * len(trials["numbers"]))
    return [
        TrialRecord(number, trials["algorithms"][of], {}, "complete", score, {}, None, 0.0, rank_ms=rank_ms)
        for number, of, score, rank_ms in zip(trials["numbers"], trials["of"], trials["scores"], costs, strict=True)
    ]


def _course_sentence(tuning: Mapping[str, Any]) -> str:
    counts = [f"{tuning['completed']} of {tuning['n_trials']} trials complete"]
    counts += [f"{tuning[name]} {name}" for name in ("pruned", "failed", "n_orphaned") if tuning[name]]
    if "too_slow" in tuning:
        counts.append(f"{tuning['too_slow']} of the pruned too slow for training.max_rank_ms")
    return f"{', '.join(counts)}, {tuning['seconds']:.1f} s"


def _tail_share(item_counts: NDArray[np.int64]) -> float:
    """Return the share of the most popular 1% of the items, at least one item, in all interactions."""
    falling = np.sort(item_counts)[::-1]
    return float(falling[: max(1, len(falling) // 100)].sum() / max(falling.sum(), 1))


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of one training, to be written to `path`. If `path` is None, every method does nothing."""

    path: Path | None
    loaded: LoadedRecipe
    settings: Settings
    progress: Progress

    def check(self) -> None:
        """Raise ConfigError before the training if the report could not be written after it."""
        if self.path is not None:
            check_report(self.path)

    def curves(self, task: Task, best: TrialRecord, winner: ServedRanker | None) -> Mapping[str, Any]:
        """Return figures of the winner that only a report shows, or nothing without a report or without `winner`."""
        if self.path is None or winner is None:
            return {}
        from svc.training.judging.curves import measure_curves

        self.progress.phase("measuring for the report")
        return measure_curves(task, best, winner)

    def on_features(self, task: Task, result: SearchResult, aware: TrialRecord | None) -> Mapping[str, Any]:
        """Return figures on cold starts and `serving.new_items`, which take about twenty trainings.

        Return nothing without a report, or if no trial learned from features: `aware` is None.
        """
        if self.path is None or aware is None:
            return {}
        from svc.training.judging.coldstart import evaluate_cold_start
        from svc.training.judging.new_items import evaluate_new_items

        self.progress.phase("measuring cold starts")
        cold, declared = evaluate_cold_start(task, aware, result), self.loaded.recipe.serving.new_items
        new = {} if declared is None else {"new_items": evaluate_new_items(task, result, aware, declared)}
        return {"cold_start": cold, **new}

    def earlier(self, keys: SigningKeys) -> Mapping[str, Any] | None:
        """Return the header of the live artifact, to compare it in the report, or None if it cannot be verified."""
        if self.path is None:
            return None
        try:
            return read_verified(self.loaded.output_uri, keys, self.settings)[1].header
        # The earlier artifact is only compared. The training must not fail because of it.
        except SvcError:
            return None

    def write(self, header: Mapping[str, Any], model: Model, earlier: Mapping[str, Any] | None) -> None:
        """Write the page for the new model's `header`, compared with that of an `earlier` artifact if given.

        Raise ArtifactWriteError if the page cannot be written.
        """
        if self.path is None:
            return
        self.progress.phase("writing the report")
        write_report(self.path, header, Counts.of(model.history, model.n_items), earlier)
        logs.emit(events.REPORT_WRITTEN, path=str(self.path))
