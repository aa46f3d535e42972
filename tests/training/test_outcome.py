"""The last event of a training, which has the outcome and the files that were written."""

from __future__ import annotations

from typing import Any

import pytest

from svc import logs
from svc.events import Event
from svc.progress import Progress
from svc.training.outcome import Outcome, TrainingOutcome

Emitted = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> Emitted:
    events: Emitted = []

    def emit(event: Event, /, **fields: Any) -> None:
        events.append((event.name, fields))

    monkeypatch.setattr(logs, "emit", emit)
    return events


def test_a_failure_has_the_key_id_if_it_is_known(emitted: Emitted) -> None:
    """The event also has the error's fields."""
    outcome = Outcome("books", "run-1", Progress())
    assert outcome.log_failure("no rows", "min_data_violation", 5, {"n_rows": 0}) == TrainingOutcome(5)
    outcome.kid = "k1"
    outcome.log_failure("no rows", "min_data_violation", 5, {})
    (first, fields), (second, later) = emitted
    assert first == second == "train_error"
    assert (fields["error"], fields["run_id"], fields["n_rows"]) == ("no rows", "run-1", 0)
    assert ("kid" in fields, later["kid"]) == (False, "k1")


def test_an_interrupt_names_the_files_that_were_written(emitted: Emitted) -> None:
    """An interrupt before the first write names no file."""
    outcome = Outcome("books", "run-1", Progress())
    assert outcome.log_interrupt(130) == TrainingOutcome(130)
    outcome.kept = "the artifact a.svc is live"
    outcome.log_interrupt(143)
    assert [fields["kept"][:19] for _, fields in emitted] == ["nothing was written", "the artifact a.svc "]
