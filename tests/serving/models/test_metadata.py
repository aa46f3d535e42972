"""Item metadata from a real file, lined up with the items of a model."""

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
    """The last row of an item counts, items without a row have none, rows of strangers are dropped."""
    table = load(recipe(tmp_path))
    assert table is not None
    assert table.fields == ("title", "year")
    assert list(table.rows) == [("Nought", 2000), None, ("Two", 1992)]


def test_missing_values_are_null(tmp_path: Path) -> None:
    """What the table leaves blank is None, whatever pandas makes of it."""
    table = load(recipe(tmp_path, "item_id,title,year\ni0,,\ni1,One,1991\n"))
    assert table is not None
    assert table.rows[0] == (None, None)


def test_denied_fields_never_come_back(tmp_path: Path) -> None:
    """Whatever a recipe says, the server's setting stands above it; nothing left means no table."""
    loaded = recipe(tmp_path, fields=["title", "secret"])
    table = load(loaded, replace(SETTINGS, metadata_field_deny=("SECRET",)))
    assert table is not None
    assert table.fields == ("title",)
    assert load(loaded, replace(SETTINGS, metadata_field_deny=("secret", "title"))) is None


def test_a_missing_field_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The load fails: an answer without a declared field would break its readers."""
    with pytest.raises(MetadataError, match="colour"):
        load(recipe(tmp_path, fields=["title", "colour"]))


def test_a_missing_field_may_be_null_instead(tmp_path: Path) -> None:
    """Then every answer carries it as null, and one warning says so."""
    lines: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), lambda line: lines.append(json.loads(line)))
    table = load(recipe(tmp_path, fields=["title", "colour"], on_field_missing="null"))
    logs.configure(Settings())
    assert table is not None
    assert table.rows[2] == ("Two", None)
    assert [(one["event"], one["fields"]) for one in lines] == [("metadata_field_missing", ["colour"])]


@pytest.mark.system
def test_reading_does_not_import_pandas(tmp_path: Path) -> None:
    """That would cost a server with metadata 44 MiB; values of every kind come without it."""
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
    """Sources that give no Arrow table, such as plug-ins, describe items in the same way."""
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
    """It counts as a failure to read, so that the load is tried again."""
    loaded = recipe(tmp_path)
    (tmp_path / "items.csv").unlink()
    with pytest.raises(MetadataError):
        load(loaded)


def test_a_recipe_without_metadata_needs_none(tmp_path: Path) -> None:
    """None, and no source is built."""
    loaded = recipe(tmp_path)
    bare = replace(loaded, recipe=loaded.recipe.model_copy(update={"item_metadata": None}))
    assert load(bare) is None
