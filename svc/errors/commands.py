"""The base of all deliberate errors, and the errors that end a command.

Each family has one exit code, which schedulers and scripts depend on.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

Stage = Literal["read", "parse", "hmac", "deserialize"]


class SvcError(Exception):
    """Base of all deliberate errors.

    `fields` are extra values for the structured record of the error, such as observed counts.
    """

    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = dict(fields or {})


class UsageError(SvcError):
    code = "usage_error"
    exit_code = 2


class RecipeError(SvcError):
    """The recipe cannot be read, parsed or validated."""

    code = "recipe_error"
    exit_code = 2


class RecipeUnreadable(RecipeError):
    """The recipe file could not be read this time. The recipe itself may be valid."""


class RecipeSecurityError(RecipeError):
    """The recipe asks for something that is never allowed, regardless of the data."""

    code = "recipe_security_error"


class RefitRefused(RecipeError):
    """`--refit` cannot use the parameters of the live artifact.

    They were searched under another recipe.
    """

    code = "refit_refused"


class DataSourceError(SvcError):
    code = "data_source_error"
    exit_code = 3


class SourceTooLarge(DataSourceError):
    """A byte, expansion or row cap was reached while reading."""

    code = "data_source_too_large"


class FetchError(SvcError):
    """An http(s) exchange failed, for example because of no connection, an untrusted certificate or a cut answer."""

    code = "fetch_error"
    exit_code = 3


class FetchForbidden(FetchError):
    """The URL or a redirect leads to a forbidden address, or there were too many redirects."""


class FetchStatus(FetchError):
    """The server answered with a status that the caller does not accept. `fields["status"]` holds it."""


class FetchTimedOut(FetchError):
    """The server was silent for too long, or too slow."""


class FetchTooLarge(FetchError):
    """The body is above its cap. `fields` holds bytes_read and cap."""


class TrainingError(SvcError):
    code = "training_error"
    exit_code = 4


class MinDataViolation(TrainingError):
    """The data has too few rows, users or items.

    `fields` holds n_rows, n_users, n_items, min_rows, min_users and min_items.
    """

    code = "min_data_violation"


class ZeroScore(TrainingError):
    code = "zero_score"


class FeatureAxisError(TrainingError):
    code = "feature_axis_error"


class FeatureTableError(TrainingError):
    code = "feature_table_error"


class FeatureDimensionExceeded(TrainingError):
    code = "feature_dimension_exceeded"


class FeatureRidgeFailed(TrainingError):
    code = "feature_ridge_failed"


class DataChangedTooMuch(TrainingError):
    """The counts of the data differ too much from those of the live version.

    `fields` holds before and after, each with n_rows, n_users and n_items.
    """

    code = "data_changed_too_much"


class RowFilterMismatch(TrainingError):
    """A value that cleansing.where or hide cannot compare. `fields` holds its column, and its row counted from 1."""

    code = "row_filter_mismatch"


class TimeUnitRequired(TrainingError):
    code = "time_unit_required"


class TimeMixture(TrainingError):
    code = "time_mixture"


class CutoffTooLarge(TrainingError):
    code = "cutoff_too_large"


class WeightOutOfRange(TrainingError):
    """A weight, or a sum of weights, that single precision cannot hold."""

    code = "weight_out_of_range"


class ModelNotServable(TrainingError):
    """The trained model did not pass the checks that a server makes before it loads one."""

    code = "model_not_servable"


class ArtifactError(SvcError):
    """An artifact cannot be read, trusted or used.

    `stage` is the step of loading that failed. `reason` is the label of `svc_artifact_load_failures_total`.
    """

    code = "artifact_error"
    exit_code = 5
    stage: ClassVar[Stage] = "parse"
    reason: ClassVar[str] = "parse"


class ArtifactReadError(ArtifactError):
    """The artifact could not be fetched. It is missing, access is refused, the store failed, or bytes are missing."""

    stage = "read"
    reason = "read"


class MagicMismatch(ArtifactError):
    reason = "magic"


class UnsupportedFormat(ArtifactError):
    reason = "format_version"


class HeaderTooLarge(ArtifactError):
    reason = "header"


class HeaderInvalid(ArtifactError):
    reason = "header"


class PayloadTooLarge(ArtifactError):
    """The file or its payload is above a cap. It is raised before reading if the store reports sizes."""

    stage = "read"
    reason = "size_cap"


class UnknownKid(ArtifactError):
    stage = "hmac"
    reason = "unknown_kid"


class SignatureMismatch(ArtifactError):
    stage = "hmac"
    reason = "signature"


class ArtifactMisplaced(ArtifactError):
    """The signature is valid, but the content does not belong to this file name or recipe."""

    reason = "misplaced"


class ArtifactReplayed(ArtifactError):
    """The artifact is older than one that was served before, and no signed rollback or promotion permits it."""

    reason = "replayed"


class ArtifactExpired(ArtifactError):
    """The signed time of expiry has passed."""

    reason = "expired"


class ForbiddenClass(ArtifactError):
    """The payload names a class or function that is not on the allow-list."""

    stage = "deserialize"
    reason = "forbidden_class"


class PayloadInvalid(ArtifactError):
    stage = "deserialize"
    reason = "payload"


class VersionSkew(ArtifactError):
    stage = "deserialize"
    reason = "version_skew"


class FeatureVersionMismatch(ArtifactError):
    stage = "deserialize"
    reason = "feature_version"


class FeatureStateMismatch(ArtifactError):
    stage = "deserialize"
    reason = "feature_state"


class RehearsalFailed(ArtifactError):
    """The model loads, but cannot answer, or knows too few users of the served model."""

    stage = "deserialize"
    reason = "rehearsal"


class NoSuchVersion(ArtifactError):
    """The version to promote or to roll back to does not exist."""

    code = "no_such_version"
    stage = "read"
    reason = "read"


class MetadataError(ArtifactError):
    """Item metadata that the recipe declares could not be read or lacks a declared field."""

    stage = "read"
    reason = "metadata"


class ArtifactWriteError(SvcError):
    code = "artifact_write_error"
    exit_code = 5


class ExportIncomplete(SvcError):
    code = "export_incomplete"
    exit_code = 5


class ExportDamaged(ExportIncomplete):
    code = "export_damaged"


class LockContestedError(SvcError):
    code = "lock_contested"
    exit_code = 6


class ConfigError(SvcError):
    code = "config_error"
    exit_code = 8


class StoragePathUnusable(ConfigError):
    code = "storage_path_unusable"


class ResourcesExhausted(ConfigError):
    """The system gives this process no more memory, threads or open files."""

    code = "resources_exhausted"


def exhaustion(error: Exception) -> ResourcesExhausted | None:
    """Return the error that names the exhausted limit of the machine and the way out.

    Returns None if `error` is about something else.
    """
    # Allocations of Python raise MemoryError. mmap and fork raise OSError with ENOMEM.
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        missing = "memory: give the process more, or less data (training.sample_users, cleansing.where)"
    # Python has neither a class nor a number for this error.
    elif isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        missing = "threads: raise `ulimit -u`, or the limit of processes of the container"
    # EMFILE is the limit of the process, ENFILE that of the machine.
    elif getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        missing = "open files: raise `ulimit -n`"
    else:
        return None
    return ResourcesExhausted(f"the system gives this process no more {missing}")
