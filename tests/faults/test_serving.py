"""The watcher of a server, with each of its calls failing once: the old model or the new one answers, never neither."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import trio

from svc import logs
from svc.artifact.keys import load_signing_keys
from svc.artifact.replay.guard import ReplayGuard
from svc.cli import main
from svc.errors import ConfigError
from svc.metrics import Metrics
from svc.serving import run
from svc.serving.api.access.authentication import Authenticator
from svc.serving.api.request.state import ServerState
from svc.serving.models.loader import Loader
from svc.serving.models.registry import Entry, Registry
from svc.serving.models.watcher import Watcher
from svc.settings import Settings
from tests.faults.failing_calls import FAULTS, KINDS, STRIDE, FailingCalls, Failure

RECIPE = """
name: books
source: {type: csv, path: ../books.csv}
schema: {user_column: user, item_column: item}
training: {algorithms: [TopPop], n_trials: 1, cutoff: 5, split: {heldout_ratio: 0.3}}
output: {path: ../out/books.svc, versioning: append_sha, keep: 4}
item_metadata: {source: {type: csv, path: ../titles.csv}, id_column: item, fields: [title]}
serving:
  availability: {source: {type: csv, path: ../stock.csv}, id_column: item, mode: allow, refresh_seconds: 5}
"""
KEYS = "k1:" + "1f" * 32
MOMENTS = ("start", "swap", "list", "parse")
TICKS = 40
"""More than any failed load waits for, in polls."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, its tables and two versions; the pointer names the older one."""
    folder = tmp_path_factory.mktemp("served")
    items = [f"i{item}" for item in range(20)]
    rows = [f"u{user},{items[item]}" for user in range(30) for item in range(20) if (user + item) % 3]
    (folder / "books.csv").write_text("user,item\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (folder / "titles.csv").write_text("item,title\n" + "".join(f"{item},{item}!\n" for item in items))
    (folder / "stock.csv").write_text("item\n" + "\n".join(items[:15]) + "\n", encoding="utf-8")
    (folder / "recipes").mkdir()
    (folder / "recipes/books.yaml").write_text(RECIPE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SVC_SIGNING_KEYS", KEYS)
        for run_id in ("first", "second"):
            assert main.run(["train", str(folder / "recipes/books.yaml"), "--quiet", "--run-id", run_id]) == 0
            (folder / "out/books.svc").rename(folder / f"out/{run_id}.pointer")
    shutil.copy(folder / "out/first.pointer", folder / "out/books.svc")
    return folder


class Server:
    """The watcher of one folder, driven poll by poll, and what it has said."""

    def __init__(self, folder: Path, watcher: Watcher, registry: Registry, records: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.watcher = watcher
        self.registry = registry
        self.records = records

    @property
    def entry(self) -> Entry:
        entry = self.registry.get("books")
        assert entry is not None
        return entry

    @property
    def sha8(self) -> str | None:
        entry = self.registry.get("books")
        return None if entry is None or entry.served is None else entry.served.model_version.removeprefix("sha256:")[:8]

    @property
    def problem(self) -> str | None:
        """What health tells of the recipe, or of its file."""
        entry = self.registry.get("books")
        return self.registry.skipped().get("books") if entry is None else entry.error

    def named(self, pointer: str) -> str:
        return (self.folder / f"out/{pointer}.pointer").read_text().split(".")[-2]

    def point_to(self, pointer: str) -> None:
        shutil.copy(self.folder / f"out/{pointer}.pointer", self.folder / "out/new")
        (self.folder / "out/new").rename(self.folder / "out/books.svc")

    async def poll(self) -> None:
        async with trio.open_nursery() as loads:
            await self.watcher._tick(loads)

    async def refresh(self) -> None:
        """Read the list of available items, as the watcher does every few seconds."""
        await self.watcher.lists.start()


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[Server]:
    environment = {"SVC_SIGNING_KEYS": KEYS, "SVC_STATE_DIR": str(folder / "state"), "SVC_ENV": "development"}
    settings = Settings.from_env(environment)
    records: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), lambda line: records.append(json.loads(line)))
    state = ServerState(Registry(), settings, Metrics.create(), Authenticator({}, trio.CapacityLimiter(1)))
    loader = Loader(settings, load_signing_keys(settings), {}, ReplayGuard.of(settings))
    options = run.ServeOptions(folder / "recipes", "127.0.0.1", 0, insecure_no_auth=True)
    async with trio.open_nursery() as lanes:
        yield Server(folder, run._watcher(options, state, loader, lanes, None), state.registry, records)
        lanes.cancel_scope.cancel()
    logs.configure(Settings())


async def passes(trained: Path, folder: Path, moment: str, fault: tuple[str, Failure], nth: int) -> bool:
    """One life of a server in which call `nth` of a `moment` fails; True where the moment made fewer calls."""
    shutil.copytree(trained, folder)
    async with server(folder) as served:
        failing = FailingCalls(folder, *fault, nth)
        try:
            with failing if moment == "start" else nullcontext():
                await served.watcher.start()
        except ConfigError:  # the process ends with exit code 8, and whoever runs it starts it again
            assert moment == "start"
            return not failing.failed
        assert served.sha8 in ((None, served.named("first")) if moment == "start" else (served.named("first"),))
        if moment == "start" and served.sha8 is None:
            assert served.problem
        if moment == "swap":
            served.point_to("second")
        if moment == "parse":
            (folder / "recipes/books.yaml").write_text(RECIPE + "# changed\n", encoding="utf-8")
        if moment == "list":
            (folder / "stock.csv").write_text("item\ni3\n", encoding="utf-8")
        if moment != "start":
            with failing:
                await (served.refresh() if moment == "list" else served.poll())
            expected = {served.named("first"), served.named("second")} if moment == "swap" else {served.named("first")}
            assert served.sha8 in expected
            assert served.entry.served is not None
        served.point_to("second")
        for _ in range(TICKS):
            await served.poll()
        await served.refresh()
        assert served.sha8 == served.named("second"), served.records[-5:]
        assert served.entry.last_load_error is None
        assert served.entry.availability is not None
        told = [record for record in served.records if "traceback" in record or "unhandled" in record["event"]]
        assert told == []
    shutil.rmtree(folder)
    return not failing.failed


def check(trained: Path, tmp_path: Path, moment: str, fault: tuple[str, Failure]) -> Iterator[int]:
    for nth in itertools.count(1, STRIDE):
        if trio.run(passes, trained, tmp_path / str(nth), moment, fault, nth):
            return
        yield nth


@pytest.mark.system
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[1]}")
@pytest.mark.parametrize("moment", MOMENTS)
def test_any_call_may_fail(moment: str, fault: tuple[str, Failure], trained: Path, tmp_path: Path) -> None:
    """At the start, at a swap, when a list is read again, and when a recipe has changed."""
    failed = list(check(trained, tmp_path, moment, fault))
    print(f"{moment}, {fault[0]}: {len(failed)} calls")  # noqa: T201 - `-rP` shows how many


@pytest.mark.parametrize("moment", MOMENTS)
def test_some_calls_may_fail(moment: str, trained: Path, tmp_path: Path) -> None:
    """A sample of the above."""
    assert list(check(trained, tmp_path, moment, ("open", KINDS["open"][0])))
