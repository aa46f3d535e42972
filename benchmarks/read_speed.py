"""How fast, and in how much memory, are interactions read from a file or a database?

    python -m benchmarks read_speed            # 1 million rows
    python -m benchmarks read_speed --full     # 10 million rows

Each reader is a process of its own; `peak` is the most memory it ever held, with imports; `s` is without them.
pandas does the same work: it reads the three needed columns and makes the ids categorical. PostgreSQL is read where
SVC_TEST_POSTGRES_URL says.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.common import origin

COLUMNS = ("user_id", "item_id", "ts")
TABLE = "svc_read_speed"
AFTER = """
took = time.perf_counter() - began
status = Path("/proc/self/status").read_text()  # what rusage calls the peak includes that of the parent
print(len(frame), round(took, 2), int(status.partition("VmHWM:")[2].split()[0]) // 1024)
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
began = time.perf_counter()
frame = build_source(SourceSpec(**%r), context).fetch()
"""
PANDAS = """
import os, time
from pathlib import Path
import pandas as pd, pyarrow.parquet, sqlalchemy
began = time.perf_counter()
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
    rows, seconds, peak = done.stdout.split()
    print(f"{what:22} {int(rows):>11,} rows {float(seconds):7.2f} s   peak {int(peak):6,} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="10 million rows")
    rows = 10_000_000 if parser.parse_args().full else 1_000_000
    print("\n".join(origin()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        generate(folder, rows)
        measure("svc, csv", SVC % {"type": "csv", "path": str(folder / "a.csv")})
        measure("pandas, csv", PANDAS % f"pd.read_csv({str(folder / 'a.csv')!r}, usecols={COLUMNS!r})")
        measure("svc, parquet", SVC % {"type": "parquet", "path": str(folder / "a.parquet")})
        measure(
            "pandas, parquet", PANDAS % f"pd.read_parquet({str(folder / 'a.parquet')!r}, columns={list(COLUMNS)!r})"
        )
        url = os.environ.get("SVC_TEST_POSTGRES_URL")
        if url:
            fill_database(url, folder / "a.csv")
            query = f"SELECT user_id, item_id, ts FROM {TABLE}"
            measure("svc, PostgreSQL", SVC % {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": query})
            measure("pandas, PostgreSQL", PANDAS % f"pd.read_sql({query!r}, os.environ['SVC_TEST_POSTGRES_URL'])")
            empty_database(url)


if __name__ == "__main__":
    main()
