"""Bounds of tables that a server reads, for small files that expand to large tables."""

from __future__ import annotations

import gzip
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc.errors import DataSourceError, SourceTooLarge
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources.base import SourceContext, TableBounds, build_source
from svc.sources.table import TableBuilder
from tests.sources.lying_parquet import large_cell

MANY = 20_000
FEW = TableBounds(MANY, 4 << 20)


def csv_rows(folder: Path, n_rows: int, text: str) -> SourceSpec:
    with gzip.open(folder / "list.csv.gz", "wt", compresslevel=1) as out:
        out.write("item_id\n")
        out.write(f"{text}\n" * n_rows)
    return SourceSpec.model_validate({"type": "csv", "path": "list.csv.gz"})


def parquet_rows(folder: Path, n_rows: int, text: str) -> SourceSpec:
    coded = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), n_rows), pa.array([text]))
    pq.write_table(pa.table({"item_id": coded}), folder / "list.parquet", compression="zstd")
    return SourceSpec.model_validate({"type": "parquet", "path": "list.parquet"})


def sql_rows(folder: Path, n_rows: int, text: str) -> SourceSpec:
    sqlite3.connect(folder / "list.db").close()
    query = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {n_rows}) "
        f"SELECT '{text}' AS item_id FROM n"
    )
    return SourceSpec.model_validate({"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": query})


def fetched(
    folder: Path, spec: SourceSpec, bounds: TableBounds | None = FEW, progress: Callable[[int], None] | None = None
) -> Any:
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{folder}/list.db"}
    ids = frozenset({"item_id"})
    return build_source(
        spec, SourceContext(folder, Settings(), ("item_id",), ids, "metadata", variables, progress, bounds)
    ).fetch()


@pytest.mark.parametrize(
    ("n_items", "n_columns", "max_rows", "max_bytes"),
    [
        (1, 1, 1_048_576, 67_108_864),
        (104_857, 1, 1_048_576, 536_867_840),
        (104_858, 1, 1_048_580, 536_872_960),
        (13_107, 1, 1_048_576, 67_108_864),
        (13_108, 1, 1_048_576, 67_112_960),
        (200_000, 3, 2_000_000, 3_072_000_000),
    ],
)
def test_bounds_are_ten_times_the_need_of_the_items(
    n_items: int, n_columns: int, max_rows: int, max_bytes: int
) -> None:
    """A model with few items gets minimum bounds. A table may reach its bounds but not exceed them."""
    bounds = TableBounds.for_serving(n_items, n_columns)
    assert bounds == TableBounds(max_rows, max_bytes)
    bounds.check(max_rows, max_bytes, "list.csv")
    with pytest.raises(SourceTooLarge, match=f"list.csv has more than {max_rows} rows") as caught:
        bounds.check(max_rows + 1, 0, "list.csv")
    assert caught.value.fields == {"cap": max_rows}
    with pytest.raises(SourceTooLarge, match=f"list.csv expands to more than {max_bytes} bytes") as caught:
        bounds.check(0, max_bytes + 1, "list.csv")
    assert caught.value.fields == {"bytes_read": max_bytes + 1, "cap": max_bytes}


def jsonl_rows(folder: Path, n_rows: int, text: str) -> SourceSpec:
    (folder / "list.jsonl.gz").write_bytes(gzip.compress(f'{{"item_id": "{text}"}}\n'.encode() * n_rows, 1))
    return SourceSpec.model_validate({"type": "jsonl", "path": "list.jsonl.gz"})


def exploded_rows(folder: Path, n_rows: int, text: str) -> SourceSpec:
    """Write one line, whose list makes `n_rows` rows of its text."""
    (folder / "list.jsonl").write_text(f'{{"item_id": "{text}", "e": [{",".join(["1"] * n_rows)}]}}')
    return SourceSpec.model_validate({"type": "jsonl", "path": "list.jsonl", "explode": "e"})


def duckdb_rows(folder: Path, n_rows: int, text: str) -> SourceSpec:
    query = f"SELECT '{text}' AS item_id FROM range({n_rows})"
    return SourceSpec.model_validate({"type": "duckdb", "query": query})


KINDS = [csv_rows, parquet_rows, sql_rows, jsonl_rows, exploded_rows, duckdb_rows]


@pytest.mark.parametrize("rows", KINDS)
def test_too_many_rows_are_refused_for_every_kind_of_source(
    tmp_path: Path, rows: Callable[[Path, int, str], SourceSpec]
) -> None:
    """Rows count even if they repeat one item. A table of exactly the bound is read. Trainings have no such bound."""
    with pytest.raises(SourceTooLarge, match=f"more than {MANY} rows"):
        fetched(tmp_path, rows(tmp_path, MANY + 1, "i1"))
    assert len(fetched(tmp_path, rows(tmp_path, MANY + 1, "i1"), bounds=None)) == MANY + 1
    assert len(fetched(tmp_path, rows(tmp_path, MANY, "i1"))) == MANY


@pytest.mark.parametrize(("bounds", "batches"), [(FEW, [1000, 1000, 500]), (None, [2500])])
def test_a_server_reads_a_query_in_small_batches(
    tmp_path: Path, bounds: TableBounds | None, batches: list[int]
) -> None:
    """The size is checked after each batch, and rows may have large texts."""
    seen: list[int] = []
    fetched(tmp_path, sql_rows(tmp_path, 2500, "i1"), bounds, seen.append)
    assert [n_rows for n_rows in seen if n_rows] == batches


@pytest.mark.parametrize("rows", KINDS)
def test_too_many_bytes_are_refused_for_every_kind_of_source(
    tmp_path: Path, rows: Callable[[Path, int, str], SourceSpec]
) -> None:
    """A repeated text is nearly free in a compressed file, but not in memory."""
    with pytest.raises(SourceTooLarge, match=f"more than {FEW.max_bytes} bytes"):
        fetched(tmp_path, rows(tmp_path, MANY, "x" * 220))


def test_repeated_binary_values_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row of the file reaches the table."""
    values = pa.array([b"x" * 2000] * 4_000, pa.binary())
    pq.write_table(pa.table({"cover": values}), tmp_path / "list.parquet")
    rows_added: list[int] = []
    monkeypatch.setattr(TableBuilder, "add", lambda _, batch: rows_added.append(batch.num_rows))
    context = SourceContext(tmp_path, Settings(), ("cover",), frozenset(), "metadata", {}, None, FEW)
    spec = SourceSpec.model_validate({"type": "parquet", "path": "list.parquet"})
    with pytest.raises(SourceTooLarge, match=f"more than {FEW.max_bytes} bytes"):
        build_source(spec, context).fetch()
    assert rows_added == [0]


@pytest.mark.parametrize("rows", KINDS)
def test_a_too_long_id_is_refused_by_servers_only(tmp_path: Path, rows: Callable[[Path, int, str], SourceSpec]) -> None:
    """A server refuses an id of more than 256 characters. A training reads it."""
    spec = rows(tmp_path, 3, "x" * 5000)
    with pytest.raises(DataSourceError, match="the id column item_id holds an id of more than 256 characters"):
        fetched(tmp_path, spec)
    assert len(fetched(tmp_path, spec, bounds=None)) == 3


PEAK = """
import sys
from pathlib import Path
from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from tests.sources.test_bounds import fetched, peak_bytes

folder, kind, name = Path(sys.argv[1]), *sys.argv[2:]
(folder / "small.csv").write_text("item_id\\n1\\n")
fetched(folder, SourceSpec.model_validate({"type": "csv", "path": "small.csv"}))
before = peak_bytes()
try:
    fetched(folder, SourceSpec.model_validate({"type": kind, "path": name}))
except DataSourceError as error:
    print(str(error)[:200])
print(peak_bytes() - before)
"""


def peak_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def one_text(folder: Path) -> tuple[str, str]:
    (folder / "list.parquet").write_bytes(large_cell(["x" * 300_000_000]))
    return "parquet", "list.parquet"


def one_nested_cell(folder: Path) -> tuple[str, str]:
    values = pa.ListArray.from_arrays(
        pa.array([0, 40_000_000], pa.int32()), pa.repeat(pa.scalar(7, pa.int64()), 40_000_000)
    )
    (folder / "list.parquet").write_bytes(large_cell(values))
    return "parquet", "list.parquet"


def one_text_repeated(folder: Path) -> tuple[str, str]:
    texts = pa.repeat(pa.scalar("x" * 100_000), 5000)
    options = {"column_encoding": {"item_id": "DELTA_BYTE_ARRAY"}, "use_dictionary": False}
    pq.write_table(pa.table({"item_id": texts}), folder / "list.parquet", **options)
    return "parquet", "list.parquet"


@pytest.mark.system
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory as Linux tells it")
@pytest.mark.parametrize("make", [one_text, one_nested_cell, one_text_repeated])
def test_a_small_file_that_expands_is_refused_within_150_mib(
    tmp_path: Path, make: Callable[[Path], tuple[str, str]]
) -> None:
    """A Parquet file of a few MB may hold one huge text, one huge list or one text many times."""
    kind, name = make(tmp_path)
    assert (tmp_path / name).stat().st_size < 6_000_000
    command = [sys.executable, "-c", PEAK, str(tmp_path), kind, name]
    *refusal, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "expands to more than" in refusal[0]
    assert int(peak) <= 150 << 20


REFUSED = """
import sys
from pathlib import Path
from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from tests.sources.test_bounds import fetched

try:
    fetched(Path(sys.argv[1]), SourceSpec.model_validate({"type": "csv", "path": "bad.csv"}), bounds=None)
except DataSourceError as error:
    print(error)
"""


@pytest.mark.system
def test_a_process_that_refuses_a_malformed_csv_exits_normally(tmp_path: Path) -> None:
    """Arrow's threads read ahead, and could abort or block the exit."""
    (tmp_path / "bad.csv").write_text("item_id,b\n" + "a,c\n" * 1000 + "a,b,c\n" + "c,d\n" * 20_000_000)
    for _ in range(4):
        command = [sys.executable, "-c", REFUSED, str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "line 1002 has 3 fields" in ended.stdout
