"""A real `svc serve` process for tests, on a free port, with its log as records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from svc.model.model import Model
from tests.forked import Forked
from tests.serving.artifacts import SIGNING_KEYS, write_artifact

DEADLINE_S = 60.0
STARTED_WITHIN_S = 150.0
"""On a busy machine, a server of a large model took more than a minute to start."""
FAST = {"SVC_WATCH_INTERVAL": "1", "SVC_SIGNING_KEYS": SIGNING_KEYS, "SVC_METRICS_ENABLED": "1"}


def put(path: Path, content: bytes | bytearray | str) -> None:
    """Replace the file in one step, so that a server never reads a part of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)


def write_recipe(folder: Path, name: str, output: str | Path, *, file: str | None = None, **more: Any) -> Path:
    """Write a recipe for the artifact at `output`, as JSON, which is YAML too. Its data source does not exist."""
    recipe = {
        "name": name,
        "source": {"type": "csv", "path": "none.csv"},
        "schema": {"user_column": "user_id", "item_column": "item_id"},
        "training": {"algorithms": ["TopPopRecommender"]},
        "output": {"path": str(output), "versioning": "always_overwrite"},
        **more,
    }
    path = folder / (file or f"{name}.yaml")
    put(path, json.dumps(recipe))
    return path


def make_home(folder: Path, name: str, model: Model, *, head: Mapping[str, Any] | None = None) -> Path:
    """Make `folder/recipes` with the recipe `name`, whose artifact is in `folder`, and return it."""
    home = folder / "recipes"
    home.mkdir()
    write_recipe(home, name, folder / f"{name}.svc")
    write_artifact(folder / f"{name}.svc", model, head=head)
    return home


class Server:
    """A server that runs during a `with` block. Its process is always ended afterwards.

    The block begins after the event `ready`. The server answers requests from `serve_started` on. `prefix` is a
    command that runs the server, such as one that drops privileges. The server is forked from a process that has
    imported the libraries. With a prefix or `fresh` it is a new interpreter, as variables need that Python reads at
    its start, and measurements of memory.
    """

    def __init__(
        self,
        recipes: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        ready: str = "serve_started",
        prefix: Sequence[str] = (),
        fresh: bool = False,
    ) -> None:
        self._recipes = recipes
        self._ready = ready
        self._args = args
        self._prefix = prefix
        self._fresh = fresh or bool(prefix)
        self._env = {**os.environ, **FAST, **(env or {})}
        self.records: list[dict[str, Any]] = []
        self.lines: list[str] = []

    def __enter__(self) -> Server:
        self.process = self._start(["serve", "--recipes", str(self._recipes), "--port", "0", *self._args])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            started = self.wait_for(self._ready, deadline_s=STARTED_WITHIN_S)
        except BaseException:
            self._end()
            raise
        self.url = f"http://{started['host']}:{started['port']}" if "port" in started else ""
        # Without `verify=False` httpx parses the certificates of all authorities: 72 ms of a processor.
        self.client = httpx.Client(base_url=self.url, timeout=30, verify=False)
        return self

    def _start(self, command: list[str]) -> subprocess.Popen[str] | Forked:
        if not self._fresh:
            return Forked(command, self._env)
        command = [*self._prefix, sys.executable, "-m", "svc", *command]
        return subprocess.Popen(command, env=self._env, stderr=subprocess.PIPE, text=True)

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._end()

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("{"):
                self.records.append(json.loads(line))

    def said(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the records of `event` so far that have these fields."""
        return [
            record for record in list(self.records) if record["event"] == event and fields.items() <= record.items()
        ]

    def wait_for(self, event: str, *, times: int = 1, deadline_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """Wait for the `times`-th record of `event` with these fields, and return it."""
        until(lambda: len(self.said(event, **fields)) >= times or self.process.poll() is not None, self.log, deadline_s)
        found = self.said(event, **fields)
        assert len(found) >= times, f"no {event} {fields} in:\n{self.log()}"
        return found[times - 1]

    def log(self) -> str:
        return "".join(self.lines)

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def recommend(self, name: str, user: str = "u3", **more: Any) -> httpx.Response:
        return self.client.post(f"/v1/recipes/{name}:recommend", json={"user_id": user, "limit": 1, **more})

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
        """Return the value of a series, such as `svc_swap_total{result="ok"}`, or 0 if it does not exist."""
        for line in self.get("/v1/metrics").text.splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal, and return the exit code."""
        self.send(number)
        code = self.process.wait(DEADLINE_S)
        self._reader.join()
        return code

    def resident_bytes(self) -> int:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def until(
    condition: Callable[[], bool], explain: Callable[[], str] = lambda: "", deadline_s: float = DEADLINE_S
) -> None:
    """Wait until `condition` holds. Fail after `deadline_s` with the text of `explain`."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not in {deadline_s} s: {explain()}"
        time.sleep(0.02)
