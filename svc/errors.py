"""Every error that svc raises on purpose, with its codes as plain values.

SvcError
├─ UsageError               2  wrong use of the command line
├─ RecipeError              2  the recipe cannot be used
│  └─ RecipeSecurityError      ... and must not be: traversal, scheme, embedded credentials
├─ DataSourceError          3  data could not be fetched
│  └─ SourceTooLarge           ... a byte or row cap was reached
├─ FetchError               3  an http(s) exchange failed; callers raise an error of their own from it
│  └─ FetchForbidden, FetchStatus, FetchTimedOut, FetchTooLarge
├─ TrainingError            4  data or search cannot give a model
│  ├─ MinDataViolation  ├─ ZeroScore  ├─ FeatureAxisError  ├─ FeatureTableError
│  └─ TimeUnitRequired  └─ CutoffTooLarge  └─ FeatureDimensionExceeded  └─ FeatureRidgeFailed
├─ ArtifactError            5  an artifact cannot be read, trusted or used
│  ├─ ArtifactReadError, MetadataError                                                  stage "read"
│  ├─ MagicMismatch, UnsupportedFormat, HeaderTooLarge, HeaderInvalid, PayloadTooLarge   stage "parse"
│  ├─ UnknownKid, SignatureMismatch                                                     stage "hmac"
│  └─ ForbiddenClass, PayloadInvalid, VersionSkew, FeatureVersionMismatch, FeatureStateMismatch
│                                                                                       stage "deserialize"
├─ ArtifactWriteError       5  an artifact could not be written
├─ LockContestedError       6  another run holds the lock
├─ ConfigError              8  the environment or the machine is set up wrongly
│  └─ StoragePathUnusable      training.storage_path
└─ ApiError                    an HTTP answer other than 200; only while serving

Nobody reads message texts to learn what happened: `code`, `exit_code`, `reason`, `stage` and
`http_status` say it.
"""

from __future__ import annotations

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
    """The recipe file cannot be read, parsed or validated."""

    code = "recipe_error"
    exit_code = 2


class RecipeSecurityError(RecipeError):
    """The recipe asks for something that is never allowed, whatever the data."""

    code = "recipe_security_error"


class DataSourceError(SvcError):
    code = "data_source_error"
    exit_code = 3


class SourceTooLarge(DataSourceError):
    """A byte, expansion or row cap was reached while reading."""

    code = "data_source_too_large"


class FetchError(SvcError):
    """An http(s) exchange failed: no connection, no trust in the certificate, an answer that was cut."""

    code = "fetch_error"
    exit_code = 3


class FetchForbidden(FetchError):
    """The URL or a redirect leads where svc may not go, or there were too many redirects."""


class FetchStatus(FetchError):
    """The server answered, but not with what was asked for. `fields["status"]` is its status."""


class FetchTimedOut(FetchError):
    """The server was silent for too long, or too slow."""


class FetchTooLarge(FetchError):
    """The body is above its cap. `fields` holds bytes_read and cap."""


class TrainingError(SvcError):
    code = "training_error"
    exit_code = 4


class MinDataViolation(TrainingError):
    """`fields` holds n_rows, n_users, n_items, min_rows, min_users and min_items."""

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


class TimeUnitRequired(TrainingError):
    code = "time_unit_required"


class CutoffTooLarge(TrainingError):
    code = "cutoff_too_large"


class ArtifactError(SvcError):
    """An artifact cannot be read, trusted or used.

    `stage` is how far loading came; `reason` is the label of `svc_artifact_load_failures_total`.
    """

    code = "artifact_error"
    exit_code = 5
    stage: ClassVar[Stage] = "parse"
    reason: ClassVar[str] = "parse"


class ArtifactReadError(ArtifactError):
    """The bytes could not be fetched: missing, refused, cut short, or a store that failed."""

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
    """The file or its payload is above a cap. Found before reading it whole where the store tells sizes."""

    stage = "read"
    reason = "size_cap"


class UnknownKid(ArtifactError):
    stage = "hmac"
    reason = "unknown_kid"


class SignatureMismatch(ArtifactError):
    stage = "hmac"
    reason = "signature"


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


class MetadataError(ArtifactError):
    """Item metadata that the recipe declares could not be read or lacks a declared field."""

    stage = "read"
    reason = "metadata"


class ArtifactWriteError(SvcError):
    code = "artifact_write_error"
    exit_code = 5


class LockContestedError(SvcError):
    code = "lock_contested"
    exit_code = 6


class ConfigError(SvcError):
    code = "config_error"
    exit_code = 8


class StoragePathUnusable(ConfigError):
    code = "storage_path_unusable"


class ApiError(SvcError):
    """An HTTP answer other than 200. `message` goes to the client as `detail`."""

    code = "INTERNAL_ERROR"
    http_status: ClassVar[int] = 500

    @classmethod
    def metric_status(cls) -> str:
        """The `status` label of `svc_v1_requests_total`."""
        if cls.code == "RECIPE_UNAVAILABLE":
            return "unavailable"
        return "error" if cls.http_status >= 500 else cls.code.lower()


class NotFound(ApiError):
    code = "NOT_FOUND"
    http_status = 404


class RecipeNotFound(ApiError):
    code = "RECIPE_NOT_FOUND"
    http_status = 404


class UnknownUser(ApiError):
    code = "UNKNOWN_USER"
    http_status = 404


class UnknownSeedItems(ApiError):
    code = "UNKNOWN_SEED_ITEMS"
    http_status = 404


class NoCandidates(ApiError):
    code = "NO_CANDIDATES"
    http_status = 404


class MethodNotAllowed(ApiError):
    """`fields["allow"]` names the methods that are."""

    code = "METHOD_NOT_ALLOWED"
    http_status = 405


class BodyTimeout(ApiError):
    """The request body did not arrive within the client timeout."""

    code = "REQUEST_TIMEOUT"
    http_status = 408


class PayloadTooLargeForRequest(ApiError):
    code = "PAYLOAD_TOO_LARGE"
    http_status = 413


class HostNotAllowed(ApiError):
    code = "HOST_NOT_ALLOWED"
    http_status = 400


class AmbiguousLength(ApiError):
    code = "AMBIGUOUS_LENGTH"
    http_status = 400


class ValidationFailed(ApiError):
    """`errors` is a list of {"loc", "msg", "type"} that never echoes a value."""

    code = "VALIDATION_ERROR"
    http_status = 422

    def __init__(self, message: str, *, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []


class MissingApiKey(ApiError):
    code = "MISSING_API_KEY"
    http_status = 401


class InvalidApiKey(ApiError):
    code = "INVALID_API_KEY"
    http_status = 401


class FeaturesNotSupported(ApiError):
    code = "FEATURES_NOT_SUPPORTED"
    http_status = 400


class FeatureValueUnusable(ApiError):
    code = "FEATURE_VALUE_UNUSABLE"
    http_status = 400


class RecipeUnavailable(ApiError):
    code = "RECIPE_UNAVAILABLE"
    http_status = 503


class InternalError(ApiError):
    code = "INTERNAL_ERROR"
    http_status = 500
