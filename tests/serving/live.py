"""A server without a process and a socket: real files, watcher, loader and application, which polls on demand."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from svc import logs
from svc.artifact.keys import load_signing_keys
from svc.artifact.replay import ReplayGuard
from svc.metrics import Metrics
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator
from svc.serving.api.request import ServerState
from svc.serving.models.loader import Loader
from svc.serving.models.registry import Registry
from svc.serving.models.watcher import Watcher
from svc.serving.run import ServeOptions, _watcher
from svc.settings import Settings
from tests.serving.artifacts import SIGNING_KEYS
from tests.serving.client import Client

POLLS, PAUSE_S = 300, 0.02
"""Polls after which an event that a test waits for counts as missing, and the time for real stores between them."""


@asynccontextmanager
async def watched(recipes: Path, settings: Settings) -> AsyncIterator[tuple[Watcher, ServerState]]:
    """Yield the watcher and the state of a server that has not loaded its recipes."""
    state = ServerState(Registry(), settings, Metrics.create(), Authenticator({}))
    loader = Loader(settings, load_signing_keys(settings), {}, ReplayGuard.of(settings))
    async with trio.open_nursery() as lanes:
        yield _watcher(ServeOptions(recipes, "127.0.0.1", 0), state, loader, lanes, None), state
        lanes.cancel_scope.cancel()


class Live:
    """A running server. A poll ends with the loads that it starts, and happens only during `wait_for` and `poll`."""

    def __init__(self, portal: BlockingPortal, watcher: Watcher, state: ServerState) -> None:
        self._portal, self._watcher, self._state = portal, watcher, state
        self._client = Client(Application(state))
        self.records: list[dict[str, Any]] = []

    def poll(self, times: int = 1) -> None:
        async def polled() -> None:
            async with trio.open_nursery() as loads:
                await self._watcher._tick(loads)

        self.listen()  # a command in this process may have configured the log
        for _ in range(times):
            self._portal.call(polled)

    def listen(self) -> None:
        """Send the log to `records`."""
        logs.configure(Settings(log_format="json"), lambda line: self.records.append(json.loads(line)))

    def said(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the records of `event` that have these fields."""
        return [record for record in self.records if record["event"] == event and fields.items() <= record.items()]

    def wait_for(self, event: str, *, times: int = 1, **fields: Any) -> dict[str, Any]:
        """Poll until the `times`-th record of `event` with these fields, and return it."""
        self.until(lambda: len(self.said(event, **fields)) >= times)
        return self.said(event, **fields)[times - 1]

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until `condition` holds."""
        if condition():
            return
        for _ in range(POLLS):
            self.poll()
            if condition():
                return
            time.sleep(PAUSE_S)
        raise AssertionError(self.records[-5:])

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        content = b"" if body is None else json.dumps(body).encode()
        answer = self._portal.call(self._client.call, method, path, content)
        return httpx.Response(answer.status, headers=dict(answer.headers), content=answer.body)

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)

    def recommend(self, name: str, user: str = "u3", **more: Any) -> httpx.Response:
        return self.ask("POST", f"/v1/recipes/{name}:recommend", {"user_id": user, "limit": 1, **more})

    def health(self) -> tuple[int, dict[str, Any]]:
        answer = self.get("/v1/health")
        return answer.status_code, answer.json()

    def details(self) -> tuple[int, dict[str, Any]]:
        answer = self.get("/v1/health/details")
        return answer.status_code, answer.json()

    def recipe(self, name: str) -> dict[str, Any]:
        """Return the entry of a recipe in the health details, or an empty one."""
        return dict(self.details()[1]["recipes"].get(name, {}))

    def metric(self, series: str) -> float:
        """Return the value of a series, or 0 if it does not exist."""
        lines = self._state.metrics.render().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series + " "))


@contextmanager
def live(recipes: Path, variables: Mapping[str, str] | None = None) -> Iterator[Live]:
    """Serve the recipes of a folder in a thread until the block ends, after their first loads."""
    settings = Settings.from_env({"SVC_SIGNING_KEYS": SIGNING_KEYS, "SVC_METRICS_ENABLED": "1", **(variables or {})})

    @asynccontextmanager
    async def running() -> AsyncIterator[Live]:
        async with watched(recipes, settings) as (watcher, state):
            served = Live(portal, watcher, state)
            served.listen()
            await watcher.start()
            yield served

    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(running()) as served:
        yield served
    logs.configure(Settings())
