"""What does it cost to start a server, to load an artifact and to check its signature?"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks.common import Shape, ids, origin
from benchmarks.servers import Running
from svc.artifact import ed25519
from svc.artifact.keys import SigningKeys, verify
from svc.artifact.layout import Parsed
from svc.artifact.store_local import private_buffer
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
    with Server(recipes, env={"SVC_METRICS_ENABLED": "0"}, fresh=True) as server:
        wall = time.perf_counter() - began
        return wall, processor_seconds(server)


def processor_seconds(server: Server) -> float:
    return Running(server.url, server.process.pid).cpu_s()


def ticks(what: str, recipes: Path, count: int = 10) -> None:
    """Mean wall and processor time of `count` polls of all artifacts, none of which changes."""
    with Server(recipes, fresh=True) as server:
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


def server_start(parser: argparse.ArgumentParser) -> None:
    """How long until `svc serve` answers, and what does a poll of its artifacts cost?

        python -m benchmarks startup            # one small recipe, and 20 of 1 MB
        python -m benchmarks startup --full     # 100 of 1 MB

    `wall` runs from the start of the process to `serve_started`; `cpu` is what the process has used by then. The rows
    before it are the floor: the interpreter, and the imports of the HTTP stack alone.
    """
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


QUICK = (Shape("1 MB", 1_000, 1_700, 100_000, 64), Shape("56 MB", 30_000, 41_000, 810_000, 176))
FULL = (*QUICK, Shape("650 MB", 500_000, 50_000, 10_000_000, 262))
MB = 1e6
T = TypeVar("T")


def write_random(path: Path, shape: Shape) -> None:
    """An artifact of random factors in the given shape, signed with the development key."""
    import numpy as np

    from svc.artifact import layout
    from svc.artifact.keys import development_keys
    from svc.artifact.store import open_store
    from svc.model.codec import encode
    from svc.model.history import History
    from svc.model.ids import IdTable
    from svc.model.model import Model
    from svc.model.recommenders.factor_index import FactorIndex
    from svc.model.recommenders.factors import SVDScorer
    from svc.settings import Settings

    random = np.random.default_rng(0)
    users = random.standard_normal((shape.n_users, shape.components), dtype=np.float32)
    items = random.standard_normal((shape.n_items, shape.components), dtype=np.float32)
    each = shape.n_interactions // shape.n_users
    starts = random.integers(0, shape.n_items - each, shape.n_users)[:, np.newaxis]
    history = History(
        np.arange(0, shape.n_users * each + 1, each, dtype=np.int64),
        (starts + np.arange(each)).astype(np.int32).ravel(),
    )
    model = Model(
        user_ids=IdTable.from_ids(ids("u", shape.n_users)),
        item_ids=IdTable.from_ids(ids("i", shape.n_items)),
        history=history,
        scorer=SVDScorer(users, FactorIndex.build(items)),
        features=None,
    )
    kid, key = development_keys().active
    write = partial(layout.write, kid=kid, key=key, header={"best_class": "random"}, payload=encode(model))
    open_store(str(path), Settings()).publish(write, "always_overwrite")


def timed(steps: dict[str, float], name: str, call: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = call()
    steps[name] = time.perf_counter() - start
    return result


def memory_kb() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    values = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return {"resident": int(values["VmRSS"]), "peak": int(values["VmHWM"])}


def bare(path: str) -> dict[str, Any]:
    """The file into memory and one sha256 of it."""
    import hashlib

    from svc.artifact.store_local import private_buffer

    steps: dict[str, float] = {}

    def read() -> memoryview:
        buffer = private_buffer(Path(path).stat().st_size)
        with Path(path).open("rb", buffering=0) as file:
            filled = 0
            while filled < len(buffer):
                filled += file.readinto(buffer[filled:])
        return buffer

    buffer = timed(steps, "read", read)
    timed(steps, "sha256", lambda: hashlib.sha256(buffer).hexdigest())
    return {"steps": steps, "bytes": len(buffer)}


def load(path: str) -> dict[str, Any]:
    """What the server does between noticing a file and answering from it."""
    from svc.artifact.keys import parse_signing_keys, verify
    from svc.artifact.layout import parse
    from svc.artifact.store import open_store
    from svc.model.codec import decode
    from svc.model.load_model import rehearse
    from svc.model.model import Model
    from svc.settings import GIB, Settings

    keys = parse_signing_keys(os.environ.get("SVC_SIGNING_KEYS", "")).with_development()
    store = open_store(path, Settings())
    before, steps = memory_kb(), dict[str, float]()
    blob = timed(steps, "read + sha256", lambda: store.read(16 * GIB))
    parsed = parse(blob.view, max_payload_bytes=16 * GIB)
    timed(steps, "HMAC", lambda: verify(parsed, keys))
    model = timed(steps, "decode", lambda: decode(parsed.payload))
    assert isinstance(model, Model)
    timed(steps, "derived state", model.ready)
    timed(steps, "rehearsal", lambda: rehearse(model))
    after = memory_kb()
    return {"steps": steps, "memory": {name: (after[name] - before["resident"]) * 1024 for name in after}}


def in_a_process(kind: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "startup", "artifact", "--measure", kind, "--file", str(path)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    result: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, check=True, env=environment).stdout
    )
    return result


def report(name: str, path: Path, rounds: int) -> None:
    bares, loads = [], []
    for _ in range(rounds):
        bares.append(in_a_process("bare", path))
        loads.append(in_a_process("load", path))
    size = bares[0]["bytes"]
    floor = median(sum(run["steps"].values()) for run in bares)
    whole = median(sum(run["steps"].values()) for run in loads)
    resident, peak = (median(run["memory"][kind] for run in loads) for kind in ("resident", "peak"))
    print(f"\n{name}: {size / MB:.1f} MB file")
    print(f"  read + sha256  {floor * 1e3:8.1f} ms   ({', '.join(_steps(bares))})")
    print(f"  load           {whole * 1e3:8.1f} ms   ({', '.join(_steps(loads))})")
    print(f"  load / (read + sha256) = {whole / floor:.2f}")
    for kind, value in (("resident", resident), ("peak", peak)):
        print(f"  {kind:8} {value / MB:+9.1f} MB = {value / size:.2f} x file")


def _steps(runs: list[dict[str, Any]]) -> list[str]:
    return [f"{step} {median(run['steps'][step] for run in runs) * 1e3:.1f}" for step in runs[0]["steps"]]


def artifact_load(parser: argparse.ArgumentParser) -> None:
    """What does it cost to load an artifact, in time and in memory, beside reading its file and hashing it once?

        python -m benchmarks startup artifact            # about 1 and 56 MB
        python -m benchmarks startup artifact --full     # also 650 MB: 500,000 users, 50,000 items
        python -m benchmarks startup artifact --file artifacts/movies.svc   # your own, with SVC_SIGNING_KEYS set

    Every figure is the median of fresh processes, with the file in the page cache; the two kinds take turns. `read +
    sha256` is the bare minimum: the file into memory and one digest of it. `load` is what the server does: read,
    sha256, HMAC, decode, derived state and a rehearsal. `resident` is what the process has more after loading than
    before, `peak` the most that it ever had more.
    """
    parser.add_argument("--full", action="store_true", help="also 650 MB")
    parser.add_argument("--file", type=Path, help="an artifact of your own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=("bare", "load"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps({"bare": bare, "load": load}[arguments.measure](str(arguments.file))))
        return
    print("\n".join(origin()))
    if arguments.file:
        report(arguments.file.name, arguments.file, arguments.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        for shape in FULL if arguments.full else QUICK:
            path = Path(folder) / "model.svc"
            write_random(path, shape)
            report(shape.name, path, arguments.rounds)


SEED = bytes(range(32))


def artifacts(n_bytes: int) -> dict[str, tuple[Parsed, SigningKeys]]:
    content = private_buffer(n_bytes)
    pattern = bytes(range(256)) * 4096
    for start in range(0, n_bytes, len(pattern)):
        content[start : start + len(pattern)] = pattern[: n_bytes - start]
    header = memoryview(b"{}")
    signature = ed25519.sign(SEED, ed25519.ARTIFACT, hashlib.sha256(content).digest())
    return {
        "HMAC": (
            Parsed(1, "k", header, content, content, hmac.digest(SEED, content, "sha256")),
            SigningKeys({"k": SEED}),
        ),
        "Ed25519": (
            Parsed(2, "k", header, content, content, signature),
            SigningKeys({}, {"k": ed25519.public_half(SEED)}),
        ),
    }


def measure(n_bytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by the kind of signature."""
    seconds: dict[str, list[float]] = {"HMAC": [], "Ed25519": []}
    both = artifacts(n_bytes)
    for parsed, keys in both.values():
        verify(parsed, keys)
    for _ in range(rounds):
        for kind, (parsed, keys) in both.items():
            began = time.thread_time()
            verify(parsed, keys)
            seconds[kind].append(time.thread_time() - began)
    return seconds


def signature(parser: argparse.ArgumentParser) -> None:
    """How long does it take to check a signature by HMAC (format version 1) and by Ed25519 (version 2)?

    Both in one process, in turn, over the same bytes in private memory; processor time of the checking thread.
    """
    parser.add_argument("--mib", type=int, default=650)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("\n".join(origin()))
    seconds = measure(arguments.mib << 20, arguments.rounds)
    for kind, all_of_it in seconds.items():
        print(f"{kind:8} {statistics.median(all_of_it):.3f} s (median of {arguments.rounds}), {arguments.mib} MiB")
    ratio = statistics.median(seconds["Ed25519"]) / statistics.median(seconds["HMAC"])
    print(f"ratio    {ratio:.3f}")


CASES = {"server": server_start, "artifact": artifact_load, "signature": signature}
