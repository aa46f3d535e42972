"""How long until `svc serve` answers, and what does a poll of its artifacts cost?

    python -m benchmarks startup            # one small recipe, and 20 of 1 MB
    python -m benchmarks startup --full     # 100 of 1 MB

`wall` runs from the start of the process to `serve_started`; `cpu` is what the process has used by then. The rows
before it are the floor: the interpreter, and the imports of the HTTP stack alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.common import origin
from tests.e2e.server import Server, until, write_recipe
from tests.serving.artifacts import factor_model, popularity_model, write_artifact

STACK = "import hypercorn.trio, numpy, pydantic, quart_trio, structlog, typer, yaml"


def run(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def command(*words: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "svc", *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def start(recipes: Path) -> tuple[float, float]:
    """Seconds of wall time and of processor time until the server accepts connections."""
    began = time.perf_counter()
    with Server(recipes, env={"SVC_METRICS_ENABLED": "0"}) as server:
        wall = time.perf_counter() - began
        return wall, processor_seconds(server)


def processor_seconds(server: Server) -> float:
    used = Path(f"/proc/{server.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")


def ticks(what: str, recipes: Path, count: int = 10) -> None:
    """Mean wall and processor time of `count` polls of all artifacts, none of which changes."""
    with Server(recipes) as server:
        until(lambda: _ticks(server) >= 1)
        before, began = processor_seconds(server), _ticks(server)
        until(lambda: _ticks(server) >= began + count)
        cpu = (processor_seconds(server) - before) / count
        wall = server.metric("svc_watcher_tick_seconds_sum") / _ticks(server)
    print(f"{what:34} wall {wall:5.3f} s   cpu {cpu:5.3f} s, with the asking", flush=True)


def _ticks(server: Server) -> float:
    time.sleep(0.5)
    return server.metric("svc_watcher_tick_seconds_count")


def repeated(what: str, measure: Callable[[], float], rounds: int) -> None:
    print(f"{what:34} wall {median(measure() for _ in range(rounds)):5.2f} s", flush=True)


def started(what: str, recipes: Path, rounds: int) -> None:
    taken = [start(recipes) for _ in range(rounds)]
    wall, cpu = median(wall for wall, _ in taken), median(cpu for _, cpu in taken)
    print(f"{what:34} wall {wall:5.2f} s   cpu {cpu:5.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more rounds, and 100 recipes")
    full = parser.parse_args().full
    rounds, many = (9, 100) if full else (3, 20)
    print("\n".join(origin()))
    repeated("python", lambda: run("pass"), rounds)
    repeated("imports of the stack", lambda: run(STACK), rounds)
    repeated("svc --help", lambda: command("--help"), rounds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        one, lots = folder / "one", folder / "many"
        one.mkdir()
        lots.mkdir()
        write_recipe(one, "a", folder / "a.svc")
        write_artifact(folder / "a.svc", popularity_model())
        write_artifact(folder / "b.svc", factor_model(1_000, 1_000, 128))
        for number in range(many):
            write_recipe(lots, f"r{number}", folder / f"r{number}.svc")
            os.link(folder / "b.svc", folder / f"r{number}.svc")
        started("svc serve, one small recipe", one, rounds)
        started(f"svc serve, {many} recipes of 1 MB", lots, rounds)
        ticks(f"one poll of {many} recipes", lots)


if __name__ == "__main__":
    main()
