"""Log the event that ends a training, and return the training's result."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svc import events, logs
from svc.progress import Progress

if TYPE_CHECKING:
    from svc.artifact.store import Published
    from svc.training.judging.search_result import SearchResult

INTERNAL_ERROR = "internal_error"
_FAILED = 4
REFUSED = 9
"""Exit code of a training whose model is written but may not go live."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The result of a training.

    `artifact` is the location of the new artifact. It is None if the training was skipped or only searched, or if it
    failed or was interrupted before it wrote one.
    """

    exit_code: int
    artifact: str | None = None


@dataclass(slots=True)
class Outcome:
    """Logs the last event of a training that wrote an artifact, failed or was interrupted.

    `name` is that of the recipe. `kid` is the id of the signing key, or None before it is known. `kept` is a text about
    the files and trials that an interrupted training leaves. `written` is the result once the artifact is written.
    """

    name: str
    run_id: str
    progress: Progress
    kid: str | None = None
    kept: str = "nothing was written; the last artifact, if there is one, is unchanged"
    written: TrainingOutcome = TrainingOutcome(0)

    def done(
        self, head: Mapping[str, Any], published: Published, result: SearchResult, recipe: Path, exit_code: int
    ) -> None:
        """Log that a training wrote an artifact. `head` is the artifact's header, `recipe` the file of the recipe."""
        stats = head["data_stats"]
        is_gated = "promotion" in head or published.held
        promotion_fields: dict[str, Any] = {"promoted": published.promoted} if is_gated else {}
        if exit_code == REFUSED:
            from svc.training.publishing.gate import refusal

            promotion_fields["refused"] = refusal(head["promotion"], recipe, published.artifact, published.live)
        self._end(
            events.TRAIN_DONE,
            exit_code,
            artifact=published.artifact,
            **{name: head[name] for name in ("best_class", "best_score", "rank_ms")},
            trials=len(result.trials),
            n_orphaned=result.n_orphaned,
            **{name: head[name] for name in ("trained_at", "kid", "recipe_hash")},
            **promotion_fields,
            **{name: stats[name] for name in ("n_rows", "n_users", "n_items")},
        )

    def log_defect(self, error: Exception) -> TrainingOutcome:
        """Log an error that svc does not raise on purpose, with its four innermost stack frames. The exit code is 4."""
        message = f"{type(error).__name__}: {error}"
        innermost = traceback.extract_tb(error.__traceback__)[-4:]
        frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in innermost]
        return self.log_failure(message, INTERNAL_ERROR, _FAILED, {"traceback": frames})

    def log_failure(self, message: str, code: str, exit_code: int, fields: Mapping[str, Any]) -> TrainingOutcome:
        """Log an error, with additional `fields` of the event. Its text names the artifact if one is written."""
        if self.written.artifact is not None:
            message = f"{message}; {self.kept}"
        kid_field = {} if self.kid is None else {"kid": self.kid}
        return self._end(
            events.TRAIN_ERROR, exit_code, error=message, code=code, trained_at=now(), **kid_field, **fields
        )

    def log_interrupt(self, exit_code: int) -> TrainingOutcome:
        """Log that the training was interrupted, with the text `kept`."""
        return self._end(events.TRAIN_INTERRUPTED, exit_code, kept=self.kept)

    def _end(self, event: events.Event, exit_code: int, **fields: Any) -> TrainingOutcome:
        """Log the last `event`, and return what was written with the exit code."""
        # First, so that the event does not stand in the line of the display.
        self.progress.close()
        logs.emit(event, name=self.name, run_id=self.run_id, exit_code=exit_code, **fields)
        return replace(self.written, exit_code=exit_code)


def now() -> str:
    """Return the current time in UTC, as ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
