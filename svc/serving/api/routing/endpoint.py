"""What one endpoint is, and what the path of a request leads to; `endpoints` has the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import BaseModel

from svc import errors
from svc.errors import ApiError
from svc.settings import Settings

Errors = tuple[type[ApiError], ...]
PARAMETER = "{name}"
BATCH_PREFIX = "batch-"

ANY: Errors = (
    errors.MalformedRequest,
    errors.AmbiguousLength,
    errors.HostNotAllowed,
    errors.MethodNotAllowed,
    errors.EncodingNotSupported,
    errors.TargetTooLong,
    errors.HeadersTooLarge,
    errors.InternalError,
)
KEYED: Errors = (errors.MissingApiKey, errors.InvalidApiKey, errors.KeyNotAllowed, errors.RateLimited)


def _always(_settings: Settings) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One row of the table. `{name}` in `path` stands for the name of a recipe.

    `public` endpoints never ask for a key. `any_host` ones answer whatever host the request names, so they must say
    nothing of a recipe. `response` is None for what the OpenAPI document leaves out. `errors` are those beside the ones
    that every endpoint has; `unavailable` says when the answer is the response with status 503. `under_verb` is
    the verb that a key must be allowed for what is no verb itself; what `tells_of_all` recipes at once is refused to a
    key that may ask for some only. What `asks_model` waits in the queue of a model, and may be refused for a long one.
    """

    name: str
    path: str
    public: bool
    method: Literal["GET", "POST"] = "GET"
    any_host: bool = False
    summary: str = ""
    request: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    response: type[BaseModel] | None = None
    errors: Errors = ()
    unavailable: str = ""
    content_type: str = "application/json"
    is_served: Callable[[Settings], bool] = _always
    under_verb: str = ""
    tells_of_all: bool = False
    asks_model: bool = False

    @property
    def is_batch(self) -> bool:
        return self.verb.startswith(BATCH_PREFIX)

    @property
    def policy_verb(self) -> str:
        """The verb that a key must be allowed, or nothing; a verb covers its batch form."""
        return self.verb.removeprefix(BATCH_PREFIX) or self.under_verb

    @property
    def verb(self) -> str:
        """The recommendation verb that the path ends with, or nothing."""
        return self.path.partition(PARAMETER + ":")[2]

    @property
    def refuses_unknown_parameters(self) -> bool:
        """True for answers about recipes, which a misspelt parameter would make wrong.

        Probes, metrics and pages ignore parameters, since balancers, scrapers and browsers add their own.
        """
        return self.path.startswith("/v1/recipes")

    @property
    def all_errors(self) -> Errors:
        parameters = (errors.ValidationFailed,) if self.refuses_unknown_parameters else ()
        switched_off = () if self.is_served is _always else (errors.NotFound,)
        return (*(() if self.public else KEYED), *self.errors, *parameters, *switched_off, *ANY)


class Route(NamedTuple):
    """What a path leads to: its endpoints by method, and the name of the recipe in it, if any."""

    endpoints: Mapping[str, Endpoint]
    name: str
    verb: str
    any_host: bool

    @classmethod
    def of(cls, endpoints: Mapping[str, Endpoint]) -> Route:
        """The route to these rows, which share one path."""
        rows = list(endpoints.values())
        return cls(endpoints, "", rows[0].verb, all(row.any_host for row in rows))

    @property
    def path(self) -> str:
        """The path as the table writes it, the same for every recipe."""
        return next(iter(self.endpoints.values())).path

    def label(self, method: str) -> str:
        """The name for logs: the verb, or the name of the endpoint; for a wrong method that of the path's first row."""
        endpoint = self.endpoints.get("GET" if method == "HEAD" else method, next(iter(self.endpoints.values())))
        return endpoint.verb or endpoint.name

    def endpoint(self, method: str) -> Endpoint:
        """The row that answers `method`, in capitals (RFC 9110, 9.1). Raises MethodNotAllowed."""
        endpoint = self.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = [*self.endpoints, *(["HEAD"] if "GET" in self.endpoints else [])]
            raise errors.MethodNotAllowed(
                errors.MethodNotAllowed.template.format(methods=", ".join(allowed)), fields={"allow": allowed}
            )
        return endpoint
