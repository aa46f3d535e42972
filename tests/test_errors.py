"""The error classes: their codes are what shells, logs, metrics and clients see."""

from __future__ import annotations

import inspect

import pytest

from svc import errors
from svc.errors import ApiError, ArtifactError, SvcError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, SvcError)]


def test_every_class_is_drawn_in_the_tree() -> None:
    """The docstring of the module shows every family of errors that a command may end with."""
    families = [c for c in CLASSES if not issubclass(c, ApiError)]
    drawn = errors.__doc__ or ""
    assert [c.__name__ for c in families if c.__name__ not in drawn] == []


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


def test_api_errors_have_distinct_codes_and_client_or_server_statuses() -> None:
    """A client tells two answers apart by `code` alone."""
    api = [c for c in CLASSES if issubclass(c, ApiError) and c is not ApiError]
    assert len({c.code for c in api}) == len(api)
    assert all(400 <= c.http_status < 600 for c in api)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.RecipeUnavailable, "unavailable"),
        (errors.InternalError, "error"),
        (errors.UnknownUser, "unknown_user"),
        (errors.FeaturesNotSupported, "features_not_supported"),
        (errors.ValidationFailed, "validation_error"),
    ],
)
def test_metric_status_is_the_code_in_lower_case_but_for_server_faults(error: type[ApiError], status: str) -> None:
    """An unloaded recipe counts as `unavailable`, other 5xx as `error`."""
    assert error.metric_status() == status


def test_an_error_carries_its_message_and_fields() -> None:
    """`fields` join the structured record of the error; the caller's mapping is copied."""
    given = {"n_rows": 1}
    error = errors.MinDataViolation("too few rows", fields=given)
    given["n_rows"] = 2
    assert (str(error), error.message, error.fields) == ("too few rows", "too few rows", {"n_rows": 1})
