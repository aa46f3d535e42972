"""Requests without newer fields give the bytes that were recorded before these fields existed.

`recorded/answers.jsonl` has requests and answers of all verbs, single and batch, for one model of each family. Run
`python -m tests.serving.test_recorded` to write the file again, only after an intended change of answers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc.asking.item_tables import MetadataTable
from svc.metrics import Metrics
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator
from svc.serving.api.request import ServerState
from svc.serving.models.registry import Registry
from svc.settings import Settings
from tests.families import FAMILIES, N_ITEMS, family
from tests.serving.certificates import Issuer
from tests.serving.client import Client, put
from tests.serving.sockets import listening

pytestmark = pytest.mark.anyio
RECORDED = Path(__file__).parent / "recorded" / "answers.jsonl"
SINGLES: list[dict[str, Any]] = [
    {"user_id": "u3"},
    {"user_id": "u11", "limit": 5, "exclude_items": ["i1", "i2", "none"]},
    {"user_id": "u7", "limit": 1000, "include_seen": True},
    {"user_id": "nobody"},
    {"user_id": "nobody", "user_features": {"tag": "a", "age": 48, "colour": "red"}},
    {"user_features": {"tag": "b"}, "limit": 3},
    {"user_features": {"age": "old"}},
    {"user_id": "u1", "exclude_items": [f"i{item}" for item in range(N_ITEMS)]},
    {},
    {"user_id": "u1", "limit": 0},
    {"user_id": 7, "color": 1},
]
RELATED: list[dict[str, Any]] = [
    {"seed_items": ["i3"]},
    {"seed_items": ["i3", "i9", "none"], "limit": 4, "exclude_items": ["i0"]},
    {"seed_items": ["none"]},
    {"item_features": {"tag": "a", "age": 24}, "limit": 2},
    {"item_features": {"new": {"tag": "b"}, "i5": {"tag": "a"}}, "user_features": {"age": 48}},
    {"seed_items": ["i3"], "exclude_items": [f"i{item}" for item in range(N_ITEMS)]},
    {"seed_items": []},
]


def requests() -> Iterator[tuple[str, str, Any]]:
    """Yield recipe, verb and body of every recorded request."""
    for name in FAMILIES:
        yield from ((name, "recommend", body) for body in SINGLES)
        yield from ((name, "recommend-related", body) for body in RELATED)
        yield name, "batch-recommend", {"requests": SINGLES, "include_metadata": True}
        yield name, "batch-recommend", {"requests": [*SINGLES[:3], "text"]}
        yield name, "batch-recommend-related", {"requests": RELATED}


@asynccontextmanager
async def serving_families() -> AsyncIterator[Client]:
    state = ServerState(Registry(), Settings(), Metrics.disabled(), Authenticator({}))
    table = MetadataTable(("title", "year"), [(f"T {item}", 1990 + item) if item else None for item in range(N_ITEMS)])
    async with trio.open_nursery() as nursery:
        for name in FAMILIES:
            await put(nursery, state, name, family(name), table if name in ("IALS", "neighbours") else None)
        yield Client(Application(state), {"x-request-id": "recorded"})
        nursery.cancel_scope.cancel()


async def answers() -> list[str]:
    lines = []
    async with serving_families() as client:
        for name, verb, body in requests():
            answer = await client.post(f"/v1/recipes/{name}:{verb}", body)
            lines.append(json.dumps([name, verb, body, answer.status, answer.body.decode()], ensure_ascii=False))
    return lines


async def test_answers_without_newer_fields_are_the_recorded_bytes() -> None:
    """Every recorded request gets the recorded status and body."""
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    found = await answers()
    assert len(found) == len(recorded)
    for line, expected in zip(found, recorded, strict=True):
        assert line == expected


@pytest.mark.parametrize("anyio_backend", ["trio"])  # a clock that jumps ends handshakes that the machine delays
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_answers_over_tls_are_the_recorded_bytes(tmp_path: Path, http2: bool) -> None:
    """Over TLS, HTTP/1.1 and HTTP/2 give the same answers as the plain port. Every fourth recorded request is sent."""
    issuer = Issuer(tmp_path)
    recorded = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    async with (
        serving_families() as client,
        listening(client.app, tls=issuer.tls()) as port,
        httpx.AsyncClient(
            base_url=f"https://localhost:{port}",
            verify=issuer.trusted(),
            http2=http2,
            headers={"x-request-id": "recorded"},
            timeout=60,
        ) as asking,
    ):
        for (name, verb, body), expected in islice(zip(requests(), recorded, strict=True), 0, None, 4):
            found = await asking.post(f"/v1/recipes/{name}:{verb}", json=body)
            assert found.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
            assert [name, verb, body, found.status_code, found.text] == expected


if __name__ == "__main__":
    RECORDED.write_text("\n".join([*trio.run(answers), ""]), encoding="utf-8")
