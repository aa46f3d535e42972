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
│  ├─ TimeUnitRequired  ├─ TimeMixture  ├─ CutoffTooLarge  ├─ FeatureDimensionExceeded
│  └─ FeatureRidgeFailed, DataChangedTooMuch
├─ ArtifactError            5  an artifact cannot be read, trusted or used
│  ├─ ArtifactReadError, NoSuchVersion, MetadataError                                   stage "read"
│  ├─ MagicMismatch, UnsupportedFormat, HeaderTooLarge, HeaderInvalid, PayloadTooLarge,  stage "parse"
│  │  ArtifactReplayed, ArtifactExpired
│  ├─ UnknownKid, SignatureMismatch                                                     stage "hmac"
│  └─ ForbiddenClass, PayloadInvalid, VersionSkew, FeatureVersionMismatch, FeatureStateMismatch
│                                                                                       stage "deserialize"
├─ ArtifactWriteError       5  an artifact or an export could not be written
├─ ExportIncomplete         5  parts of an export are missing or do not belong together
│  └─ ExportDamaged            ... a part is not what its manifest describes
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


class DataChangedTooMuch(TrainingError):
    """`fields` holds before and after, each with n_rows, n_users and n_items."""

    code = "data_changed_too_much"


class TimeUnitRequired(TrainingError):
    code = "time_unit_required"


class TimeMixture(TrainingError):
    code = "time_mixture"


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


class ArtifactReplayed(ArtifactError):
    """An older artifact than one that was served before, which no signed rollback names."""

    reason = "replayed"


class ArtifactExpired(ArtifactError):
    """Its signed time of expiry has passed."""

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


class NoSuchVersion(ArtifactError):
    """A version to go to that is not there."""

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


class ApiError(SvcError):
    """An HTTP answer other than 200. `message` goes to the client as `detail`.

    `detail` of a class is its usual message, and the example in the OpenAPI document.
    """

    code = "INTERNAL_ERROR"
    http_status: ClassVar[int] = 500
    detail: ClassVar[str] = ""

    def __init__(self, message: str = "", *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or self.detail, fields=fields)

    @classmethod
    def metric_status(cls) -> str:
        """The `status` label of `svc_v1_requests_total`."""
        if cls.code in ("RECIPE_UNAVAILABLE", "AVAILABILITY_STALE"):
            return "unavailable"
        return "error" if cls.http_status >= 500 else cls.code.lower()


class MalformedRequest(ApiError):
    """The target or the host of the request is not what HTTP lets them be."""

    code = "MALFORMED_REQUEST"
    http_status = 400
    detail = "the path of the request is not UTF-8"


class TargetTooLong(ApiError):
    code = "TARGET_TOO_LONG"
    http_status = 414
    detail = "the first line of the request is longer than 65536 bytes"


class HeadersTooLarge(ApiError):
    code = "HEADERS_TOO_LARGE"
    http_status = 431
    detail = "the head of the request has more than 65536 bytes or 100 headers"


class NotFound(ApiError):
    code = "NOT_FOUND"
    http_status = 404
    detail = "nothing is served at this path"


class RecipeNotFound(ApiError):
    code = "RECIPE_NOT_FOUND"
    http_status = 404
    detail = "no recipe of this name is served here"


class UnknownUser(ApiError):
    code = "UNKNOWN_USER"
    http_status = 404
    detail = "user_id is not in the training data; user_features can stand in for it"


class UnknownSeedItems(ApiError):
    code = "UNKNOWN_SEED_ITEMS"
    http_status = 404
    detail = "none of the seed items is in the training data; item_features can stand in for them"


class NoCandidates(ApiError):
    code = "NO_CANDIDATES"
    http_status = 404
    detail = "no item is left to recommend after exclusions"


class MethodNotAllowed(ApiError):
    """`fields["allow"]` names the methods that are."""

    code = "METHOD_NOT_ALLOWED"
    http_status = 405


class BodyTimeout(ApiError):
    """The request body did not arrive within the client timeout."""

    code = "REQUEST_TIMEOUT"
    http_status = 408
    detail = "the body did not arrive within 30 seconds"


class PayloadTooLargeForRequest(ApiError):
    code = "PAYLOAD_TOO_LARGE"
    http_status = 413
    detail = "the body is larger than 134217728 bytes"


class HostNotAllowed(ApiError):
    code = "HOST_NOT_ALLOWED"
    http_status = 400
    detail = "this server does not answer for the host of the request; see SVC_ALLOWED_HOSTS"


class AmbiguousLength(ApiError):
    code = "AMBIGUOUS_LENGTH"
    http_status = 400
    detail = "the request has both Content-Length and Transfer-Encoding"


class ValidationFailed(ApiError):
    """`errors` is a list of {"loc", "msg", "type"} that never echoes a value."""

    code = "VALIDATION_ERROR"
    http_status = 422
    detail = "request body: limit: Input should be a valid integer"

    def __init__(self, message: str, *, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []


class MissingApiKey(ApiError):
    code = "MISSING_API_KEY"
    http_status = 401
    detail = "this endpoint needs the header X-API-Key, or Authorization: Bearer with the key"


class InvalidApiKey(ApiError):
    code = "INVALID_API_KEY"
    http_status = 401
    detail = "the value of X-API-Key is not a valid key"


class FeaturesNotSupported(ApiError):
    code = "FEATURES_NOT_SUPPORTED"
    http_status = 400
    detail = "user_features: the model was not trained with features of that side"


class FeatureValueUnusable(ApiError):
    code = "FEATURE_VALUE_UNUSABLE"
    http_status = 400
    detail = "feature 'year': the value is not a finite number"


class RecipeUnavailable(ApiError):
    code = "RECIPE_UNAVAILABLE"
    http_status = 503
    detail = "the recipe has no model now; /v1/health/details says why"


class AvailabilityStale(ApiError):
    """The recipe shows only items of a list, and there is no list that can be trusted."""

    code = "AVAILABILITY_STALE"
    http_status = 503
    detail = "the list of available items is too old or was never read; /v1/health/details says its age"


class InternalError(ApiError):
    code = "INTERNAL_ERROR"
    http_status = 500
    detail = "the server failed to answer; its log has the request id"
