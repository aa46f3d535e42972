"""Errors that clients of the HTTP API see, each with its status, code and usual text.

The body of the answer, the OpenAPI examples, the reference page and the metric label are all read from these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from svc.errors.commands import SvcError


class ApiError(SvcError):
    """An HTTP answer other than 200. `message` goes to the client as `detail`.

    - `detail` is the usual message of the class, and the example in the OpenAPI document.
    - `template` is the message as a format string, if parts of it vary. `detail` then has example values.
    - `metric_status` is the `status` label of `svc_v1_requests_total`. Unless the class sets another, it is the code
      in lower case for 4xx and `error` for 5xx.
    - `protects_others` marks answers that may be very frequent. The log counts them, without a line for each.
    - `ends_connection` closes the connection, because bytes after a message that is not HTTP may mean anything.
    - `fields["retry_after"]`, in whole seconds, becomes the header Retry-After.
    """

    code = "INTERNAL_ERROR"
    http_status: ClassVar[int] = 500
    metric_status: ClassVar[str] = "error"
    detail: ClassVar[str] = ""
    protects_others: ClassVar[bool] = False
    ends_connection: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        # Not `hasattr`: each class inherits the label of its base, which may have another status.
        if "metric_status" not in vars(cls):
            cls.metric_status = "error" if cls.http_status >= 500 else cls.code.lower()

    def __init__(self, message: str = "", *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or self.detail, fields=fields)


class MalformedRequest(ApiError):
    """The request is not valid HTTP, for example its first line, its target, a header, or a chunk of its body."""

    code = "MALFORMED_REQUEST"
    http_status = 400
    detail = "the path of the request is not UTF-8"
    ends_connection = True


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
    detail = "no recipe of this name is served here; GET /v1/recipes lists the served recipes"


class UnknownUser(ApiError):
    code = "UNKNOWN_USER"
    http_status = 404
    bare: ClassVar[str] = "user_id is not in the training data"
    """The text for an endpoint that takes no other description of a user."""
    without_features: ClassVar[str] = (
        f"{bare}; fallback: popular answers anyway, history takes items that the user has chosen"
    )
    """The text for a model that takes no features of users."""
    detail = f"{without_features}; user_features can stand in for it"


class UnknownSeedItems(ApiError):
    code = "UNKNOWN_SEED_ITEMS"
    http_status = 404
    without_features: ClassVar[str] = "none of the seed items is in the training data"
    """The text for a model that takes no features of items."""
    detail = f"{without_features}; item_features can stand in for them"
    unknown_item: ClassVar[str] = "item_id is not in the training data; item_features can stand in for it"


class UsersNotServed(ApiError):
    """The recipe or its model cannot rank users for an item.

    `svc recommend --to-users` raises it too and ends with the exit code of wrong usage.
    """

    code = "USERS_NOT_SERVED"
    exit_code = 2
    http_status = 400
    detail = "the recipe does not let users be ranked for an item; serving.users: true allows it"
    template: ClassVar[str] = "a model of the kind {kind} has the same scores for every user, so it cannot rank users"
    without_vectors: ClassVar[str] = "the part that learned from item_features keeps no users; give a known item_id"


class NoCandidates(ApiError):
    code = "NO_CANDIDATES"
    http_status = 404
    detail = "no item is left to recommend after exclusions"


class MethodNotAllowed(ApiError):
    """The path does not take the method of the request. `fields["allow"]` lists the methods that it takes."""

    code = "METHOD_NOT_ALLOWED"
    http_status = 405
    template: ClassVar[str] = "this endpoint takes {methods}"
    detail = template.format(methods="POST")


class BodyTimeout(ApiError):
    """The request body did not arrive within SVC_CLIENT_TIMEOUT_SECONDS and a second for each MiB."""

    code = "REQUEST_TIMEOUT"
    http_status = 408
    template: ClassVar[str] = "the body did not arrive within {seconds:g} seconds"
    detail = template.format(seconds=30)


class PayloadTooLargeForRequest(ApiError):
    code = "PAYLOAD_TOO_LARGE"
    http_status = 413
    template: ClassVar[str] = "the body is larger than {cap} bytes"
    detail = template.format(cap=128 * 1024 * 1024)


class EncodingNotSupported(ApiError):
    """The body is compressed. It is refused, because a small compressed body could expand to any size."""

    code = "ENCODING_NOT_SUPPORTED"
    http_status = 415
    detail = "Content-Encoding: send the body as it is, without compression"


class HostNotAllowed(ApiError):
    code = "HOST_NOT_ALLOWED"
    http_status = 400
    detail = "this server does not answer for the host of the request; see SVC_ALLOWED_HOSTS"


class AmbiguousLength(ApiError):
    code = "AMBIGUOUS_LENGTH"
    http_status = 400
    detail = "the request has both Content-Length and Transfer-Encoding"
    ends_connection = True


class ValidationFailed(ApiError):
    """The body, the query or a header is invalid.

    Each of `errors` has "loc", "msg" and "type", and never repeats a value.
    """

    code = "VALIDATION_ERROR"
    http_status = 422
    detail = "request body: limit: Input should be a valid integer"
    example: ClassVar[tuple[dict[str, Any], ...]] = (
        {"loc": ["body", "limit"], "msg": "Input should be a valid integer", "type": "int_type"},
    )
    """The `errors` that belong to `detail`, for the OpenAPI document."""

    def __init__(self, message: str, *, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []


class AnswerTooLarge(ApiError):
    """The answer would have more bytes than SVC_MAX_ANSWER_BYTES."""

    code = "ANSWER_TOO_LARGE"
    http_status = 422
    template: ClassVar[str] = (
        "the answer would have {size} bytes, more than {cap}: ask for a lower limit, fewer requests in a batch,"
        " or a batch with include_metadata: false"
    )
    detail = template.format(size=795_000_000, cap=128 * 1024 * 1024)


class MissingApiKey(ApiError):
    code = "MISSING_API_KEY"
    http_status = 401
    detail = "this endpoint needs the header X-API-Key, or Authorization: Bearer with the key"


class InvalidApiKey(ApiError):
    code = "INVALID_API_KEY"
    http_status = 401
    detail = "the value of X-API-Key is not a valid key"


class KeyNotAllowed(ApiError):
    """The policy of the key does not allow the request, or the recipe does not exist.

    Both cases get the same answer, so that a key cannot find out which other recipes exist. `fields["kid"]` names the
    key.
    """

    code = "KEY_NOT_ALLOWED"
    http_status = 403
    detail = "the policy of this API key does not allow this request"
    protects_others = True


class RateLimited(ApiError):
    """The key exceeds the rate of its policy. `fields["kid"]` names the key."""

    code = "RATE_LIMITED"
    http_status = 429
    detail = "this API key asks more often than its policy allows; Retry-After says when to ask again"
    protects_others = True


class Overloaded(ApiError):
    """The request would wait for longer than SVC_MAX_QUEUE_SECONDS, or than it allows by X-Request-Timeout-Ms."""

    code = "OVERLOADED"
    http_status = 503
    metric_status = "overloaded"
    detail = "the server has more requests than it can answer in time; Retry-After says when to ask again"
    protects_others = True


class FeaturesNotSupported(ApiError):
    code = "FEATURES_NOT_SUPPORTED"
    http_status = 400
    template: ClassVar[str] = "{side}_features: the model was not trained with features of that side"
    detail = template.format(side="user")


class FeatureValueUnusable(ApiError):
    code = "FEATURE_VALUE_UNUSABLE"
    http_status = 400
    detail = "feature 'year': the value is not a finite number"


class FeatureVectorUnusable(FeatureValueUnusable):
    code = "FEATURE_VECTOR_UNUSABLE"
    http_status = 422
    detail = "feature 'embedding': the vector has 3 numbers; give 384 finite numbers as a list"


class RecipeUnavailable(ApiError):
    code = "RECIPE_UNAVAILABLE"
    http_status = 503
    metric_status = "unavailable"
    detail = "the recipe has no model now; /v1/health/details says why"


class AvailabilityStale(ApiError):
    """The recipe serves only the items that a list makes available, and the list is missing or too old."""

    code = "AVAILABILITY_STALE"
    http_status = 503
    metric_status = "unavailable"
    detail = "the list of available items is too old or was never read; /v1/health/details says its age"


class InternalError(ApiError):
    code = "INTERNAL_ERROR"
    http_status = 500
    detail = "the server failed to answer; its log has the request id"
