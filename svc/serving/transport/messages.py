"""Messages between a connection and the application: requests, their bodies in parts, and responses."""

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
    """The error when the client closed its connection before the request was complete."""


class Response(NamedTuple):
    """An answer before it is sent.

    The connection adds the headers for its length, the date and the end of the connection. The connection always ends
    behind an answer that `ends_connection`.
    """

    status: int
    body: bytes = b""
    headers: Headers = ()
    content_type: bytes = JSON
    ends_connection: bool = False


@dataclass(slots=True)
class Head:
    """The first part of a request.

    Requests with equal heads may share one instance, so only `notes` change.
    """

    method: str
    target: bytes
    headers: Headers
    """Names in lower case."""

    length: int | None = 0
    """Bytes of the body, or None if it comes in chunks."""

    keeps_alive: bool = True
    expects_continue: bool = False
    takes_interim: bool = True
    """Whether the client understands interim answers. HTTP/1.0 has none."""

    credential: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """The header with the client's key, if it is not among `headers`: a shared head holds no secret."""

    notes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Results that the application derived from the head, for the next request that shares it."""


class Incoming(Protocol):
    """One request as its connection gives it to the application."""

    head: Head
    client: str
    """Address of the client, or of the balancer in front; empty when it has left."""

    arrived_s: float
    """Time of arrival, in trio's time."""

    late_s: float
    """Seconds that the request would wait if they exceed its limit, else 0. A late request comes out of turn to be
    refused. See `Application.late_s`."""

    whole_body: bytes | None
    """The body, if all of it came with the head. Most bodies do, and need neither a deadline nor a wait."""

    async def receive(self) -> bytes:
        """Return the next part of a body that did not come whole, or no bytes at its end. Raises ClientGone."""

    async def until_gone(self) -> None:
        """Return when the client has left. A client that only ended its requests still waits for its answer.

        Bytes that the client sends until then are kept for `receive`, within bounds.
        """


class Opening(Protocol):
    """The parts of a request that can be read before it is parsed."""

    def method_and_target(self) -> tuple[bytes, bytes]:
        """Return method and target, both empty if the first line is invalid."""

    def timeout(self) -> bytes | None:
        """Return the value of X-Request-Timeout-Ms."""


class Application(Protocol):
    """The application that answers requests."""

    urgent: tuple[bytes, ...]
    """Beginnings of requests that go before all others."""

    @property
    def is_leaving(self) -> bool:
        """True if answers announce that their connection ends."""

    def late_s(self, opening: Opening, turn_s: float) -> float:
        """Return the seconds that a request would wait if they exceed its limit, else 0.

        A request with a result above 0 comes out of turn to be refused. `turn_s` is the wait before it is parsed.
        """

    async def __call__(self, incoming: Incoming) -> Response | None:
        """Return the answer, or None if the client does not wait for it. Raises nothing."""

    def refused(self, error: ApiError, client: str) -> Response:
        """Return the answer to bytes that are no HTTP request, from the client of this address."""
