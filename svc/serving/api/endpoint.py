"""The types of the table of endpoints: its rows, and the rows that share a path. The table itself is in `endpoints`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
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
OF_RECIPE: Errors = (errors.RecipeNotFound, errors.RecipeUnavailable)
KEYED: Errors = (errors.MissingApiKey, errors.InvalidApiKey, errors.KeyNotAllowed, errors.RateLimited)


def _always(_settings: Settings) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One row of the table of endpoints: a path with a method, its schemas, and the access that it requires."""

    name: str
    path: str
    """`{name}` stands for the name of a recipe."""
    public: bool
    """True if clients need no API key."""
    method: Literal["GET", "POST"] = "GET"
    any_host: bool = False
    """True if the Host header is not checked. Such an endpoint must not show data of a recipe."""
    summary: str = ""
    request: type[BaseModel] | None = None
    """Schema of the JSON body."""
    query: type[BaseModel] | None = None
    """Schema of the query string."""
    response: type[BaseModel] | None = None
    """Schema of the answer. The OpenAPI document leaves out endpoints without this schema."""
    errors: Errors = ()
    """Errors besides those in ANY, in KEYED if clients need a key, and in OF_RECIPE if the path names a recipe."""
    unavailable: str = ""
    """Description of an answer with status 503 that is no error, or ""."""
    content_type: str = "application/json"
    is_served: Callable[[Settings], bool] = _always
    under_verb: str = ""
    """The recommendation verb whose permission a key needs, if the endpoint is not a verb itself."""
    tells_of_all: bool = False
    """True if the answer shows all recipes. Keys that may use only some recipes are refused."""
    asks_model: bool = False
    """True if requests wait in the queue of a model, and may be refused because of this wait."""

    @cached_property
    def is_batch(self) -> bool:
        """True if the endpoint answers several requests at once."""
        return self.verb.startswith(BATCH_PREFIX)

    @property
    def policy_verb(self) -> str:
        """The verb that the policy of a key must permit, or "". A permitted verb includes its batch form."""
        return self.verb.removeprefix(BATCH_PREFIX) or self.under_verb

    @cached_property
    def verb(self) -> str:
        """The recommendation verb at the end of the path, or ""."""
        return self.path.partition(PARAMETER + ":")[2]

    @property
    def refuses_unknown_parameters(self) -> bool:
        """True if an unknown query parameter is an error.

        Endpoints of recipes refuse unknown parameters, because a misspelt parameter would silently change the answer.
        Probes, metrics and pages ignore them, because load balancers, scrapers and browsers add parameters.
        """
        return self.path.startswith("/v1/recipes")

    @property
    def all_errors(self) -> Errors:
        """All errors that the endpoint may answer, for the OpenAPI document."""
        parameters = (errors.ValidationFailed,) if self.refuses_unknown_parameters else ()
        switched_off = () if self.is_served is _always else (errors.NotFound,)
        of_recipe = OF_RECIPE if PARAMETER in self.path else ()
        return (*(() if self.public else KEYED), *of_recipe, *self.errors, *parameters, *switched_off, *ANY)


class Route(NamedTuple):
    """The result of looking up the path of a request in the table of endpoints."""

    row: Endpoint
    """The only row with this path."""
    name: str
    """The recipe in the path, or ""."""
    verb: str
    """`row.verb`, computed once."""

    @property
    def label(self) -> str:
        """The name of the endpoint for the log: its verb, or its name if it is not a verb."""
        return self.verb or self.row.name

    def endpoint(self, method: str) -> Endpoint:
        """Return the row if it has this method. A row of GET answers HEAD too. Raises MethodNotAllowed.

        Methods are case-sensitive (RFC 9110, 9.1).
        """
        allowed = ["GET", "HEAD"] if self.row.method == "GET" else [self.row.method]
        if method not in allowed:
            message = errors.MethodNotAllowed.template.format(methods=", ".join(allowed))
            if method == "POST" and self.row.path.startswith("/v1/recipes/"):
                message += "; :recommend takes POST"
            elif self.row.request is not None:
                message += ", with its fields in a JSON body"
            raise errors.MethodNotAllowed(message, fields={"allow": allowed})
        return self.row
