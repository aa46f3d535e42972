"""Does a server stay well under mixed load, swaps and faults for as long as one likes?

    python -m benchmarks soak                  # one minute
    python -m benchmarks soak --minutes 30 --csv soak.csv --plot soak.svg   # the plot needs matplotlib

Eleven clients with a key ask all five verbs for known and unknown users and items, and for cold starts. Every ten
seconds both models are replaced. Before every other swap something goes wrong with an artifact or its recipe, and in
every round strangers come: with wrong keys, with headers and bodies that never end, with bytes that are no HTTP, and
some who leave in the middle. None of that may fail a request. A row a round says how the server is; the program ends
with 1 when a request failed that should not have, when a swap is missing, or when memory, threads or open files kept
growing.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import SplitResult, urlsplit

from benchmarks.common import origin
from svc.model.features import FEATURE_VERSION
from svc.serving.api.authentication import hash_api_key, new_api_key
from tests.e2e.load import Load
from tests.e2e.server import Server, put, write_recipe
from tests.serving import client
from tests.serving.artifacts import OTHER_KEYS, factor_model, header, popularity_model, write_artifact

ROUND_S = 10.0
FAULT_S = 3.0
PAUSE_S = 0.03
SETTLING = 0.2
"""Share of the rounds, at most three minutes, in which a process may still grow."""
GROWTH = {"resident_mb": (1.05, 5.0), "threads": (1.0, 3.0), "files": (1.0, 5.0)}
"""Allowed of the second half of what follows, beside its first half: this often, and this much more."""
COLUMNS = ("seconds", "answered", "failed", "p99_ms", "resident_mb", "threads", "files", "swaps", "faults", "strangers")
ONE, COLD = "/v1/recipes/a:", "/v1/recipes/cold:"
FEATURES = {"tag": "a", "age": 33}
KNOWN: list[tuple[str, dict[str, Any]]] = [
    (ONE + "recommend", {"user_id": "u7"}),
    (ONE + "recommend-related", {"seed_items": ["i1", "i2"]}),
    (ONE + "batch-recommend", {"requests": [{"user_id": f"u{number}"} for number in range(32)]}),
    (ONE + "batch-recommend-related", {"requests": [{"seed_items": [f"i{number}"]} for number in range(8)]}),
    (ONE + "recommend-users", {"item_id": "i7", "order": "balanced"}),
    (COLD + "recommend", {"user_id": "stranger", "user_features": FEATURES}),
    (COLD + "recommend-related", {"item_features": FEATURES}),
    (COLD + "batch-recommend", {"requests": [{"user_features": {**FEATURES, "age": age}} for age in range(20, 40)]}),
]
UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    (ONE + "recommend", {"user_id": "nobody"}),
    (ONE + "recommend-related", {"seed_items": ["nothing"]}),
    ("/v1/recipes/none:recommend", {"user_id": "u7"}),
]
NOT_FOUND = {"UNKNOWN_USER", "UNKNOWN_SEED_ITEMS", "RECIPE_NOT_FOUND"}


class Faults:
    """What goes wrong with the artifact or the recipe; a good artifact always follows."""

    def __init__(self, folder: Path, recipe: Path) -> None:
        self._artifact = folder / "a.svc"
        self._recipe = recipe
        self._good_recipe = recipe.read_text(encoding="utf-8")

    def truncated(self) -> None:
        put(self._artifact, self._artifact.read_bytes()[:1000])

    def flipped(self) -> None:
        data = bytearray(self._artifact.read_bytes())
        data[len(data) // 2] ^= 1
        put(self._artifact, data)

    def foreign(self) -> None:
        write_artifact(self._artifact, popularity_model(), keys=OTHER_KEYS)

    def missing(self) -> None:
        self._artifact.unlink()

    def broken_recipe(self) -> None:
        put(self._recipe, "name: [")

    def mend(self) -> None:
        put(self._recipe, self._good_recipe)

    def all(self) -> list[Callable[[], None]]:
        return [self.truncated, self.flipped, self.foreign, self.missing, self.broken_recipe]


class Strangers:
    """Clients that mean no good. Those that stay are gone a round later, if the server has not closed them before."""

    def __init__(self, address: SplitResult) -> None:
        self._address = address
        self._staying: list[socket.socket] = []
        self.came = 0
        self.wrong: list[str] = []

    def come(self) -> None:
        """One of each kind."""
        self.leave()
        head = b"POST /v1/recipes/a:recommend HTTP/1.1\r\nHost: localhost\r\n"
        for words in (b"", head[:30], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", os.urandom(100) + b"\r\n\r\n"):
            self._staying.append(self._saying(words))
        self._staying.append(self._saying(head + b"Content-Length: 1000\r\n\r\n{"))
        for words in (head + b"Content-Length: 99\r\n\r\n{", head + b"Content-Length: 2\r\n\r\n{}"):
            self._saying(words).close()
        for key in (new_api_key(), "no key", "x" * 4000):
            self._knock(key)

    def leave(self) -> None:
        while self._staying:
            self._staying.pop().close()

    def _saying(self, words: bytes) -> socket.socket:
        self.came += 1
        client = socket.create_connection((self._address.hostname, self._address.port), timeout=10)
        with suppress(OSError):
            client.sendall(words)
        return client

    def _knock(self, key: str) -> None:
        self.came += 1
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=30)
        connection.request("POST", ONE + "recommend", b"{}", {"X-API-Key": key})
        status = connection.getresponse().status
        if status != 401:
            self.wrong.append(f"a wrong key was answered {status}")
        connection.close()


def all_is_answered(status: int, body: dict[str, Any]) -> str | None:
    failed = [result for result in body.get("results", []) if result["status"] != "ok"]
    return None if status == 200 and not failed else f"status {status}: {str(failed or body)[:200]}"


def nothing_is_found(status: int, body: dict[str, Any]) -> str | None:
    return None if status == 404 and body["code"] in NOT_FOUND else f"status {status}: {str(body)[:200]}"


def cold_header(trained_at: str) -> dict[str, Any]:
    """What the header of a model with features says, apart for each `trained_at`."""
    side = {"dimension": client.encoder().dim, "columns": list(client.encoder().columns)}
    return header(
        trained_at=trained_at, features={"version": FEATURE_VERSION, "active": True, "user": side, "item": side}
    )


class Soak:
    """A folder with two recipes and two artifacts for each, and the server of it under all that comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recipes = folder / "recipes"
        self._recipes.mkdir()
        self._key = new_api_key()
        recipe = write_recipe(self._recipes, "a", folder / "a.svc", serving={"users": True})
        write_recipe(self._recipes, "cold", folder / "cold.svc")
        for number in range(2):
            write_artifact(folder / f"a{number}", factor_model(2_000, 5_000, 64, seed=number))
            write_artifact(folder / f"cold{number}", client.model(), head=cold_header(f"2026-01-0{number + 1}"))
        self._swap(0)
        self._faults = Faults(folder, recipe)
        self._chance = random.Random(0)
        self._counted = 0
        self.rows: list[dict[str, float]] = []
        self.wrong: list[str] = []

    def run(self, seconds: float, show: Callable[[dict[str, float]], None]) -> None:
        """Fill `rows`, and `wrong` with a line for each thing that is not as it should be."""
        env = {"SVC_API_KEYS": f"soak:{hash_api_key(self._key)}", "SVC_KEEP_ALIVE_SECONDS": "5"}
        with ExitStack() as stack:
            server = stack.enter_context(Server(self._recipes, env={**env, "SVC_CLIENT_TIMEOUT_SECONDS": "5"}))
            strangers = Strangers(urlsplit(server.url))
            stack.callback(strangers.leave)
            loads = [
                stack.enter_context(Load(server.url, asked, clients=len(asked), judge=judge, **self._manners()))
                for asked, judge in ((KNOWN, all_is_answered), (UNKNOWN, nothing_is_found))
            ]
            began = time.monotonic()
            while time.monotonic() < began + seconds:
                self._round(strangers)
                self.rows.append(self._row(server, loads, strangers, time.monotonic() - began))
                show(self.rows[-1])
            code = server.stop()
        self.wrong += [f"exit code {code}"] if code else []
        self.wrong += strangers.wrong + [failure for load in loads for failure in load.tally.failures]
        self.wrong += growing(self.rows)
        if self.rows[-1]["swaps"] < 2 * (len(self.rows) - 1):  # those of the last round may be on their way
            self.wrong.append(f"{self.rows[-1]['swaps']:.0f} swaps in {len(self.rows)} rounds of two")

    def _manners(self) -> dict[str, Any]:
        return {"headers": {"X-API-Key": self._key}, "pause_s": PAUSE_S}

    def _round(self, strangers: Strangers) -> None:
        ends = time.monotonic() + ROUND_S
        strangers.come()
        if len(self.rows) % 2:
            self._chance.choice(self._faults.all())()
            time.sleep(FAULT_S)
            self._faults.mend()
        self._swap(len(self.rows) + 1)
        time.sleep(max(0.0, ends - time.monotonic()))

    def _swap(self, number: int) -> None:
        for name in ("a", "cold"):
            put(self._folder / f"{name}.svc", (self._folder / f"{name}{number % 2}").read_bytes())

    def _row(self, server: Server, loads: list[Load], strangers: Strangers, passed: float) -> dict[str, float]:
        process = Path(f"/proc/{server.process.pid}")
        seconds = sorted(loads[0].tally.seconds[self._counted :])
        self._counted += len(seconds)
        return {
            "seconds": round(passed),
            "answered": sum(load.tally.answered for load in loads),
            "failed": sum(len(load.tally.failures) for load in loads),
            "p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1e3, 1) if seconds else 0.0,
            "resident_mb": round(server.resident_bytes() / 1e6, 1),
            "threads": len(list((process / "task").iterdir())),
            "files": len(list((process / "fd").iterdir())),
            "swaps": len(server.said("artifact_loaded")) - 2,
            "faults": len(server.said("artifact_load_error_cleared")),
            "strangers": strangers.came,
        }


def growing(rows: list[dict[str, float]]) -> list[str]:
    """A line for each column that is larger in the second half of the settled rounds than in the first."""
    settled = rows[min(int(len(rows) * SETTLING) + 1, round(180 / ROUND_S)) :]
    early, late = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    if not early:
        return []
    found = []
    for column, (times, more) in GROWTH.items():
        before, after = (median(row[column] for row in half) for half in (early, late))
        if after > before * times + more:
            found.append(f"{column} grew from {before:g} to {after:g}")
    return found


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """Curves over the minutes, as an image of the kind that the path's ending names."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "svc"
    from matplotlib import pyplot

    panels = {"resident_mb": "resident MB", "threads": "threads", "files": "open files"}
    figure, axes = pyplot.subplots(len(panels), 1, sharex=True, figsize=(8, 6))
    minutes = [row["seconds"] / 60 for row in rows]
    for axis, (column, label) in zip(axes, panels.items(), strict=True):
        values = [row[column] for row in rows]
        axis.plot(minutes, values, linewidth=1.2)
        axis.set_ylim(0, 1.2 * max(values))
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    last = rows[-1]
    axes[0].set_title(
        f"{last['answered']:,.0f} requests answered, {last['failed']:.0f} failed, {last['swaps']:.0f} swaps, "
        f"{last['faults']:.0f} faults mended"
    )
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def write_csv(rows: list[dict[str, float]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def show(row: dict[str, float]) -> None:
    print("  ".join(f"{row[name]:>11}" for name in COLUMNS), flush=True)


def main(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--csv", type=Path, help="also write the rows here")
    parser.add_argument("--plot", type=Path, help="also draw the rows here, as .svg or .png")
    options = parser.parse_args()
    print("\n".join(origin()))
    print("  ".join(f"{name:>11}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(Path(temporary))
        soak.run(options.minutes * 60, show)
    if options.csv:
        write_csv(soak.rows, options.csv)
    if options.plot:
        plot(soak.rows, options.plot)
    print(*soak.wrong[:10], sep="\n")
    sys.exit(1 if soak.wrong else 0)
