"""What does an export cost beside bare scoring and a bare Parquet file, and does its memory stay constant?

    python -m benchmarks export_speed            # 3,000 users × 41,000 items × 100
    python -m benchmarks export_speed --full     # 30,000 users, and the memory of 3 million
    python -m benchmarks export_speed --full --users 300000

`bare` is the same model asked for batches of 256 users by as many threads, its rankings kept as arrays, and after that
one table of the same columns written by pyarrow. `svc` is the command from reading the artifact to the manifest, as a
process of its own without its start; `cpu` is what each computed in all its threads. Memory is the most that the
process of the command ever held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import origin
from svc.cores import limit_blas_threads, usable_cores
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from tests.serving.artifacts import SIGNING_KEYS, factor_model, write_artifact

N_ITEMS, COMPONENTS, LIMIT = 41_000, 128, 100
MANY, MANY_LIMIT = 3_000_000, 10
RUN = """
import sys, time
from pathlib import Path
began = time.perf_counter(), time.process_time()
from svc.cli.main import run
assert run(sys.argv[1:]) == 0
took, worked = time.perf_counter() - began[0], time.process_time() - began[1]
status = Path("/proc/self/status").read_text()
print(took, worked, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
"""


def score(model: Model, n_users: int) -> list[Ranking]:
    """All rankings, by as many threads as there are cores."""

    def batch(start: int) -> list[Ranking]:
        return model.rank([Query(limit=LIMIT, user=user) for user in range(start, min(start + 256, n_users))])

    with ThreadPoolExecutor(usable_cores()) as pool:
        return [ranking for part in pool.map(batch, range(0, n_users, 256)) for ranking in part]


def write(rankings: list[Ranking], model: Model, path: Path) -> None:
    counts = [len(ranking.items) for ranking in rankings]
    items = np.concatenate([ranking.items for ranking in rankings])
    users, names = pa.array(model.user_ids.all()), pa.array(model.item_ids.all())
    table = pa.table(
        {
            "user_id": users.take(pa.array(np.repeat(np.arange(len(rankings)), counts))),
            "rank": np.concatenate([np.arange(1, count + 1, dtype=np.int32) for count in counts]),
            "item_id": names.take(pa.array(items)),
            "score": np.concatenate([ranking.scores for ranking in rankings]),
        }
    )
    pq.write_table(table, path, use_dictionary=["user_id", "item_id"])


def bare(model: Model, path: Path) -> tuple[float, float]:
    """Seconds and processor seconds of scoring and writing, nothing else."""
    began, worked = time.perf_counter(), time.process_time()
    write(score(model, model.n_users), model, path)
    return time.perf_counter() - began, time.process_time() - worked


def export(artifact: Path, output: Path, limit: int) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak MiB of `svc recommend`."""
    command = [sys.executable, "-c", RUN, "recommend", str(artifact), "--output", str(output), "--limit", str(limit)]
    environment = {**os.environ, "SVC_SIGNING_KEYS": SIGNING_KEYS, "SVC_MAX_ARTIFACT_BYTES": "16GiB"}
    environment["SVC_MAX_PAYLOAD_BYTES"] = "16GiB"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, worked, peak = map(float, done.stdout.split())
    return seconds, worked, peak


def report(what: str, artifact: Path, output: Path, limit: int = LIMIT) -> tuple[float, float]:
    seconds, worked, peak = export(artifact, output, limit)
    rows = json.loads(Path(f"{output}.manifest.json").read_text())["rows"]
    size = artifact.stat().st_size / 2**20
    allowed = 1.3 * size + 0.3 * 1024
    print(f"svc, {what}: {rows:,} rows {seconds:.1f} s {worked:.1f} cpu, {rows / seconds:,.0f} rows/s", flush=True)
    print(f"  artifact {size:,.0f} MiB, peak {peak:,.0f} MiB, allowed {allowed:,.0f} MiB", flush=True)
    return seconds, worked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="30,000 users, then the memory of many")
    parser.add_argument("--users", type=int, default=MANY, help="how many users the second artifact has")
    options = parser.parse_args()
    print("\n".join(origin()))
    limit_blas_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = factor_model(30_000 if options.full else 3_000, N_ITEMS, COMPONENTS)
        model.ready()
        write_artifact(folder / "a.svc", model)
        seconds, worked = bare(model, folder / "bare.parquet")
        print(f"bare: {seconds:.1f} s {worked:.1f} cpu", flush=True)
        took, used = report(f"{model.n_users:,} users", folder / "a.svc", folder / "a.parquet")
        print(f"  {took / seconds:.2f} times the seconds of bare, {used / worked:.2f} times its cpu", flush=True)
        if options.full:
            del model
            write_artifact(folder / "b.svc", factor_model(options.users, 4_100, 16))
            report(
                f"{options.users:,} users, 4,100 items, {MANY_LIMIT} each",
                folder / "b.svc",
                folder / "b.parquet",
                MANY_LIMIT,
            )


if __name__ == "__main__":
    main()
