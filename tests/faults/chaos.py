"""Random actions and faults of server, commands and store: `python -m tests.faults.chaos SECONDS [SEED]`.

A seed determines the actions, their order and the calls that fail. Time is virtual, and the server polls and answers
between the calls of a command. After each step a recipe that has answered must still answer, and no error may be
unexpected. Every QUIET_EVERY steps, a time without faults follows. Then the server must serve the live version, log and
versions must verify, and files and models must not have piled up.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio
import trio.testing

from svc import objects
from svc.artifact import versions
from svc.model.model import Model
from svc.serving.api.application import Application
from tests.faults.books import ITEMS, run, set_environment
from tests.faults.failing_calls import KINDS, WORKER, FailingCalls, Failure
from tests.faults.failing_store import CALLS, FailingStore
from tests.faults.jumping_clock import JUMPS, JumpingClock
from tests.faults.test_serving import SERVED_RECIPE, Server, server, write_tables
from tests.serving.client import Client
from tests.serving.watched import ThreadClock

STEPS_A_SEED = 30
STEPS_A_SERVER = 12
QUIET_EVERY = 4
POLL_S = 5.0
QUIET_S = 400.0
"""Longer than the longest pause after a failed load."""
MOST_CALLS = 40
TURNS_A_COMMAND = 3
LOCK_S = 0.05
"""The limit of a command's wait for the lock of another command, which itself waits for this one to end."""
EXIT_CODES = frozenset({0, 2, 3, 4, 5, 6, 8, 9})
MORE_FILES, MOST_MODELS = 8, 3
COMMANDS = (
    "train recipes/books.yaml",
    "train recipes/books.yaml --refit",
    "rollback recipes/books.yaml",
    "rollback recipes/books.yaml --hold",
    "promote recipes/books.yaml OLDER",
    "recommend out/books.svc --output books.jsonl",
)
VERIFY = "history recipes/books.yaml --verify"
STOCKS = ("item\n" + "\n".join(ITEMS[:15]), "item\n" + "\n".join(ITEMS[5:]), "nothing\n1")
TITLES = ("fields: [title]", "fields: [item, title]")
FAILURES: dict[str, tuple[Failure, ...]] = {**KINDS, WORKER[0]: (WORKER[1],)}
STARVED = frozenset({"thread", "worker", "mmap"})
"""Kinds of calls whose failure may turn an answer into an error."""


def count_models() -> int:
    gc.collect()
    return sum(isinstance(thing, Model) for thing in gc.get_objects())


class Chaos:
    """A random run on one folder, with several servers one after the other."""

    def __init__(self, seed: int, folder: Path, store: FailingStore | None) -> None:
        self._random = random.Random(seed)
        self._folder = folder
        self._output = folder.with_name("seen") / "out"
        """The folder of the artifacts under another name, so that the checks of this class never fail."""
        self._output.parent.symlink_to(folder)
        self._store = store
        self._recipe = SERVED_RECIPE if store is None else SERVED_RECIPE.replace("../out/", "s3://shop/")
        self._served: Server
        self._client: Client
        self._has_answered = False
        self._ever_live: set[str] = set()
        self._command_thread = 0
        self._turns: set[int] = set()
        self._n_files = 0
        self._n_models = count_models()
        """Models that other tests of this process keep."""
        self.history = [f"seed {seed}, {'local files' if store is None else 'object store'}"]
        self.failed_calls = self.commands = self.answers = 0

    def _note(self, text: str) -> None:
        self.history.append(f"{trio.current_time():10.1f} s  {text}")

    async def run(self, steps: int) -> None:
        """Run servers one after the other, each for some steps. Raises AssertionError if a check fails."""
        self._write("recipes/books.yaml", self._recipe)
        with mock.patch.object(trio.to_thread, "run_sync", ThreadClock().run_sync):
            while steps > 0:
                lifetime = min(self._random.randint(QUIET_EVERY, STEPS_A_SERVER), steps)
                steps -= lifetime
                await self._live(lifetime)

    async def _live(self, steps: int) -> None:
        self._note("a server starts")
        async with server(self._folder) as self._served, trio.open_nursery() as nursery:
            self._client = Client(Application(self._served.state))
            self._has_answered = False
            self._served.policy_file.read()
            await self._served.watcher.start()
            nursery.start_soon(self._served.watcher.lists.run)
            nursery.start_soon(self._served.policy_file.run)
            if not self._ever_live:
                assert await self._run(COMMANDS[0]) == 0
            for step in range(1, steps + 1):
                await self._step()
                if step % QUIET_EVERY == 0 or step == steps:
                    await self._be_quiet()
            nursery.cancel_scope.cancel()

    async def _step(self) -> None:
        actions: tuple[Callable[[], Awaitable[object]], ...] = (
            *[self._command] * 5,
            self._change_stock,
            self._change_recipe,
            self._change_policies,
        )
        action = self._random.choice(actions)
        seconds = self._random.uniform(0, 30)
        with self._weather() as kind:
            try:
                await action()
            except RuntimeError as error:
                if kind not in STARVED or "new thread" not in str(error):
                    raise
                self._note("there is no thread for the command")
            await self._pass(seconds, may_fail=kind in STARVED)
        await self._ask()

    @contextlib.contextmanager
    def _weather(self) -> Iterator[str]:
        """Choose at random one failing call, a jump of the wall clock, or no fault. Yield the kind."""
        kind = self._random.choice([*FAILURES, "store", "store", "clock", "none"])
        nth = int(MOST_CALLS ** self._random.random())  # early calls more often: most steps make few of a kind
        failure: Failure = 0
        clock = JumpingClock(self._random.choice(JUMPS), nth if kind == "clock" else 0)
        if kind == "store" and self._store is not None:
            call, lost = self._random.choice(list(CALLS)), self._random.random() < 0.5
            self._note(f"to fail: {call} number {nth} of the store{', its answer is lost' if lost else ''}")
            self._store.fail(call, nth, lost=lost)
        elif kind in FAILURES:
            failure = self._random.choice(FAILURES[kind])
            self._note(f"to fail: {kind} number {nth} ({failure})")
        elif kind == "clock":
            self._note(f"to be set: the clock, at look {nth}")
        counted = kind if kind in FAILURES else "open"
        with clock, FailingCalls(self._folder, counted, failure, nth * bool(failure), meanwhile=self._between) as calls:
            yield kind
        self.failed_calls += calls.failed + clock.failed
        if self._store is not None:
            self.failed_calls += self._store.failed
            self._store.fail("", 0, lost=False)

    # What happens

    async def _command(self) -> None:
        await self._run(self._random.choice(COMMANDS))

    async def _change_stock(self) -> None:
        self._note("the stock changes")
        self._write("stock.csv", self._random.choice(STOCKS))

    async def _change_recipe(self) -> None:
        self._note("the recipe changes")
        self._write("recipes/books.yaml", self._random.choice((self._recipe.replace(*TITLES), self._recipe, "[")))

    async def _change_policies(self) -> None:
        self._note("the policies change")
        self._write("policies.yaml", self._random.choice(("k9: {recipes: [books]}", "k9: {}", "[")))

    def _write(self, name: str, content: str) -> None:
        """Replace a file in one step, without faults."""
        temporary = self._folder.with_name("written")
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(self._folder / name)

    async def _run(self, command: str) -> int:
        """Run a command in a thread. At some of its calls, the server polls and answers first."""
        self.commands += 1
        live = self._live_version()
        older = next((name for name in sorted(self._versions()) if name != live), "00000000")
        self._turns = set(self._random.sample(range(1, MOST_CALLS), TURNS_A_COMMAND))
        told = io.StringIO()

        def work() -> int:
            self._command_thread = threading.get_ident()
            try:
                text = command if self._store is None else command.replace("out/", "s3://shop/")
                return run(text, self._folder, older)
            finally:
                self._command_thread = 0

        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            try:
                exit_code = await trio.to_thread.run_sync(work)
            finally:
                self._served.listen()
        lines = told.getvalue().splitlines()
        self._note(f"svc {command.replace('OLDER', older)}: {exit_code}, {lines[-1][:300] if lines else ''}")
        assert exit_code in EXIT_CODES or ("--verify" in command and exit_code == 5), lines[-3:]
        self._judge([json.loads(line) for line in lines if line.startswith("{")])
        self._see_live()
        return exit_code

    def _between(self, made: int) -> None:
        """Let the server act before call `made`, if the random run chose this call.

        This runs in the thread of the call.
        """
        if made in self._turns and threading.get_ident() == self._command_thread:
            self._turns.discard(made)
            trio.from_thread.run(self._take_turn)

    async def _take_turn(self) -> None:
        self._see_live()
        await self._served.poll()
        await self._ask(may_fail=True)

    async def _pass(self, seconds: float, *, may_fail: bool = False) -> None:
        """Let time pass, with the server's polls."""
        for _ in range(int(seconds / POLL_S)):
            await trio.sleep(POLL_S)
            await self._served.poll()
            await self._ask(may_fail=may_fail)

    # What has to hold

    def _versions(self) -> set[str]:
        paths = map(str, self._output.glob("books.*.svc")) if self._store is None else list(self._store.contents)
        return {path.split(".")[-2] for path in paths if path.endswith(".svc") and not path.endswith("/books.svc")}

    def _live_version(self) -> str | None:
        pointer = self._output / "books.svc"
        if self._store is None:
            return pointer.read_text().split(".")[-2] if pointer.exists() else None
        content = self._store.contents.get("/shop/books.svc")
        return None if content is None else content.decode().split(".")[-2]

    def _see_live(self) -> None:
        live = self._live_version()
        if live is not None:
            self._ever_live.add(live)

    async def _ask(self, *, may_fail: bool = False) -> None:
        """Check that a server that has answered still does, with a version that was live at some time."""
        self.answers += 1
        answer = await self._client.post("/v1/recipes/books:recommend", {"user_id": "u3", "limit": 3})
        if answer.status == 200:
            self._has_answered = True
            assert answer.json["model_version"].removeprefix("sha256:")[:8] in self._ever_live, answer.json
        else:
            assert may_fail or not self._has_answered, answer.body
        health = await self._client.get("/v1/health")
        assert health.status == (200 if self._has_answered else answer.status), health.body
        self._judge(self._served.records)
        self._served.records.clear()

    def _judge(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            assert "traceback" not in record, record
            assert record.get("code") != "internal_error", record
            assert record["event"] != "watcher_unhandled_error", record

    async def _be_quiet(self) -> None:
        """Check after a time without faults that the server is current, and that files and versions are whole."""
        self._note("quiet")
        self._write("recipes/books.yaml", self._recipe)
        self._write("stock.csv", STOCKS[0])
        self._write("policies.yaml", "k9: {}")
        await self._pass(QUIET_S)
        self._follows()
        if await self._run(VERIFY):
            live = self._live_version()
            assert live is not None
            assert await self._run(f"promote recipes/books.yaml {live}") == 0
            assert await self._run(VERIFY) == 0
        assert await self._run(COMMANDS[0]) == 0
        assert await self._run(VERIFY) == 0
        await self._pass(2 * POLL_S)
        self._follows()
        assert list(self._folder.rglob("*.tmp")) == []
        self._gives_back()

    def _gives_back(self) -> None:
        """Check that open files and models do not pile up."""
        assert count_models() <= self._n_models + MOST_MODELS
        n_files = len(list(Path("/proc/self/fd").iterdir()))
        self._n_files = self._n_files or n_files
        assert n_files <= self._n_files + MORE_FILES

    def _follows(self) -> None:
        assert self._served.sha8 == self._live_version(), self._served.entry.faults
        assert self._served.entry.last_load_error is None
        assert self._served.entry.availability is not None


def live_through(seed: int, steps: int, folder: Path) -> Chaos:
    """Run one seed. If a check fails, print the history before the error is raised."""
    folder.mkdir()
    write_tables(folder)
    store = FailingStore({}) if seed % 2 else None
    chaos = Chaos(seed, folder, store)
    try:
        with pytest.MonkeyPatch.context() as patch:
            set_environment(patch, folder)
            patch.setattr("svc.cli.train.interrupts", contextlib.nullcontext)  # signals reach the main thread alone
            patch.setattr("svc.cli.recommend.interrupts", contextlib.nullcontext)
            patch.setattr(versions, "_LOCK_TIMEOUT_S", LOCK_S)
            if store is not None:
                patch.setattr(objects, "client_of", store.wrapped)
            trio.run(chaos.run, steps, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException:
        print("\n".join(chaos.history), flush=True)  # noqa: T201 - this is the report
        raise
    return chaos


def main(seconds: float, seed: int) -> None:
    """Run one seed after the other from `seed` on, until the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            chaos = live_through(seed, STEPS_A_SEED, Path(folder) / "life")
        print(  # noqa: T201 - this is the report
            f"seed {seed}: {chaos.commands} commands, {chaos.failed_calls} failed calls, {chaos.answers} answers",
            flush=True,
        )
        seed += 1


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30))
