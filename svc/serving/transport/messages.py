"""Messages between a connection and the application: requests, their bodies in parts, and responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from svc.errors import ApiError

Headers = Sequence[tuple[bytes, bytes]]
JSON = b"application/json"
SLOWEST_BYTES_PER_S = 1 << 20
"""A transfer faster than this may take longer than the client timeout."""


class ClientGone(Exception):
    """The client closed its connection before the request was complete."""


class Response(NamedTuple):
    """An answer before it is sent.

    The connection adds the headers for length, date and the end of the connection. It closes after an answer with
    `ends_connection`.
    """

    status: int
    body: bytes = b""
    headers: Headers = ()
    content_type: bytes = JSON
    ends_connection: bool = False


@dataclass(slots=True)
class Head:
    """The first part of a request.

    Requests with equal heads may share one instance, so nothing but `notes` changes.
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
    """Address of the client or of the balancer in front, empty if it has disconnected."""

    arrived_s: float
    """Time of arrival, in trio's time."""

    late_s: float
    """Expected wait in seconds if it exceeds the limit of the request, else 0 (see `Application.late_s`)."""

    whole_body: bytes | None
    """The body, if all of it came with the head, as most do: it needs neither a deadline nor a wait."""

    async def receive(self) -> bytes:
        """Return the next part of the body, empty at its end. Raises ClientGone."""

    async def until_gone(self) -> None:
        """Return when the client has disconnected. A client that only ended its requests still waits for its answer.

        Bytes that arrive meanwhile are kept for `receive`, within bounds.
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
        """Return the expected wait of a request in seconds if it exceeds its limit, else 0.

        The connection passes a late request on out of turn, to be refused. `turn_s` is the wait before it is parsed.
        """

    async def __call__(self, incoming: Incoming) -> Response | None:
        """Return the answer, or None if the client has disconnected. Raises nothing."""

    def refuse(self, error: ApiError, client: str) -> Response:
        """Return the answer to bytes that are not an HTTP request. `client` is the address that sent them."""
