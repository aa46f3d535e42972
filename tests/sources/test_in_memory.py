"""Tables of the calling program: found by their digest, within their context only."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from svc.errors import DataSourceError, RecipeError
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources.base import DataSource, SourceContext, build_source, check_spec
from svc.sources.in_memory import offer_table

TABLE = pa.table({"user": ["7", "007", None], "item": ["a", "b", "a"], "stars": [1, None, 3]})


def source(digest: str, *columns: str) -> DataSource:
    context = SourceContext(Path(), Settings(), columns or None, frozenset({"user", "item"}), "interactions", {}, None)
    return build_source(SourceSpec(type="dataframe", sha256=digest), context)  # type: ignore[call-arg]


def test_a_table_in_memory_is_read_like_a_file() -> None:
    """Ids are categories, and integers with gaps stay integers. Division into chunks does not change the digest."""
    with offer_table(TABLE) as digest:
        frame = source(digest).fetch()
        assert frame["user"].cat.categories.tolist() == ["7", "007"]
        assert frame["user"].cat.codes.tolist() == [0, 1, -1]
        assert str(frame["stars"].dtype) == "Int64"
        assert list(source(digest, "item", "user").fetch().columns) == ["item", "user"]
        assert source(digest).probe() == ["the DataFrame: 3 rows"]
        assert source(digest, "stars").sample(2)["stars"].tolist() == [1, pd.NA]
        with pytest.raises(DataSourceError, match="the DataFrame has no column city; it has user, item, stars"):
            source(digest, "city").fetch()
    pieces = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])
    with offer_table(pieces) as other, offer_table(TABLE.select(["user"])) as less:
        assert (other == digest, less == digest) == (True, False)
        assert len(source(other).fetch()) == 3


def test_a_table_is_not_found_outside_its_context() -> None:
    """After its context, the digest of a table names no source. The list of installed types omits this type."""
    with offer_table(TABLE) as digest:
        pass
    with pytest.raises(DataSourceError, match=r"svc\.train\(data\) in Python"):
        source(digest).fetch()
    with pytest.raises(RecipeError) as caught:
        check_spec(SourceSpec(type="datafram"), "source")
    assert "installed are bigquery, csv, delta, duckdb, iceberg, jsonl, parquet, sql" in caught.value.message
