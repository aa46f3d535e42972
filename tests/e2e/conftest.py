"""Run commands of svc, in this process or a new one, and a server, on the data of a small shop."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import queue
import random
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from svc.cli.main import run
from tests.e2e.server import STARTED_WITHIN_S, make_home, put
from tests.forked import Forked, program
from tests.serving.artifacts import popularity_model, write_artifact

ROOT = Path(__file__).parent.parent.parent
SIGNING_KEYS = "test:" + "5a" * 32
RECIPE = """\
name: shop
source: {type: csv, path: sales.csv}
schema: {user_column: user_id, item_column: item_id, time_column: ts, time_unit: s}
item_metadata:
  source: {type: csv, path: items.csv}
  id_column: item_id
  fields: [title]
training:
  algorithms: [CosineKNN, TopPop]
  cutoff: 5
  n_trials: 4
  split: {scheme: time_user, heldout_ratio: 0.25}
output: {path: artifacts/shop.svc, versioning: always_overwrite}
"""


@dataclass
class Ended:
    """A command that ended: its exit code, output, and the records that it logged."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return the records on standard error. Fail if any line is not JSON."""
        return [json.loads(line) for line in self.err.splitlines()]

    def record(self, event: str) -> dict[str, Any]:
        return next(record for record in self.records if record["event"] == event)


@dataclass
class Shop:
    """A folder with data and a recipe, and the environment in which svc runs there."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def recipe(self) -> Path:
        return self.folder / "shop.yaml"

    @property
    def artifact(self) -> Path:
        return self.folder / "artifacts" / "shop.svc"

    def give(self, artifact: bytes) -> bytes:
        """Write an artifact that was trained before to the recipe's path, and return it."""
        self.artifact.parent.mkdir(exist_ok=True)
        put(self.artifact, artifact)
        return artifact

    def edit(self, old: str, new: str) -> None:
        """Replace `old`, which must occur, in the recipe."""
        text = self.recipe.read_text()
        assert old in text
        put(self.recipe, text.replace(old, new))

    def start(self, *arguments: str, fresh: bool = False, **environment: str) -> subprocess.Popen[str]:
        """Start a command in a forked process, or in a new interpreter if it is `fresh`."""
        return subprocess.Popen(
            [*((sys.executable, "-m", "svc") if fresh else (program(),)), *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def process(self, *arguments: str, fresh: bool = False, **environment: str) -> Ended:
        """Run one command to its end in a process of its own."""
        process = self.start(*arguments, fresh=fresh, **environment)
        out, err = process.communicate(timeout=150)
        return Ended(process.returncode, out, err)

    def svc(self, *arguments: str, **environment: str) -> Ended:
        """Run one command to its end in this process. A new process would spend 3 s of processor time on imports."""
        with (
            patch.dict(os.environ, self.environment | environment, clear=True),
            contextlib.chdir(self.folder),
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
        ):
            code = run(arguments)
        return Ended(code, out.getvalue(), err.getvalue())

    def train(self, *arguments: str, **environment: str) -> Ended:
        return self.svc("train", str(self.recipe), *arguments, **environment)


class Server:
    """`svc serve` on a free port. A thread reads its log at once, because a full pipe would block the server.

    The process is forked from one with its libraries, or a new interpreter if it is `fresh`.
    """

    def __init__(self, shop: Shop, *arguments: str, fresh: bool = False, **environment: str) -> None:
        command = ["serve", "--recipes", str(shop.folder), "--port", "0", *arguments]
        self.process = (
            shop.start(*command, fresh=True, **environment)
            if fresh
            else Forked(command, shop.environment | environment, shop.folder)
        )
        self.records: list[dict[str, Any]] = []
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        started = self.wait_for("serve_started")
        self.url = f"http://{started['host']}:{started['port']}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            record = json.loads(line)
            self.records.append(record)
            self._news.put(record)
        self._news.put(None)

    def wait_for(self, event: str) -> dict[str, Any]:
        """Wait for the next record of `event` after those that earlier calls returned or skipped."""
        while True:
            record = self._news.get(timeout=STARTED_WITHIN_S)
            assert record is not None, f"the server ended before {event}: {self.records[-3:]}"
            if record["event"] == event:
                return record

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> tuple[int, dict[str, Any]]:
        """Send a GET, or a POST if there is a body. Return status and JSON."""
        headers = {"Content-Type": "application/json"} | ({"X-API-Key": key} if key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=30)
        self._reader.join(timeout=30)
        for stream in (getattr(self.process, "stdout", None), self.process.stderr):
            if stream is not None:
                stream.close()


def write_sales(path: Path, *, users: int = 120, items: int = 40, each: int = 10, seed: int = 1) -> None:
    """Write random sales: users and items form four groups, and most sales are within a group."""
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "item_id", "ts"])
        for user in range(users):
            own = [item for item in range(items) if item % 4 == user % 4]
            bought = rng.sample(own, min(each - 2, len(own))) + rng.sample(range(items), 2)
            for sale, item in enumerate(dict.fromkeys(bought)):
                writer.writerow([f"u{user}", f"i{item}", 1_700_000_000 + 1000 * sale + user])


def make_shop(folder: Path) -> Shop:
    write_sales(folder / "sales.csv")
    with (folder / "items.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["item_id", "title"], *([f"i{n}", f"Thing {n}"] for n in range(40))])
    (folder / "shop.yaml").write_text(RECIPE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    environment |= {"SVC_SIGNING_KEYS": SIGNING_KEYS, "PYTHONPATH": str(ROOT), "SVC_WATCH_INTERVAL": "1"}
    return Shop(folder, environment)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with one recipe, `a`, whose artifact recommends `i0`."""
    return make_home(tmp_path, "a", popularity_model(0))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return a shop of 120 users and 40 items, with a signing key and without an artifact."""
    return make_shop(tmp_path)


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return an artifact of the shop for tests that need no training."""
    path = tmp_path_factory.mktemp("written") / "shop.svc"
    write_artifact(path, popularity_model(0), keys=SIGNING_KEYS)
    return path.read_bytes()


@pytest.fixture
def serve(shop: Shop) -> Iterator[Callable[..., Server]]:
    """Yield a function that starts a server of the shop. All servers are killed after the test."""
    servers: list[Server] = []

    def start(*arguments: str, fresh: bool = False, **environment: str) -> Server:
        servers.append(Server(shop, *arguments, fresh=fresh, **environment))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
