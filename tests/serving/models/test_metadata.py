"""Item metadata from a file, in the order of a model's items."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc import logs
from svc.errors import MetadataError
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.serving.models.metadata import MetadataTable, load_metadata
from svc.settings import Settings
from svc.sources.parquet import ParquetSource
from tests.serving.artifacts import ids

SETTINGS = Settings()
TABLE = "item_id,title,year,secret\ni2,Two,1992,x\nother,Nobody,1990,x\ni0,Zero,,x\ni0,Nought,2000,x\n"


def recipe(folder: Path, table: str = TABLE, **metadata: Any) -> LoadedRecipe:
    (folder / "items.csv").write_text(table, encoding="utf-8")
    content = {
        "name": "a",
        "source": {"type": "csv", "path": "none.csv"},
        "schema": {"user_column": "u", "item_column": "i"},
        "output": {"path": "a.svc"},
        "item_metadata": {
            "source": {"type": "csv", "path": "items.csv"},
            "id_column": "item_id",
            "fields": ["title", "year"],
            **metadata,
        },
    }
    (folder / "a.yaml").write_text(json.dumps(content), encoding="utf-8")
    return load_recipe(folder / "a.yaml", {}, settings=SETTINGS, for_serving=True)


def load(loaded: LoadedRecipe, settings: Settings = SETTINGS) -> MetadataTable | None:
    return load_metadata(loaded, settings, ids("i", 3), {}).metadata


def test_rows_follow_the_items_of_the_model(tmp_path: Path) -> None:
    """The last row of an item counts. Items without a row have None, and rows of unknown items are dropped."""
    table = load(recipe(tmp_path))
    assert table is not None
    assert table.fields == ("title", "year")
    assert list(table.rows) == [("Nought", 2000), None, ("Two", 1992)]


def test_missing_values_are_null(tmp_path: Path) -> None:
    """Blank cells are None, also through pandas."""
    table = load(recipe(tmp_path, "item_id,title,year\ni0,,\ni1,One,1991\n"))
    assert table is not None
    assert table.rows[0] == (None, None)


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


def test_a_missing_field_may_be_null_instead(tmp_path: Path) -> None:
    """Each answer has the field as null, and one warning is logged."""
    lines: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), lambda line: lines.append(json.loads(line)))
    table = load(recipe(tmp_path, fields=["title", "colour"], on_field_missing="null"))
    logs.configure(Settings())
    assert table is not None
    assert table.rows[2] == ("Two", None)
    assert [(one["event"], one["fields"]) for one in lines] == [("metadata_field_missing", ["colour"])]


@pytest.mark.system
def test_reading_does_not_import_pandas(tmp_path: Path) -> None:
    """Pandas would cost a server 44 MiB. All kinds of values are read without it."""
    recipe(tmp_path, "item_id,title,year,rating\ni0,One,1992,1.5\ni1,,,\ni2,Two,1999,nan\n")
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.serving.models.test_metadata import *\n"
        f"loaded = load_recipe(Path({str(tmp_path)!r}) / 'a.yaml', {{}}, settings=SETTINGS, for_serving=True)\n"
        "print(list(load(loaded).rows), 'pandas' in sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "[('One', 1992), (None, None), ('Two', 1999)] False\n"


@pytest.mark.parametrize("through", ["arrow", "pandas"])
def test_values_are_the_same_through_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str) -> None:
    """Sources without Arrow tables, such as plug-ins, give the same values."""
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
        monkeypatch.delattr(ParquetSource, "fetch_arrow")
    table = load(loaded)
    assert table is not None
    assert list(table.rows) == [
        (None,) * len(fields),
        None,
        (1, 0.5, True, "x", 1.5, "2020-02-29T00:00:00", "2020-02-29T12:30:00.000005"),
    ]


def test_a_table_that_cannot_be_read_is_a_metadata_error(tmp_path: Path) -> None:
    """It counts as a failed read, so the load is retried."""
    loaded = recipe(tmp_path)
    (tmp_path / "items.csv").unlink()
    with pytest.raises(MetadataError):
        load(loaded)


def test_a_recipe_without_metadata_reads_no_table(tmp_path: Path) -> None:
    """The result is None, and no source is built."""
    loaded = recipe(tmp_path)
    bare = replace(loaded, recipe=loaded.recipe.model_copy(update={"item_metadata": None}))
    assert load(bare) is None
