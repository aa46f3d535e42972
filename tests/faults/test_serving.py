"""Each system call of the watcher fails once, and the old or the new model always answers."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from svc import logs
from svc.errors import ConfigError
from svc.metrics import Metrics
from svc.serving.api.key_policies import KeyPolicies, PolicyFile
from svc.serving.api.request import ServerState
from svc.serving.models.registry import Entry
from svc.serving.models.watcher import Watcher
from svc.serving.run import ServeOptions, _renew_keys
from svc.settings import Settings
from tests.faults.books import ITEMS, KEYS, RECIPE, run, set_environment, write_interactions
from tests.faults.failing_calls import FAULTS, KINDS, STRIDE, WORKER, FailingCalls, Failure
from tests.serving.live import watched

SERVED_RECIPE = f"""{RECIPE}
item_metadata: {{source: {{type: csv, path: titles.csv}}, id_column: item, fields: [title]}}
serving:
  availability: {{source: {{type: csv, path: stock.csv}}, id_column: item, mode: allow, refresh_seconds: 5}}
""".replace("path: ", "path: ../")
MOMENTS = ("start", "swap", "list", "parse", "metadata", "policies")
POLICY = "k9: {{recipes: [books], expires: {}}}\n"
OLD, NEW = "2090-01-01", "2091-01-01"
TICKS = 40
"""A number of polls that outlasts the pause after any failed load."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_two_versions(folder)
    return folder


def write_tables(folder: Path, n_users: int = 30) -> None:
    """Write a recipe, its tables and policies."""
    write_interactions(folder, n_users)
    (folder / "titles.csv").write_text("item,title\n" + "".join(f"{item},{item}!\n" for item in ITEMS))
    (folder / "stock.csv").write_text("item\n" + "\n".join(ITEMS[:15]) + "\n", encoding="utf-8")
    (folder / "policies.yaml").write_text(POLICY.format(OLD), encoding="utf-8")
    (folder / "recipes").mkdir()
    (folder / "recipes/books.yaml").write_text(SERVED_RECIPE, encoding="utf-8")


def write_two_versions(folder: Path, n_users: int = 30) -> None:
    """Write the tables, train two versions, and let the pointer name the older one."""
    write_tables(folder, n_users)
    with pytest.MonkeyPatch.context() as patch:
        set_environment(patch, folder)
        for run_id in ("first", "second"):
            assert run(f"train recipes/books.yaml --quiet --run-id {run_id}", folder) == 0
            (folder / "out/books.svc").rename(folder / f"out/{run_id}.pointer")
    shutil.copy(folder / "out/first.pointer", folder / "out/books.svc")


class Server:
    """The watcher of one folder, which polls on demand, and the records that it logged."""

    def __init__(self, folder: Path, watcher: Watcher, state: ServerState) -> None:
        self.folder = folder
        self.policies = KeyPolicies(Metrics.disabled())
        self.policy_file = PolicyFile(
            folder / "policies.yaml", [self.policies.replace], kids=lambda: {"k9"}, interval_s=1
        )
        self.watcher = watcher
        self.state = state
        self.registry = state.registry
        self.records: list[dict[str, Any]] = []

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
        """The error of the recipe, or of its file."""
        entry = self.registry.get("books")
        return self.registry.skipped_files().get("books.yaml") if entry is None else entry.error

    def named(self, pointer: str) -> str:
        return (self.folder / f"out/{pointer}.pointer").read_text().split(".")[-2]

    def point_to(self, pointer: str) -> None:
        shutil.copy(self.folder / f"out/{pointer}.pointer", self.folder / "out/new")
        (self.folder / "out/new").rename(self.folder / "out/books.svc")

    def listen(self) -> None:
        """Send logs to `records`. Call it again after a command in this process, which configures logs anew."""
        logs.configure(Settings(log_format="json"), lambda line: self.records.append(json.loads(line)))

    async def poll(self) -> None:
        async with trio.open_nursery() as loads:
            await self.watcher._tick(loads)

    @property
    def last_day(self) -> str:
        """The day on which key `k9` expires, by the policies in force."""
        return str(datetime.fromtimestamp(self.policies._policies["k9"].expires, UTC).date())

    @property
    def available(self) -> set[str]:
        """The ids of the available items, by the list in force."""
        served = self.entry.served
        assert served is not None
        assert served.available is not None
        return {served.model.item_ids.at(int(column)) for column in served.available.columns()}

    async def refresh(self) -> None:
        """Read the list of available items, as the watcher does every few seconds."""
        await self.watcher.lists.start()


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[Server]:
    environment = {"SVC_SIGNING_KEYS": KEYS, "SVC_STATE_DIR": str(folder / "state"), "SVC_ENV": "development"}
    async with watched(folder / "recipes", Settings.from_env(environment)) as (watcher, state):
        served = Server(folder, watcher, state)
        served.listen()
        yield served
    logs.configure(Settings())


async def passes(trained: Path, folder: Path, moment: str, fault: tuple[str, Failure], nth: int) -> bool:
    """Run a server in which call `nth` of a `moment` fails. Return True if the moment made fewer calls."""
    shutil.copytree(trained, folder)
    async with server(folder) as served:
        failing = FailingCalls(folder, *fault, nth)
        try:
            with failing if moment == "start" else nullcontext():
                await served.watcher.start()
        except ConfigError:  # the process ends with exit code 8, and its supervisor starts it again
            assert moment == "start"
            return not failing.failed
        assert served.sha8 in ((None, served.named("first")) if moment == "start" else (served.named("first"),))
        if moment == "start" and served.sha8 is None:
            assert served.problem
        if moment == "swap":
            served.point_to("second")
        if moment == "parse":
            (folder / "recipes/books.yaml").write_text(SERVED_RECIPE + "# changed\n", encoding="utf-8")
        if moment == "list":
            (folder / "stock.csv").write_text("item\ni3\n", encoding="utf-8")
        if moment == "metadata":
            recipe = SERVED_RECIPE.replace("fields: [title]", "fields: [title], on_field_missing: 'null'")
            (folder / "recipes/books.yaml").write_text(recipe, encoding="utf-8")
        if moment == "policies":
            served.policy_file.read()
            (folder / "policies.yaml").write_text(POLICY.format(NEW), encoding="utf-8")
        if moment != "start":
            actions = {"list": served.refresh, "policies": served.policy_file._check}
            with failing:
                await actions.get(moment, served.poll)()
        if moment == "policies":
            assert served.last_day in {OLD, NEW}
            await served.policy_file._check()
            assert served.last_day == NEW
        if moment == "list":
            await served.refresh()
            assert served.available == {"i3"}
        if moment != "start":
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
@pytest.mark.parametrize("fault", [*FAULTS, WORKER], ids=lambda fault: f"{fault[0]}-{fault[1]}")
@pytest.mark.parametrize("moment", MOMENTS if STRIDE == 1 else MOMENTS[:4])
def test_a_server_survives_a_failure_of_any_system_call(
    moment: str, fault: tuple[str, Failure], trained: Path, tmp_path: Path
) -> None:
    """In each run, another call of a start, a swap, a list refresh or a recipe change fails."""
    failed = list(check(trained, tmp_path, moment, fault))
    print(f"{moment}, {fault[0]}: {len(failed)} calls")  # noqa: T201 - `-rP` shows how many


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_survives_failures_of_sampled_system_calls(moment: str, trained: Path, tmp_path: Path) -> None:
    """Opening files and starting threads fail during a start, a swap, a list refresh and a recipe change."""
    assert list(check(trained, tmp_path, moment, ("open", KINDS["open"][0])))
    assert list(check(trained, tmp_path, moment, WORKER))


async def reads_keys(folder: Path) -> list[str]:
    """Return the events of two SIGHUPs. At the first one, no thread can be started to read the keys."""
    async with server(folder) as served:
        options = ServeOptions(folder / "recipes", "127.0.0.1", 0, insecure_no_auth=True)
        for nth in (1, 0):
            with FailingCalls(folder, *WORKER, nth):
                await _renew_keys(options, served.state, served.watcher.loader, served.watcher, None)
        return [record["event"] for record in served.records]


def test_keys_stay_in_force_if_no_thread_can_be_started(trained: Path) -> None:
    """The failed reload is logged, and the next SIGHUP reads the new keys."""
    assert trio.run(reads_keys, trained) == ["keys_reload_failed", "keys_reloaded"]
