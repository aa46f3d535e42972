"""Tables with one row an item: the same through Arrow and through pandas."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from svc.serving.models.item_tables import ItemTable, read_item_table
from svc.settings import Settings
from svc.sources import base
from svc.sources.base import SourceContext
from svc.sources.bounds import TableBounds


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
    """Missing and infinite numbers are None, missing ids have the code −1 or are blank."""
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
