"""Tables with one row for each item, read through Arrow or pandas, and metadata in the order of the model."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc.asking.item_tables import MetadataTable, load_metadata
from svc.errors import MetadataError
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.table import TableSource
from tests.serving import artifacts
from tests.serving.artifacts import ids

MIB = 1 << 20
PROGRAM = """
import gc, json, os, re, sys
from pathlib import Path
import pyarrow.csv, pyarrow.parquet
from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from svc.asking.item_tables import read_item_table
from svc.settings import Settings
from svc.sources.base import SourceContext
from svc.sources.base import TableBounds

def measured(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

def refused(folder, kind, name):
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{folder}/list.db"}
    bounds = TableBounds(1 << 18, 16 << 20)
    context = SourceContext.for_served_table(Path(folder), Settings(), variables, "id", ("id", "text"), bounds=bounds)
    options = {"dsn_env": "SVC_RECIPE_DSN", "query": name} if kind == "sql" else {"path": name}
    try:
        read_item_table(SourceSpec(type=kind, **options), context, ("id",), "the table")
    except DataSourceError as error:
        return error.message
    raise AssertionError("the list was read")

found = {}
for what, small, large in json.load(sys.stdin):
    refused(*small)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = measured("VmRSS")
    message = refused(*large)
    found[what] = {"peak": measured("VmHWM") - before, "left": measured("VmRSS") - before, "message": message}
print(json.dumps(found))
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
    path.write_bytes(gzip.compress(header.encode()) + gzip.compress(piece.encode()) * times)
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


BOMBS = (one_cell, one_list, repeated_text, short_rows, one_value, one_name, one_quote, csv_rows, query_rows)


def task(folder: Path, bomb: Callable[[Path, int], tuple[str, str]]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the arguments of a run: a list of 20 MiB, which loads the libraries, and a list of 200 MiB."""
    lists = []
    for size in (20 * MIB, 200 * MIB):
        (home := folder / f"{bomb.__name__}{size}").mkdir()
        lists.append((str(home), *bomb(home, size)))
    return bomb.__name__, lists[0], lists[1]


@pytest.mark.system
def test_refusing_a_list_that_expands_takes_little_memory(tmp_path: Path) -> None:
    """The list expands to 200 MiB, and the bound is 16 MiB.

    The refusal takes less than 100 MiB. Afterwards less than 10 MiB of it stay in use.
    """
    tasks = json.dumps([task(tmp_path, bomb) for bomb in BOMBS])
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=tasks, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(BOMBS)
    for what, measured in found.items():
        assert "more than" in measured["message"], what
        assert measured["peak"] < 100 * MIB, (what, measured)
        assert measured["left"] < 10 * MIB, (what, measured)


@pytest.mark.system
def test_processes_that_refuse_a_long_csv_end(tmp_path: Path) -> None:
    """An Arrow thread that still reads at the exit would block it for ever, mostly if processes compete for cores."""
    (tmp_path / "task").write_text(json.dumps([task(tmp_path, csv_rows)]))
    running = []
    for _ in range(4):
        with (tmp_path / "task").open() as given:
            command = [sys.executable, "-c", PROGRAM]
            running.append(subprocess.Popen(command, stdin=given, stdout=subprocess.DEVNULL))
    try:
        assert [process.wait(60) for process in running] == [0] * 4
    finally:
        for process in running:
            process.kill()


SETTINGS = Settings()
TABLE = "item_id,title,year,secret\n,Blank,1990,x\ni2,Two,1992,x\nother,Nobody,1990,x\ni0,Zero,,x\ni0,Nought,2000,x\n"


def recipe(folder: Path, table: str = TABLE, **metadata: Any) -> LoadedRecipe:
    (folder / "items.csv").write_text(table, encoding="utf-8")
    source = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "item_id", "fields": ["title", "year"]}
    return artifacts.recipe(folder, item_metadata={**source, **metadata})


def load(loaded: LoadedRecipe, settings: Settings = SETTINGS) -> MetadataTable | None:
    return load_metadata(loaded, settings, ids("i", 3), {}).metadata


def test_rows_follow_the_items_of_the_model(tmp_path: Path) -> None:
    """The last row of an item counts. An item without a row has None. Blank cells are None.

    Rows of unknown items and rows without an id are dropped.
    """
    table = load(recipe(tmp_path))
    assert table is not None
    assert table.fields == ("title", "year")
    assert list(table.rows) == [("Nought", 2000), None, ("Two", 1992)]
    blank = load(recipe(tmp_path, "item_id,title,year\ni0,,\ni1,One,1991\n"))
    assert blank is not None
    assert blank.rows[0] == (None, None)


def test_denied_fields_are_never_answered(tmp_path: Path) -> None:
    """The server's setting overrides the recipe. Without any field left the table is not read."""
    loaded = recipe(tmp_path, fields=["title", "secret"])
    table = load(loaded, replace(SETTINGS, metadata_field_deny=("SECRET",)))
    assert table is not None
    assert table.fields == ("title",)
    assert load(loaded, replace(SETTINGS, metadata_field_deny=("secret", "title"))) is None


def test_a_missing_field_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The load fails, because an answer without a declared field would break clients."""
    with pytest.raises(MetadataError, match="colour"):
        load(recipe(tmp_path, fields=["title", "colour"]))


def test_a_missing_field_may_be_null_instead(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """If the recipe permits it, each answer has null for the field. One warning is logged."""
    table = load(recipe(tmp_path, fields=["title", "colour"], on_field_missing="null"))
    assert table is not None
    assert table.rows[2] == ("Two", None)
    assert [(one["event"], one["fields"]) for one in records] == [("metadata_field_missing", ["colour"])]


@pytest.mark.system
def test_reading_does_not_import_pandas(tmp_path: Path) -> None:
    """Pandas would cost a server 44 MiB. Values of all kinds are read without it."""
    recipe(tmp_path, "item_id,title,year,rating\ni0,One,1992,1.5\ni1,,,\ni2,Two,1999,nan\n")
    program = (
        "import sys; from pathlib import Path\n"
        "from svc.recipe.load import load_recipe\n"
        "from svc.asking.item_tables import load_metadata\n"
        "from svc.settings import Settings\n"
        "from tests.serving.artifacts import ids\n"
        f"loaded = load_recipe(Path({str(tmp_path)!r}) / 'a.yaml', {{}}, settings=Settings(), for_serving=True)\n"
        "rows = load_metadata(loaded, Settings(), ids('i', 3), {}).metadata.rows\n"
        "print(list(rows), 'pandas' in sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "[('One', 1992), (None, None), ('Two', 1999)] False\n"


@pytest.mark.parametrize("through", ["arrow", "pandas"])
def test_values_are_the_same_through_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str) -> None:
    """Plug-in sources without Arrow tables give the same values."""
    columns = {
        "item_id": pa.array(["i2", "i0", None]),
        "whole": pa.array([1, None, 2], pa.int32()),
        "part": pa.array([0.5, float("inf"), None]),
        "truth": pa.array([True, None, False]),
        "kind": pa.array(["x", None, "y"]).dictionary_encode(),
        "price": pa.array([Decimal("1.50"), None, None]),
        "day": pa.array([date(2020, 2, 29), None, None]),
        "time": pa.array([datetime(2020, 2, 29, 12, 30, 0, 5), None, None], pa.timestamp("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "items.parquet")
    fields = [name for name in columns if name != "item_id"]
    loaded = recipe(tmp_path, source={"type": "parquet", "path": "items.parquet"}, fields=fields)
    if through == "pandas":
        monkeypatch.delattr(TableSource, "fetch_arrow")
    table = load(loaded)
    assert table is not None
    assert list(table.rows) == [
        (None,) * len(fields),
        None,
        (1, 0.5, True, "x", 1.5, "2020-02-29T00:00:00", "2020-02-29T12:30:00.000005"),
    ]


def test_a_table_that_cannot_be_read_is_a_metadata_error(tmp_path: Path) -> None:
    """Such a load counts as a failed read, so it is retried."""
    loaded = recipe(tmp_path)
    (tmp_path / "items.csv").unlink()
    with pytest.raises(MetadataError):
        load(loaded)


def test_a_plug_in_source_without_arrow_tables_has_the_same_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rows for each of the three items are read, and one more is refused."""
    monkeypatch.delattr(TableSource, "fetch_arrow")
    monkeypatch.setattr("svc.sources.base.LEAST_ROWS", 1)
    loaded = recipe(tmp_path, source={"type": "parquet", "path": "items.parquet"}, fields=["title"])
    texts = [f"i{row}" for row in range(31)]
    pq.write_table(pa.table({"item_id": texts[:30], "title": texts[:30]}), tmp_path / "items.parquet")
    table = load(loaded)
    assert table is not None
    assert list(table.rows) == [("i0",), ("i1",), ("i2",)]
    pq.write_table(pa.table({"item_id": texts, "title": texts}), tmp_path / "items.parquet")
    with pytest.raises(MetadataError, match="more than 30 rows"):
        load(loaded)


def test_a_recipe_without_metadata_reads_no_table(tmp_path: Path) -> None:
    """The result is None, and no source is built."""
    loaded = recipe(tmp_path)
    bare = replace(loaded, recipe=loaded.recipe.model_copy(update={"item_metadata": None}))
    assert load(bare) is None
