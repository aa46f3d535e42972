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
    from svc.training.judging.measurements import WinnerMeasurements
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

    def diversity(self, task: Task, measured: WinnerMeasurements) -> Mapping[str, Any] | None:
        """Measure the cost of diversity to the winner. Return None if no report or no such measurement is wanted."""
        if self.path is None or not self.loaded.recipe.training.report_diversity:
            return None
        if measured.winner is None:
            return None
        from svc.training.judging.diversity import measure_diversity

        self.progress.phase("measuring diversity")
        seed = self.loaded.recipe.training.split.seed
        return measure_diversity(measured.winner, task.holdout.evaluators.sample, seed=seed)

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
