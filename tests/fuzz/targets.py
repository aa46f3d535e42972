"""The targets of the fuzzer: any bytes may raise svc's own errors, but no other exception, and never crash.

A request body must have the same value as with the parser of small bodies. Reading an artifact must also stay within
limits of time and memory, whatever its bytes.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import trio
from structlog.testing import capture_logs

from svc.artifact import layout
from svc.artifact.keys import development_keys, verify
from svc.errors import ApiError, ArtifactError, RecipeError
from svc.metrics import Metrics
from svc.model import codec
from svc.recipe.load import load_recipe
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator
from svc.serving.api.bodies import large_bodies
from svc.serving.api.request import ServerState
from svc.serving.models.registry import Registry
from svc.serving.transport.http1 import RequestReader, encode_head
from svc.serving.transport.messages import Head, Response
from svc.settings import Settings
from tests.serving.bodies import expected, found, several
from tests.serving.sent import Sent

CAP = 1 << 20
MOST_S = 5.0
"""Processor time that one input may take; it is some milliseconds, and under coverage and load some times that."""
MOST_BYTES = 32 << 20
SETTINGS = Settings()
KEYS = development_keys()


for _module, _ in codec.ALLOWED:  # so that no input is charged with an import
    import_module(_module)


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block takes more than MOST_S of processor time or MOST_BYTES of memory."""
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    before, began = tracemalloc.get_traced_memory()[0], time.thread_time()
    tracemalloc.reset_peak()
    try:
        yield
    finally:
        seconds, peak = time.thread_time() - began, tracemalloc.get_traced_memory()[1] - before
        if not was_tracing:
            tracemalloc.stop()
    assert seconds < MOST_S, f"took {seconds:.1f} s"
    assert peak < MOST_BYTES, f"took {peak} bytes"


def artifact(data: bytes) -> None:
    """Read the bytes as a whole artifact, as a payload, or as the pickle of a payload.

    The first byte selects one of the three.
    """
    rest = memoryview(data)[1:]
    with bounded(), suppress(ArtifactError):
        depth = data[0] % 3 if data else 0
        if depth == 0:
            read(rest)
        elif depth == 1:
            codec.decode(rest)
        else:
            codec.decode(memoryview(b"".join(codec._lay_out(bytes(rest), [memoryview(bytes(64))]))))


def read(file: memoryview) -> None:
    with suppress(ArtifactError):
        layout.kid_of(file)
    parsed = layout.parse(file, max_payload_bytes=CAP)
    with suppress(ArtifactError):
        verify(parsed, KEYS)
    parsed.header.get("kid")


def recipe(data: bytes) -> None:
    """Load the bytes as a recipe file."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file, suppress(RecipeError):
        file.write(data)
        file.flush()
        load_recipe(Path(file.name), {}, settings=SETTINGS)


def body(data: bytes) -> None:
    """Check that a request body parsed in pieces has the value of one `from_json` call.

    The first byte selects the size of the pieces. A body that repeats the document many times is checked in the same
    way: it comes in small parts, and the parser has a short look-ahead.
    """
    document = data[1:]
    little = 4 * len(document) + 64
    with patch.object(large_bodies, "PIECE_BYTES", (1, 24, CAP)[data[0] % 3 if data else 0]):
        assert found(document) == expected(document)
        with patch.object(large_bodies, "AHEAD_BYTES", little):
            assert found(several(document, 3 * little), step=13) == expected(several(document, 3 * little))


@cache
def application() -> Application:
    """Return an application that any request can reach: without recipes and keys, and for every host."""
    settings = Settings(allowed_hosts=("*",), allowed_origins=("*",))
    auth = Authenticator({})
    return Application(ServerState(Registry(), settings, Metrics.disabled(), auth))


async def answered(head: Head, body: bytes) -> Response:
    """Return the answer to a request that came in one piece."""
    sent = Sent(head.method, head.target, head.headers, whole_body=body, arrived_s=trio.current_time())
    response = await application()(sent)
    assert response is not None
    return response


def request(data: bytes) -> None:
    """Send the bytes to the whole application. No answer may be 5xx, and no error may be logged."""
    reader = RequestReader()
    reader.feed(data)
    with capture_logs() as records, suppress(ApiError):
        while (head := reader.head()) is not None:
            parts: list[bytes] = []
            while not reader.body_ended and (part := reader.part()):
                parts.append(part)
            if not reader.body_ended:
                break
            response = trio.run(answered, head, b"".join(parts))
            assert response.status < 500, response
            assert encode_head(response, closing=False).count(b"\r\n\r\n") == 1
    assert not [record for record in records if record["log_level"] in ("error", "critical")]


TARGETS = {"artifact": artifact, "recipe": recipe, "body": body, "request": request}
