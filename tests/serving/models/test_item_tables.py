"""Tables with one row for each item, equal through Arrow and pandas."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from svc.serving.models.item_tables import ItemTable, read_item_table
from svc.settings import Settings
from svc.sources import base
from svc.sources.base import SourceContext, TableBounds


def read(folder: Path, *, with_arrow: bool) -> ItemTable:
    (folder / "t.csv").write_text("id,year\n007,1999\n,2001\nb,\n007,inf\n", encoding="utf-8")
    source = SourceSpec.model_validate({"type": "csv", "path": "t.csv"})
    bounds = TableBounds.for_serving(4, 2)
    context = SourceContext.for_served_table(folder, Settings(), {}, "id", ("id", "year"), bounds=bounds)
    built: Any = base.build_source(source, context)
    if not with_arrow:
        frame = pd.DataFrame({"id": pd.Categorical(["007", None, "b", "007"]), "year": [1999.0, 2001.0, None, np.inf]})
        built = SimpleNamespace(fetch=lambda: frame)
    with mock.patch.object(base, "build_source", lambda *_: built):
        return read_item_table(source, context, ("id", "year"), cast(Any, DataSourceError))


@pytest.mark.parametrize("with_arrow", [True, False])
def test_a_table_is_read_with_and_without_arrow(tmp_path: Path, *, with_arrow: bool) -> None:
    """Missing and infinite numbers are None. Missing ids are blank or have the code −1."""
    table = read(tmp_path, with_arrow=with_arrow)
    assert [table.texts[code] or None if code >= 0 else None for code in table.codes.tolist()] == [
        "007",
        None,
        "b",
        "007",
    ]
    assert table.take("year", np.arange(4)) == [1999.0, 2001.0, None, None]
    with pytest.raises(DataSourceError, match="lacks the column 'none'"):
        context = SourceContext.for_served_table(tmp_path, Settings(), {}, "id", None)
        source = SourceSpec.model_validate({"type": "csv", "path": "t.csv"})
        read_item_table(source, context, ("id", "none"), DataSourceError)


MIB = 1 << 20
PROGRAM = """
import gc, json, os, re, sys
from pathlib import Path
import pyarrow.csv, pyarrow.parquet
from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from svc.serving.models.item_tables import read_item_table
from svc.settings import Settings
from svc.sources.base import SourceContext
from svc.sources.base import TableBounds

def measured(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

def refused(name):
    context = SourceContext.for_served_table(
        Path.cwd(), Settings(), {"SVC_RECIPE_DSN": f"sqlite:///{Path.cwd()}/list.db"}, "id", ("id", "text"),
        bounds=TableBounds.for_serving(1000, 2),
    )
    options = {"dsn_env": "SVC_RECIPE_DSN", "query": name} if sys.argv[1] == "sql" else {"path": name}
    try:
        read_item_table(SourceSpec(type=sys.argv[1], **options), context, ("id",), DataSourceError)
    except DataSourceError as error:
        return error.message
    raise AssertionError("the list was read")

refused(sys.argv[2])
before = measured("VmRSS")
message = refused(sys.argv[3])
peak = measured("VmHWM") - before
print(json.dumps({"peak": peak, "left": measured("VmRSS") - before, "message": message}))
"""


def write_parquet(path: Path, texts: pa.Array, n_rows: int) -> None:
    ids = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), n_rows), pa.array(["i"]))
    pq.write_table(pa.table({"id": ids, "text": texts}), path, compression="zstd")


def one_cell(folder: Path, n: int) -> tuple[str, str]:
    write_parquet(folder / "list.parquet", pa.array(["x" * n]), 1)
    return "parquet", "list.parquet"


def one_list(folder: Path, n: int) -> tuple[str, str]:
    texts = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), n // 10_000), pa.array(["x" * 10_000]))
    write_parquet(folder / "list.parquet", pa.ListArray.from_arrays([0, len(texts)], texts), 1)
    return "parquet", "list.parquet"


def repeated_text(folder: Path, n: int) -> tuple[str, str]:
    texts = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 100), pa.array(["x" * (n // 100)]))
    write_parquet(folder / "list.parquet", texts, 100)
    return "parquet", "list.parquet"


def short_rows(folder: Path, n: int) -> tuple[str, str]:
    texts = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), n // 20), pa.array(["x"]))
    write_parquet(folder / "list.parquet", texts, n // 20)
    return "parquet", "list.parquet"


def write_csv(path: Path, header: str, piece: str, times: int) -> tuple[str, str]:
    with gzip.open(path, "wb", compresslevel=9) as out:
        out.write(header.encode())
        for _ in range(times):
            out.write(piece.encode())
    assert path.stat().st_size < 8 * MIB
    return "csv", path.name


def one_value(folder: Path, n: int) -> tuple[str, str]:
    return write_csv(folder / "list.csv.gz", "id,text\ni,", "x" * MIB, n // MIB)


def one_name(folder: Path, n: int) -> tuple[str, str]:
    return write_csv(folder / "list.csv.gz", "id,", "x" * MIB, n // MIB)


def one_quote(folder: Path, n: int) -> tuple[str, str]:
    return write_csv(folder / "list.csv.gz", 'id,text\ni,"', "x\n" * (MIB // 2), n // MIB)


def csv_rows(folder: Path, n: int) -> tuple[str, str]:
    return write_csv(folder / "list.csv.gz", "id,text\n", "1,2\n" * (MIB // 4), n // MIB)


def query_rows(folder: Path, n: int) -> tuple[str, str]:
    (folder / "list.db").touch()
    return "sql", (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {n // 20}) "
        "SELECT i AS id, 'x' AS text FROM n"
    )


@pytest.mark.system
@pytest.mark.parametrize(
    "bomb",
    [one_cell, one_list, repeated_text, short_rows, one_value, one_name, one_quote, csv_rows, query_rows],
)
def test_refusing_a_list_that_expands_takes_little_memory(
    tmp_path: Path, bomb: Callable[[Path, int], tuple[str, str]]
) -> None:
    """Refusing over a gigabyte takes at most 150 MiB, of which 32 MiB stay.

    A smaller list is refused before the measurement, to load the libraries.
    """
    kind, first = bomb(tmp_path, 100 * MIB)
    if kind != "sql":
        (tmp_path / first).rename(tmp_path / f"first.{first}")
        first = f"first.{first}"
    kind, second = bomb(tmp_path, 1200 * MIB)
    command = [sys.executable, "-c", PROGRAM, kind, first, second]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert not done.returncode, done.stderr
    measured = json.loads(done.stdout)
    assert "more than" in measured["message"]
    assert measured["peak"] < 150 * MIB, measured
    assert measured["left"] < 32 * MIB, measured
