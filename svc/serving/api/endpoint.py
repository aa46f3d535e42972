"""One endpoint, and the route of a path. The table of endpoints is in `endpoints`."""

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

    `public` endpoints need no key. `any_host` endpoints ignore the Host header, so they must not show data of a recipe.
    `response` is None for endpoints that the OpenAPI document leaves out. `errors` are the errors that only some
    endpoints return. `unavailable` describes the response with status 503. `under_verb` is the verb that a key must be
    allowed if the endpoint is not a verb itself. `tells_of_all` endpoints show all recipes, so a key for some recipes
    is refused. `asks_model` endpoints wait in the queue of a model, and may be refused if it is long.
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
        """The verb that a key must be allowed, or "". A verb covers its batch form."""
        return self.verb.removeprefix(BATCH_PREFIX) or self.under_verb

    @property
    def verb(self) -> str:
        """The recommendation verb at the end of the path, or ""."""
        return self.path.partition(PARAMETER + ":")[2]

    @property
    def refuses_unknown_parameters(self) -> bool:
        """True for answers about recipes, because a misspelt parameter would make them wrong.

        Probes, metrics and pages ignore parameters, because balancers, scrapers and browsers add their own.
        """
        return self.path.startswith("/v1/recipes")

    @property
    def all_errors(self) -> Errors:
        parameters = (errors.ValidationFailed,) if self.refuses_unknown_parameters else ()
        switched_off = () if self.is_served is _always else (errors.NotFound,)
        return (*(() if self.public else KEYED), *self.errors, *parameters, *switched_off, *ANY)


class Route(NamedTuple):
    """The endpoints of a path by method, and the name of the recipe in it, or ""."""

    endpoints: Mapping[str, Endpoint]
    name: str
    verb: str
    any_host: bool

    @property
    def path(self) -> str:
        """The path in the table, the same for every recipe."""
        return next(iter(self.endpoints.values())).path

    def label(self, method: str) -> str:
        """Return the verb or the name of the endpoint, for logs. A wrong method has the label of the first row."""
        endpoint = self.endpoints.get("GET" if method == "HEAD" else method, next(iter(self.endpoints.values())))
        return endpoint.verb or endpoint.name

    def endpoint(self, method: str) -> Endpoint:
        """Return the row for `method`, which is case-sensitive (RFC 9110, 9.1). Raises MethodNotAllowed."""
        endpoint = self.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = [*self.endpoints, *(["HEAD"] if "GET" in self.endpoints else [])]
            message = errors.MethodNotAllowed.template.format(methods=", ".join(allowed))
            if method == "POST" and self.path.startswith("/v1/recipes/"):
                message += "; :recommend takes POST"
            raise errors.MethodNotAllowed(message, fields={"allow": allowed})
        return endpoint
