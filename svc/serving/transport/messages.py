"""Messages between a connection and the application: requests, their bodies in parts, and responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from svc.errors import ApiError
from svc.serving.admission import UnsentBytes

Headers = Sequence[tuple[bytes, bytes]]
JSON = b"application/json"
Body = bytes | tuple[bytes, ...]
SLOWEST_BYTES_PER_S = 1 << 20
"""Lowest permitted rate of a transfer.

A body or answer of n bytes extends its time limit by n / SLOWEST_BYTES_PER_S seconds."""


class ClientGone(Exception):
    """The client closed its connection before its request was answered."""

    metric_status = "client_gone"


class Response(NamedTuple):
    """An answer before it is sent. The connection adds the headers Content-Length, Date and Connection.

    The body of a large answer is in parts, because joining them would double its memory.
    """

    status: int
    body: Body = b""
    headers: Headers = ()
    content_type: bytes = JSON
    ends_connection: bool = False
    """True if the connection must close after this answer."""

    @property
    def parts(self) -> Sequence[bytes]:
        """The body in parts."""
        return (self.body,) if isinstance(self.body, bytes) else self.body

    @property
    def size(self) -> int:
        """Length of the body in bytes."""
        return len(self.body) if isinstance(self.body, bytes) else sum(map(len, self.body))


@dataclass(slots=True)
class Head:
    """The request line and the headers of a request.

    Requests with equal heads may share one instance. If only their API keys differ, they may share `notes`. After the
    head is created, only `notes` may be changed.
    """

    method: str
    target: bytes
    headers: Headers
    """Names in lower case."""

    length: int | None = 0
    """Length of the body in bytes, or None if the body is chunked."""

    keeps_alive: bool = True
    expects_continue: bool = False
    takes_interim: bool = True
    """True if the client understands answers such as "100 Continue", which HTTP/1.0 does not have."""

    credential: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """Name and value of the header with the API key, or None if there is no such header or it is among `headers`.

    The key is kept apart so that a head in the cache holds no secret."""

    notes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Results that the application derived from the head, for later requests that share them."""


class Incoming(Protocol):
    """One request as its connection gives it to the application."""

    head: Head
    client: str
    """Address of the client or of the load balancer in front. Empty if the client has disconnected."""

    arrived_s: float
    """Time of arrival on trio's clock."""

    late_s: float
    """Expected wait in seconds if the wait is too long, else 0 (see `RequestHandler.late_s`)."""

    whole_body: bytes | None
    """The whole body if it has already been received, or None if `receive` must read it.

    Most requests have a whole body, and the application then needs no deadline for reading it."""

    def note_kid(self, kid: str) -> None:
        """Take note of the id of the request's accepted API key (kid)."""

    async def receive(self) -> bytes:
        """Return the next part of the body, or empty bytes after the last part.

        Raises ClientGone if the client has disconnected, and an ApiError if the body is malformed.
        """

    async def until_gone(self) -> None:
        """Return when the client has disconnected. A client that only stopped sending still waits for its answer.

        Bytes that arrive meanwhile are kept for `receive`, up to a bound. After more bytes the call never returns.
        """


class Opening(Protocol):
    """The parts of a request that can be read cheaply before the request is parsed."""

    def method_and_target(self) -> tuple[bytes, bytes]:
        """Return method and target. Both are empty if the first line is invalid."""

    def timeout(self) -> bytes | None:
        """Return the value of the header X-Request-Timeout-Ms, or None without the header."""


class RequestHandler(Protocol):
    """The application that answers requests, as the transport calls it."""

    urgent: tuple[bytes, ...]
    """First bytes of requests that are answered before all other requests, such as health probes."""

    @property
    def unsent(self) -> UnsentBytes:
        """The count of unsent bytes, which the connections share with the application."""

    @property
    def is_leaving(self) -> bool:
        """True if each answer must announce the end of its connection, as when the server stops."""

    def late_s(self, opening: Opening, turn_s: float) -> float:
        """Return the expected wait of a request in seconds if the wait is too long, else 0.

        `turn_s` is the expected wait before the request is parsed. A late request (a result above 0) does not wait for
        that turn. It waits in the queue of requests to be refused (`Rank.REFUSED`). The application then gets it with
        this result as `Incoming.late_s`, and refuses it, unless it has a cached answer.
        """

    async def __call__(self, incoming: Incoming) -> Response | None:
        """Return the answer, or None if the client has disconnected. Raises nothing."""

    def refuse(self, error: ApiError, client: str) -> Response:
        """Return the answer to bytes that are not an HTTP request. `client` is the address of their sender."""
