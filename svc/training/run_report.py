"""Gather the figures of a training for its report, and write it, if the caller wants one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.artifact.store import read_verified
from svc.errors import SvcError
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.model.model import Model
    from svc.training.fitting.trial import TrialRecord
    from svc.training.judging.rankers import ServedRanker
    from svc.training.judging.task import Task


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of one training, to be written at `path`. If that is None, every method does nothing."""

    path: Path | None
    loaded: LoadedRecipe
    settings: Settings
    variables: Mapping[str, str]
    progress: Progress

    def check(self) -> None:
        """Raise ConfigError before the training if the report could not be written after it."""
        if self.path is not None:
            from svc.training.report.page import check_report

            check_report(self.path)

    def curves(self, task: Task, best: TrialRecord, winner: ServedRanker | None) -> Mapping[str, Any]:
        """Measure what only a report shows of the winner. Return nothing if there is no report or no such ranker."""
        if self.path is None or winner is None:
            return {}
        from svc.training.judging.curves import measure_curves

        self.progress.phase("measuring for the report")
        return measure_curves(task, best, winner)

    def earlier(self, keys: SigningKeys) -> Mapping[str, Any] | None:
        """Return the header of the artifact that will be replaced, or None if none can be verified."""
        if self.path is None:
            return None
        try:
            return read_verified(self.loaded.output_uri, keys, self.settings)[1].header
        except SvcError:
            return None

    def write(self, header: Mapping[str, Any], model: Model, earlier: Mapping[str, Any] | None) -> None:
        """Write the page of the new model's `header`, compared with `earlier`. Raise ArtifactWriteError."""
        if self.path is None:
            return
        from svc.training.report.page import Counts, write_report

        self.progress.phase("writing the report")
        write_report(self.path, header, Counts.of(model.history, model.n_items), earlier)
        logs.emit(events.REPORT_WRITTEN, path=str(self.path))
