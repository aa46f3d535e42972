"""Versions end to end: rollback, hold and promotion in each kind of store, killed commands, refused models."""

from __future__ import annotations

import io
import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import read_verified
from svc.artifact.versions import Version, Versions
from svc.cli import main
from svc.settings import Settings
from tests.artifact.conftest import (  # noqa: F401  # fixtures
    place,
    s3_endpoint,
    s3_place,
)
from tests.e2e.load import Load, only_200
from tests.e2e.server import Server, put, until
from tests.forked import Forked
from tests.serving.artifacts import SIGNING_KEYS

pytestmark = pytest.mark.integration

KILLS = int(os.environ.get("SVC_TEST_KILLS", "6"))
STORES = ["local", "s3"]
COMMANDS = ["rollback", "promote", "train"]
KEYS = parse_signing_keys(SIGNING_KEYS)


@dataclass
class Shelf:
    """The recipe `books` in a folder of recipes, and its versions in a store."""

    home: Path
    uri: str
    environment: Mapping[str, str]

    @property
    def recipe(self) -> Path:
        return self.home / "books.yaml"

    @property
    def versions(self) -> Versions:
        return Versions(self.uri, KEYS, Settings(http_timeout_s=20, lock_dir=self.environment["SVC_LOCK_DIR"]))

    def history(self) -> list[Version]:
        return self.versions.history()

    def start(self, *command: str) -> Forked:
        return Forked([command[0], str(self.recipe), *command[1:]], {**os.environ, **self.environment})

    def run(self, *command: str) -> str:
        """Run the command in this process, because a new one mostly imports modules. Return its output."""
        with patch.dict(os.environ, self.environment), redirect_stdout(io.StringIO()) as said:
            assert main.run([command[0], str(self.recipe), *command[1:]]) == 0
        return said.getvalue()

    def train(self) -> str:
        """Run one training, and return the sha8 of its version."""
        before = {version.sha8 for version in self.history()}
        self.run("train", "--quiet")
        (new,) = {version.sha8 for version in self.history()} - before
        return new


def make_shelf(folder: Path, uri: str, **output: Any) -> Shelf:
    home = folder / "recipes"
    home.mkdir()
    rows = [f"u{user},i{item}" for user in range(30) for item in range(20) if (user + item) % 3]
    (home / "books.csv").write_text("user_id,item_id\n" + "\n".join(rows) + "\n", encoding="utf-8")
    recipe = {
        "name": "books",
        "source": {"type": "csv", "path": "books.csv"},
        "schema": {"user_column": "user_id", "item_column": "item_id"},
        "training": {"algorithms": ["TopPop"], "n_trials": 1, "cutoff": 5, "split": {"heldout_ratio": 0.3}},
        "output": {"path": uri, "versioning": "append_sha", **output},
    }
    put(home / "books.yaml", json.dumps(recipe))
    remote = "://" in uri
    environment = {
        "SVC_LOCK_DIR": str(folder / "locks"),
        "SVC_SIGNING_KEYS": SIGNING_KEYS,
        "SVC_LOG_FORMAT": "json",
        "SVC_WATCH_INTERVAL": "5" if remote else "1",  # also the limit of one poll of a store
    }
    return Shelf(home, uri, environment)


def version_of(server: Server) -> str:
    answer = server.recommend("books")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["model_version"].removeprefix("sha256:")[:8])


def follow(servers: Sequence[Server], sha8: str) -> float:
    """Wait until every server answers with the version, and return the seconds."""
    waiting, began = list(servers), time.monotonic()

    def everybody() -> bool:
        waiting[:] = [server for server in waiting if version_of(server) != sha8]
        return not waiting

    until(everybody)
    return time.monotonic() - began


def await_polls(server: Server, count: int) -> None:
    """Wait until the server has polled `count` times more."""
    series = "svc_watcher_tick_seconds_count"
    seen = server.metric(series)
    until(lambda: server.metric(series) >= seen + count)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", STORES, indirect=True)
def test_servers_follow_rollback_hold_and_promotion_under_load(place: Any, tmp_path: Path) -> None:  # noqa: F811
    """Under load, two servers follow a rollback and a promotion. Three trainings while held change nothing.

    No request fails. With `-rP` the test prints the time from the end of each command until both servers follow.
    """
    shelf = make_shelf(tmp_path, place.uri("books.svc"))
    first, second = shelf.train(), shelf.train()
    allowed = {second}

    def judge(status: int, body: dict[str, Any]) -> str | None:
        version = str(body.get("model_version")).removeprefix("sha256:")[:8]
        return None if status == 200 and version in allowed else f"status {status}, {version} is not of {allowed}"

    with ExitStack() as stack:
        servers = [stack.enter_context(Server(shelf.home, env=shelf.environment)) for _ in range(2)]
        until(lambda: all(server.health()[0] == 200 for server in servers))
        ask = [("/v1/recipes/books:recommend", {"user_id": "u3", "limit": 3})]
        loads = [stack.enter_context(Load(one.url, ask, clients=2, judge=judge, pause_s=0.05)) for one in servers]

        allowed.add(first)
        assert f"{first} is live" in shelf.run("rollback", "--hold")
        back_s = follow(servers, first)
        allowed.remove(second)
        seen = [load.tally.answered for load in loads]

        held = [shelf.train() for _ in range(3)]
        for server in servers:
            await_polls(server, 2)
        assert [version_of(server) for server in servers] == [first, first]
        assert [version.sha8 for version in shelf.history() if version.held] == [first]
        assert all(load.tally.answered > was for load, was in zip(loads, seen, strict=True))

        allowed.add(held[-1])
        assert f"{held[-1]} is live" in shelf.run("promote", held[-1])
        forward_s = follow(servers, held[-1])
    assert [load.tally.failures for load in loads] == [[], []]
    answered = sum(load.tally.answered for load in loads)
    print(f"{shelf.uri}: back {back_s:.1f} s, forward {forward_s:.1f} s, {answered} answers")  # noqa: T201
    shelf.run("history", "--verify")
    allowed.clear()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", STORES, indirect=True)
def test_killed_commands_leave_a_valid_pointer_and_log(place: Any, tmp_path: Path) -> None:  # noqa: F811
    """The pointer always names a version that verifies, and each line of the log is signed and in order.

    SVC_TEST_KILLS in the environment is the number of kills in both stores together.
    """
    shelf = make_shelf(tmp_path, place.uri("books.svc"), keep=5)
    for _ in range(3):
        shelf.train()
    n_turns = max(1, KILLS // (len(STORES) * len(COMMANDS)))
    for command in COMMANDS:
        usual_s = {turn % 2: undisturbed_s(shelf, command, turn) for turn in range(1, 1 + min(2, n_turns))}
        moments, moved = random.Random(f"{command} {shelf.uri[:5]}"), 0
        for turn in range(1, 1 + n_turns):
            before = place.content("books.svc")
            process = started(shelf, command, turn)
            time.sleep(moments.uniform(0.0, usual_s[turn % 2]))
            process.kill()
            process.communicate()
            pointer = place.content("books.svc")
            assert re.fullmatch(rb"books\.[0-9a-f]{8}\.svc\n", pointer)
            read_verified(shelf.uri, KEYS, Settings(http_timeout_s=20))
            assert shelf.versions.log().problems == ()
            moved += pointer != before
        print(f"{command} at {shelf.uri}: {n_turns} kills, the pointer had moved after {moved}")  # noqa: T201
    live = shelf.versions.live()
    assert live is not None
    shelf.run("promote", live)
    assert shelf.train() == shelf.versions.live()


def started(shelf: Shelf, command: str, turn: int) -> Forked:
    """Start the command.

    Wait for the last step of every second training, because earlier steps do not use the store.
    """
    process = shelf.start(*arguments_of(command, shelf, turn))
    if command == "train" and turn % 2:
        wait_for_last_step(process)
    return process


def undisturbed_s(shelf: Shelf, command: str, turn: int) -> float:
    """Return the seconds from `started` to the end of the command. Kills are spread over this time."""
    process = started(shelf, command, turn)
    began = time.monotonic()
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    return time.monotonic() - began


def arguments_of(command: str, shelf: Shelf, turn: int) -> list[str]:
    if command == "train":
        return ["train", "--quiet", "--no-lock"]
    versions = sorted(version.sha8 for version in shelf.history())
    target = versions[turn % len(versions)]
    return ["promote", target] if command == "promote" else ["rollback", "--to", target, "--hold"]


def wait_for_last_step(process: Forked) -> None:
    """Wait until the model is trained, before it is written."""
    for line in process.stderr:
        if '"final_model_trained"' in line:
            return


@pytest.mark.timeout(900)
def test_keep_removes_old_versions_during_concurrent_trainings(tmp_path: Path) -> None:
    """`keep: 3` keeps the three newest versions and the live one, held or not. No request or load fails."""
    shelf = make_shelf(tmp_path, str(tmp_path / "out" / "books.svc"), keep=3)
    shelf.train()

    def left() -> set[str]:
        return {path.name.split(".")[1] for path in (tmp_path / "out").glob("books.????????.svc")}

    def train_in_pairs(pairs: int) -> None:
        for _ in range(pairs):
            for process in [shelf.start("train", "--quiet", "--no-lock") for _ in range(2)]:
                _, err = process.communicate(timeout=150)
                assert process.returncode == 0, err

    ask = [("/v1/recipes/books:recommend", {"user_id": "u3", "limit": 3})]
    with (
        Server(shelf.home, env=shelf.environment) as server,
        Load(server.url, ask, clients=2, judge=only_200, pause_s=0.01) as load,
    ):
        train_in_pairs(3)
        newest = [version.sha8 for version in shelf.history()]
        assert {shelf.versions.live(), *newest[:3]} <= left()
        assert 3 <= len(left()) <= 5, "three, the live one, and the one before it"
        shelf.run("rollback", "--hold")
        held = shelf.versions.live()
        assert held is not None
        train_in_pairs(3)
        assert shelf.versions.live() == held
        newest = [version.sha8 for version in shelf.history()]
        assert {held, *newest[:3]} <= left()
        assert 4 <= len(left()) <= 5
        until(lambda: version_of(server) == held)
        assert not server.said("artifact_load_failed")
    assert load.tally.failures == []
    assert load.tally.answered > 0
    shelf.run("history", "--verify")
