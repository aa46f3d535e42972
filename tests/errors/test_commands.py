"""Errors of commands: exit codes, stages and reasons are what schedulers, logs and metrics see."""

from __future__ import annotations

import errno
import inspect

import pytest

from svc import errors
from svc.errors import ArtifactError, SvcError

CLASSES = [c for _, c in inspect.getmembers(errors.commands, inspect.isclass) if issubclass(c, SvcError)]


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("SvcError", 1),
        ("UsageError", 2),
        ("RecipeError", 2),
        ("RecipeSecurityError", 2),
        ("DataSourceError", 3),
        ("TrainingError", 4),
        ("ArtifactError", 5),
        ("ArtifactWriteError", 5),
        ("LockContestedError", 6),
        ("ConfigError", 8),
        ("StoragePathUnusable", 8),
        ("ResourcesExhausted", 8),
    ],
)
def test_families_have_their_exit_codes(name: str, exit_code: int) -> None:
    """Exit codes are part of the interface with schedulers."""
    assert getattr(errors, name).exit_code == exit_code


def test_a_busy_lock_is_no_training_error() -> None:
    """A held lock means that a training did not start, and not that it failed."""
    assert not issubclass(errors.LockContestedError, errors.TrainingError)


def test_subclasses_keep_the_exit_code_of_their_family() -> None:
    """The exit code is 4 for every training error, and 5 for every artifact error."""
    for family in (errors.TrainingError, ArtifactError, errors.DataSourceError, errors.ConfigError):
        assert {c.exit_code for c in CLASSES if issubclass(c, family)} == {family.exit_code}


def test_artifact_errors_have_a_known_stage_and_a_reason() -> None:
    """The stage selects the event at the start. The reason is a label of a metric."""
    for c in CLASSES:
        if issubclass(c, ArtifactError):
            assert c.stage in ("read", "parse", "hmac", "deserialize")
            assert c.reason.replace("_", "").isalpha()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("can't start new thread"), "threads"),
        (OSError(errno.EMFILE, "Too many open files"), "open files"),
    ],
)
def test_a_limit_of_the_machine_is_named(error: Exception, words: str) -> None:
    """The error names the exhausted resource, with a remedy. For any other error there is none."""
    limit = errors.exhaustion(error)
    assert limit is not None
    assert limit.message.startswith(f"the system gives this process no more {words}: ")
    assert errors.exhaustion(RuntimeError("other")) is None


def test_an_error_carries_its_message_and_fields() -> None:
    """The fields are part of the log record. Later changes of the caller's mapping have no effect on them."""
    given = {"n_rows": 1}
    error = errors.MinDataViolation("too few rows", fields=given)
    given["n_rows"] = 2
    assert (str(error), error.message, error.fields) == ("too few rows", "too few rows", {"n_rows": 1})
