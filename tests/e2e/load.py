"""Threads that send requests until they are stopped, and a load that checks every answer."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

Judge = Callable[[int, dict[str, Any]], str | None]


def only_200(status: int, body: object) -> str | None:
    """Return an error text for any other status than 200. Serves as `judge` of a load."""
    return None if status == 200 else f"status {status}: {body}"


@dataclass
class Tally:
    """The results of a load.

    `failures` has a text for each request without a right answer, and `seconds` the duration of each other request.
    """

    answered: int = 0
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refused: int = 0


class Clients:
    """Threads that run `ask`, one for each client, from the beginning to the end of a `with` block.

    A subclass defines `ask`, which must return soon after `over` is set.
    """

    def __init__(self, count: int) -> None:
        self.over = threading.Event()
        self._threads = [threading.Thread(target=self.ask, args=(number,)) for number in range(count)]

    def ask(self, number: int) -> None:
        """Send the requests of client `number` until `over` is set."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


class Load(Clients):
    """Clients that send the same requests again and again.

    `judge` gets status and body of an answer, and returns an error text or None. A connection that the server does not
    accept counts as refused and not as failed. Each client pauses for `pause_s` between two requests. `note` gets the
    Unix time at which a request was sent, and the body of its answer.
    """

    def __init__(
        self,
        url: str,
        requests: Sequence[tuple[str, dict[str, Any]]],
        *,
        clients: int,
        judge: Judge,
        headers: Mapping[str, str] | None = None,
        pause_s: float = 0.0,
        note: Callable[[float, dict[str, Any]], None] | None = None,
    ) -> None:
        self._address = urlsplit(url)
        self._requests = [(path, json.dumps(body)) for path, body in requests]
        self._judge = judge
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._pause_s = pause_s
        self._note = note
        self._lock = threading.Lock()
        self.tally = Tally()
        super().__init__(clients)

    def ask(self, number: int) -> None:
        path, body = self._requests[number % len(self._requests)]
        while not self.over.is_set() and (connection := self._connect()) is not None:
            with closing(connection):
                self._converse(connection, path, body)

    def _converse(self, connection: http.client.HTTPConnection, path: str, body: str) -> None:
        """Send requests over one connection until the block ends, the server closes it, or a request fails."""
        wrong = None
        while not self.over.is_set() and wrong is None and connection.sock is not None:
            began, sent_at = time.perf_counter(), time.time()
            try:
                connection.request("POST", path, body, self._headers)
                answer = connection.getresponse()
                document = json.loads(answer.read())
                wrong = self._judge(answer.status, document)
                if self._note is not None:
                    self._note(sent_at, document)
            except (OSError, http.client.HTTPException) as error:
                wrong = f"{type(error).__name__}: {error}"
            with self._lock:
                self.tally.answered += wrong is None
                self.tally.failures += [wrong] if wrong else []
                self.tally.seconds += [] if wrong else [time.perf_counter() - began]
            self.over.wait(self._pause_s)

    def _connect(self) -> http.client.HTTPConnection | None:
        """Return a connection, or None if the server accepts no more, which ends the client."""
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=30)
        try:
            connection.connect()
        except OSError:
            with self._lock:
                self.tally.refused += 1
            return None
        return connection
