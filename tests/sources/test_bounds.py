"""What a server reads while it answers is bounded, however small the file is that stands for it."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc.errors import DataSourceError, SourceTooLarge
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
from svc.sources.bounds import LEAST_BYTES, LEAST_ROWS, TableBounds

MANY = 3 * LEAST_ROWS // 2
FEW = TableBounds.for_serving(1000, 1)


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


def fetched(folder: Path, spec: SourceSpec, bounds: TableBounds | None = FEW) -> Any:
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{folder}/list.db"}
    ids = frozenset({"item_id"})
    return build_source(
        spec, SourceContext(folder, Settings(), ("item_id",), ids, "metadata", variables, None, bounds)
    ).fetch()


KINDS = [csv_rows, parquet_rows, sql_rows]


@pytest.mark.parametrize("rows", KINDS)
def test_too_many_rows_are_refused_for_every_kind_of_source(
    tmp_path: Path, rows: Callable[[Path, int, str], SourceSpec]
) -> None:
    """Though they name one item; what a training reads is not bounded so."""
    spec = rows(tmp_path, MANY, "i1")
    with pytest.raises(SourceTooLarge, match=f"more than {LEAST_ROWS} rows"):
        fetched(tmp_path, spec)
    assert len(fetched(tmp_path, spec, bounds=None)) == MANY


@pytest.mark.parametrize("rows", KINDS)
def test_too_many_bytes_are_refused_for_every_kind_of_source(
    tmp_path: Path, rows: Callable[[Path, int, str], SourceSpec]
) -> None:
    """A text that is repeated costs a compressed file nothing."""
    with pytest.raises(SourceTooLarge, match=f"more than {LEAST_BYTES} bytes"):
        fetched(tmp_path, rows(tmp_path, LEAST_BYTES // 190, "x" * 200))


@pytest.mark.parametrize("rows", KINDS)
def test_ten_times_what_the_items_need_is_read(tmp_path: Path, rows: Callable[[Path, int, str], SourceSpec]) -> None:
    """A list that names each item of a large model ten times."""
    assert len(fetched(tmp_path, rows(tmp_path, MANY, "i1"), TableBounds.for_serving(MANY // 10 + 1, 1))) == MANY


def test_bounds_grow_with_the_model() -> None:
    """In rows, and in bytes by the columns that are read."""
    assert (FEW.max_rows, FEW.max_bytes) == (LEAST_ROWS, LEAST_BYTES)
    large = TableBounds.for_serving(1_000_000, 3)
    assert (large.max_rows, large.max_bytes) == (10_000_000, 10 * 1_000_000 * 3 * 512)


@pytest.mark.parametrize("rows", KINDS)
def test_an_id_longer_than_ids_may_be_is_refused(tmp_path: Path, rows: Callable[[Path, int, str], SourceSpec]) -> None:
    """Before it is converted, and only by a server."""
    spec = rows(tmp_path, 3, "x" * 5000)
    with pytest.raises(DataSourceError, match="the id column item_id holds an id of more than 256 characters"):
        fetched(tmp_path, spec)
    assert len(fetched(tmp_path, spec, bounds=None)) == 3
