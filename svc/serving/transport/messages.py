"""What passes between a connection and the application: requests, their bodies in parts, and responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from svc.errors import ApiError

Headers = Sequence[tuple[bytes, bytes]]
JSON = b"application/json"
SLOWEST_BYTES_PER_S = 1 << 20
"""A body or an answer that moves faster than this may take longer than the client timeout."""


class ClientGone(Exception):
    """The client closed its connection before the request was whole: nobody waits for an answer."""


class Response(NamedTuple):
    """An answer before it is sent. The connection adds its length, the date and whether the connection ends.

    It always ends behind an answer that `ends_connection`.
    """

    status: int
    body: bytes = b""
    headers: Headers = ()
    content_type: bytes = JSON
    ends_connection: bool = False


@dataclass(slots=True)
class Head:
    """The first part of a request. What it holds may be shared by requests with equal heads, so only `notes` change."""

    method: str
    target: bytes
    headers: Headers
    """Names in lower case."""

    length: int | None = 0
    """Of the body; None when it comes in chunks."""

    keeps_alive: bool = True
    expects_continue: bool = False
    credential: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """The header with the client's key, if it is not among `headers`: what is shared holds no secret."""

    notes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What the application has found out from the rest, for the next request that shares it."""


class Incoming(Protocol):
    """One request as its connection gives it to the application."""

    head: Head
    client: str
    """Address of the client, or of the balancer in front; empty when it has left."""

    arrived_s: float
    """When it came, in trio's time."""

    late_s: float
    """Above 0: it would wait for so many seconds, more than it may, so it comes out of turn to be refused.
    See `Application.late_s`."""

    whole_body: bytes | None
    """The body, when all of it came with the head: most do, and need neither a deadline nor a wait."""

    async def receive(self) -> bytes:
        """The next part of any other body, nothing at its end. Raises ClientGone."""

    async def until_gone(self) -> None:
        """Return when the client has left. What it sends until then is kept for `receive`, within bounds."""


class Opening(Protocol):
    """What is known of a request before it is parsed."""

    def method_and_target(self) -> tuple[bytes, bytes]:
        """Both empty when the first line is none."""

    def timeout(self) -> bytes | None:
        """The value of X-Request-Timeout-Ms."""


class Application(Protocol):
    """Answers requests."""

    urgent: tuple[bytes, ...]
    """Beginnings of requests that go before all others."""

    @property
    def is_leaving(self) -> bool:
        """True when clients are to be told that their connection ends with this answer."""

    def late_s(self, opening: Opening, turn_s: float) -> float:
        """Seconds that a request would wait, if that is longer than it may, so that it comes out of turn to be refused.

        0 for all others. `turn_s` is the wait before it is parsed.
        """

    async def __call__(self, incoming: Incoming) -> Response | None:
        """The answer, or None when the client does not wait for it. Raises nothing."""

    def refused(self, error: ApiError, client: str) -> Response:
        """The answer to what is no request of HTTP, from the client of this address."""
