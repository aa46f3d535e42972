"""The time in which a request is sent or prepared is no wait, so an idle server never refuses it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from svc.serving.api import verbs
from svc.settings import Settings
from tests.serving.client import BATCH, RECOMMEND, serving
from tests.serving.sockets import listening

pytestmark = pytest.mark.anyio
LONGEST_S, WORK_S = 0.2, 0.3
DIVERSE = {"user_id": "u3", "diversity": 0.5}


@pytest.fixture
def anyio_backend() -> str:
    """Use the clock of the machine, because threads take time."""
    return "trio"


def slowly(*_: Any) -> Iterator[None]:
    time.sleep(WORK_S)
    yield


@pytest.mark.parametrize(("path", "body"), [(RECOMMEND, DIVERSE), (BATCH, {"requests": [DIVERSE]})])
async def test_a_request_whose_own_filters_take_long_is_answered(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the client still counts the whole time."""
    monkeypatch.setattr(verbs, "compile_filters", slowly)
    monkeypatch.setattr(verbs, "plans_long", lambda *_: True)
    async with serving(Settings(max_queue_s=LONGEST_S, cached_answers=0)) as (client, _):
        assert (await client.post(path, body)).status == 200
        limited = await client.post(path, body, headers={"X-Request-Timeout-Ms": str(int(LONGEST_S * 1000))})
        assert limited.status == 503


async def test_a_request_whose_body_arrives_slowly_is_answered() -> None:
    body = json.dumps(DIVERSE).encode()
    head = f"POST {RECOMMEND} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    async with (
        serving(Settings(max_queue_s=LONGEST_S)) as (client, _),
        listening(client.app) as port,
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        await stream.send_all(head.encode())
        await trio.sleep(WORK_S)
        await stream.send_all(body)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
