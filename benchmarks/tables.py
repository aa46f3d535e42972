"""How fast are interactions read and recommendations exported?"""

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
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.common import origin
from svc.cores import limit_blas_threads, usable_cores
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from tests.serving.artifacts import SIGNING_KEYS, factor_model, write_artifact

COLUMNS = ("user_id", "item_id", "ts")
TABLE = "svc_read_speed"
PLACES = ("csv", "parquet", "folder", "postgresql", "where")
FOLDER_FILES = 1000
AFTER = """
took, worked = time.perf_counter() - began[0], time.process_time() - began[1]
status = Path("/proc/self/status").read_text()  # what rusage calls the peak includes that of the parent
print(len(frame), round(took, 2), round(worked, 2), int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""
SVC = """
import os, time
from pathlib import Path
import pandas, sqlalchemy
import svc.sources.csv, svc.sources.parquet, svc.sources.sql
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
ids, variables = frozenset({"user_id", "item_id"}), {"SVC_RECIPE_DSN": os.environ.get("SVC_TEST_POSTGRES_URL", "")}
context = SourceContext(Path(), Settings(), ("user_id", "item_id", "ts"), ids, "interactions", variables, None)
began = time.perf_counter(), time.process_time()
frame = build_source(SourceSpec(**%r), context).fetch()
"""
WHERE = """
from svc.training.data.where import fetch_kept, kept_rows
columns = ("user_id", "item_id", "ts", "rating")
context = SourceContext(Path(), Settings(), columns, ids, "interactions", variables, None)
began = time.perf_counter(), time.process_time()
source = build_source(SourceSpec(**%r), context)
frame = (fetch_kept(source, %r) if %r else kept_rows(source.fetch(), %r)).frame
"""
FILTERS = {"ratings of 4 and 5": {"rating": {"gte": 4}}, "latest twentieth": {"ts": {"gte": 1_690_000_000}}}
PANDAS = """
import os, time
from pathlib import Path
import pandas as pd, pyarrow.parquet, sqlalchemy
began = time.perf_counter(), time.process_time()
frame = %s
frame[["user_id", "item_id"]] = frame[["user_id", "item_id"]].astype("category")
"""


def generate(folder: Path, rows: int) -> None:
    """The same long-tailed table as csv, as Parquet, and if there is a PostgreSQL, as a table there."""
    rng = np.random.default_rng(0)
    users = rng.zipf(1.1, rows) % (rows // 20)
    items = rng.integers(0, rows // 200, rows)
    table = pa.table(
        {
            "user_id": pa.array([f"u{user}" for user in users]),
            "item_id": pa.array([f"i{item}" for item in items]),
            "rating": rng.integers(1, 6, rows),
            "ts": rng.integers(1_500_000_000, 1_700_000_000, rows),
        }
    )
    pa_csv.write_csv(table, folder / "a.csv")
    pq.write_table(table, folder / "a.parquet")


def generate_folder(folder: Path, rows: int) -> None:
    """Hive partitions of a day each, which the ids of 2 million users and 200,000 items run through."""
    rng = np.random.default_rng(0)
    each = rows // FOLDER_FILES
    for number in range(FOLDER_FILES):
        path = folder / f"date={number // 10:03}" / f"part-{number:04}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        times = rng.integers(0, 86_400, each) + 86_400 * (number // 10)
        users, items = rng.zipf(1.1, each) % 2_000_000, rng.zipf(1.1, each) % 200_000
        pq.write_table(pa.table({"user_id": users, "item_id": items, "rating": users % 5, "ts": times}), path)


def fill_database(url: str, path: Path) -> None:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection, path.open("rb") as file:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        connection.execute(f"CREATE UNLOGGED TABLE {TABLE} (user_id text, item_id text, rating int, ts bigint)")
        with connection.cursor().copy(f"COPY {TABLE} FROM STDIN (FORMAT csv, HEADER)") as copy:
            while chunk := file.read(1 << 20):
                copy.write(chunk)


def empty_database(url: str) -> None:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")


def measure(what: str, code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code + AFTER], capture_output=True, text=True, check=True)
    rows, seconds, worked, peak = done.stdout.split()
    times = f"{float(seconds):7.2f} s {float(worked):7.2f} cpu"
    print(f"{what:48} {int(rows):>11,} rows {times}   peak {int(peak):6,} MiB", flush=True)


def measure_csv(path: Path) -> None:
    measure("svc, csv", SVC % {"type": "csv", "path": str(path)})
    measure("pandas, csv", PANDAS % f"pd.read_csv({str(path)!r}, usecols={COLUMNS!r})")


def measure_parquet(path: Path) -> None:
    measure("svc, parquet", SVC % {"type": "parquet", "path": str(path)})
    measure("pandas, parquet", PANDAS % f"pd.read_parquet({str(path)!r}, columns={list(COLUMNS)!r})")


def measure_folder(folder: Path, rows: int) -> None:
    generate_folder(folder, rows)
    measure("svc, 1,000 files", SVC % {"type": "parquet", "path": str(folder)})


def measure_database(url: str, path: Path) -> None:
    fill_database(url, path)
    query = f"SELECT user_id, item_id, ts FROM {TABLE}"
    measure("svc, PostgreSQL", SVC % {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": query})
    measure("pandas, PostgreSQL", PANDAS % f"pd.read_sql({query!r}, os.environ['SVC_TEST_POSTGRES_URL'])")
    empty_database(url)


def measure_where(folder: Path) -> None:
    """Both filters: rows left out by svc when all are read, and while they are read."""
    table = pq.read_table(folder / "a.parquet").sort_by("ts")
    pq.write_table(table, folder / "sorted.parquet", row_group_size=100_000)
    source = {"type": "parquet", "path": str(folder / "sorted.parquet")}
    setup = SVC.partition("context = ")[0]
    for what, where in FILTERS.items():
        for pushed, by in ((False, "afterwards"), (True, "by the source")):
            measure(f"parquet, {what}, {by}", setup + WHERE % (source, where, pushed, where))


def reading(parser: argparse.ArgumentParser) -> None:
    """How fast, and in how much memory, are interactions read from a file or a database?

        python -m benchmarks tables            # 1 million rows
        python -m benchmarks tables --full     # 10 million rows
        python -m benchmarks tables --only csv parquet
        python -m benchmarks tables --only folder --full    # 100 million rows in 1,000 files
        python -m benchmarks tables --only where            # cleansing.where, left out by the source and afterwards

    Each reader is a process of its own; `peak` is the most memory it ever held, with imports; the times are without
    them. `cpu` is what the reader itself computed, in all its threads: a busy neighbour stretches `s`, but hardly
    `cpu`. pandas does the same work: it reads the three needed columns and makes the ids categorical. PostgreSQL is
    read where SVC_TEST_POSTGRES_URL says.
    """
    parser.add_argument("--full", action="store_true", help="10 million rows, 100 million in many files")
    parser.add_argument("--only", nargs="+", choices=PLACES, default=PLACES, help="leave the others out")
    options = parser.parse_args()
    print("\n".join(origin()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if set(options.only) - {"folder"}:
            generate(folder, 10_000_000 if options.full else 1_000_000)
        if "csv" in options.only:
            measure_csv(folder / "a.csv")
        if "parquet" in options.only:
            measure_parquet(folder / "a.parquet")
        if "folder" in options.only:
            measure_folder(folder / "lake", 100_000_000 if options.full else 1_000_000)
        url = os.environ.get("SVC_TEST_POSTGRES_URL")
        if "postgresql" in options.only and url:
            measure_database(url, folder / "a.csv")
        if "where" in options.only:
            measure_where(folder)


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


def exporting(parser: argparse.ArgumentParser) -> None:
    """What does an export cost beside bare scoring and a bare Parquet file, and does its memory stay constant?

        python -m benchmarks tables export            # 3,000 users × 41,000 items × 100
        python -m benchmarks tables export --full     # 30,000 users, and the memory of 3 million
        python -m benchmarks tables export --full --users 300000

    `bare` is the same model asked for batches of 256 users by as many threads, its rankings kept as arrays, and after
    that one table of the same columns written by pyarrow. `svc` is the command from reading the artifact to the
    manifest, as a process of its own without its start; `cpu` is what each computed in all its threads. Memory is the
    most that the process of the command ever held.
    """
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


CASES = {"read": reading, "export": exporting}
