"""Errors of commands: exit codes, stages and reasons are what schedulers, logs and metrics see."""

from __future__ import annotations

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
    ],
)
def test_families_have_their_exit_codes(name: str, exit_code: int) -> None:
    """Exit codes are part of the interface with schedulers."""
    assert getattr(errors, name).exit_code == exit_code


def test_a_busy_lock_is_no_training_error() -> None:
    """Another run holding the lock is a condition of orchestration, not a failed training."""
    assert not issubclass(errors.LockContestedError, errors.TrainingError)


def test_subclasses_keep_the_exit_code_of_their_family() -> None:
    """Every training failure ends with 4, every unusable artifact with 5."""
    for family in (errors.TrainingError, ArtifactError, errors.DataSourceError, errors.ConfigError):
        assert {c.exit_code for c in CLASSES if issubclass(c, family)} == {family.exit_code}


def test_artifact_errors_have_a_known_stage_and_a_reason() -> None:
    """The stage picks the startup event, the reason is a metric label."""
    for c in CLASSES:
        if issubclass(c, ArtifactError):
            assert c.stage in ("read", "parse", "hmac", "deserialize")
            assert c.reason.replace("_", "").isalpha()
