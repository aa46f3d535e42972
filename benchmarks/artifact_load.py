"""What does it cost to load an artifact, in time and in memory, beside reading its file and hashing it once?

    python -m benchmarks.artifact_load            # about 1 and 56 MB
    python -m benchmarks.artifact_load --full     # also 650 MB: 500,000 users, 50,000 items, 10 million interactions
    python -m benchmarks.artifact_load --file artifacts/movies.svc   # a file of your own, with SVC_SIGNING_KEYS set

Every figure is the median of fresh processes, with the file in the page cache; the two kinds take turns.
`read + sha256` is the bare minimum: the file into memory and one digest of it. `load` is what the server does: read,
sha256, HMAC, decode, derived state and a rehearsal. `resident` is what the process has more after loading than before,
`peak` the most that it ever had more.
"""

from __future__ import annotations

import argparse
import json
import os
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

QUICK = (Shape("1 MB", 1_000, 1_700, 100_000, 64), Shape("56 MB", 30_000, 41_000, 810_000, 176))
FULL = (*QUICK, Shape("650 MB", 500_000, 50_000, 10_000_000, 262))
MB = 1e6
T = TypeVar("T")


def write_artifact(path: Path, shape: Shape) -> None:
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
    command = [sys.executable, "-m", "benchmarks.artifact_load", "--measure", kind, "--file", str(path)]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            write_artifact(path, shape)
            report(shape.name, path, arguments.rounds)


if __name__ == "__main__":
    main()
