"""The BigQuery source with Google's own clients, against a fake server of the REST and gRPC calls."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from svc.errors import DataSourceError, SourceTooLarge
from svc.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

COLUMNS = ("user_id", "item_id", "ts")
OPTIONS: dict[str, Any] = {
    "query": "select * from t where ts > @since",
    "project": "test",
    "query_parameters": {"since": 5},
}


def test_rows_come_over_the_storage_api(make: Any, bigquery: Any, records: list[Any]) -> None:
    """Only the needed columns are requested, parameters have names and types, and REST transfers no rows."""
    frame = make("bigquery", columns=COLUMNS, **OPTIONS).fetch()
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 5000
    assert frame["user_id"].cat.categories[:2].to_list() == ["0", "1"]
    assert bigquery.selected.column_names == list(COLUMNS)
    parameter = bigquery.jobs[0]["configuration"]["query"]["queryParameters"][0]
    assert (parameter["name"], parameter["parameterType"]["type"]) == ("since", "INT64")
    assert "rows from 0" in bigquery.calls
    assert not records


def test_a_cut_stream_is_resumed(make: Any, bigquery: Any) -> None:
    """The client continues at the row at which the stream broke."""
    bigquery.cut_once = True
    frame = make("bigquery", columns=COLUMNS, **OPTIONS).fetch()
    assert frame["ts"].to_list() == list(range(5000))
    assert "rows from 2000" in bigquery.calls


def test_without_permission_rows_come_over_rest(make: Any, bigquery: Any, records: list[Any]) -> None:
    """The result of the same job is read, so the query is paid once. The fallback is logged."""
    bigquery.deny_storage = True
    frame = make("bigquery", columns=COLUMNS, **OPTIONS).fetch()
    assert frame["ts"].to_list() == list(range(5000))
    assert frame["item_id"].cat.categories.to_list() == [f"i{k}" for k in range(7)]
    assert bigquery.calls.count("query") == 1
    assert [(r["event"], r["reason"]) for r in records] == [("bigquery_storage_fallback", "permission_denied")]


def test_without_the_extra_rows_come_over_rest(make: Any, bigquery: Any, records: list[Any], monkeypatch: Any) -> None:
    """Without the package of the Storage Read API, no call goes to it."""
    import google.cloud

    monkeypatch.delattr(google.cloud, "bigquery_storage", raising=False)
    monkeypatch.setitem(sys.modules, "google.cloud.bigquery_storage", None)
    assert len(make("bigquery", columns=COLUMNS, **OPTIONS).fetch()) == 5000
    assert "session" not in bigquery.calls
    assert [(r["event"], r["reason"]) for r in records] == [("bigquery_storage_fallback", "missing_extra")]


def test_a_broken_stream_does_not_fall_back_to_rest(make: Any, bigquery: Any, records: list[Any]) -> None:
    """A stream that cannot be resumed is an error."""
    bigquery.cut_for_good = True
    with pytest.raises(DataSourceError, match="cut"):
        make("bigquery", columns=COLUMNS, **OPTIONS).fetch()
    assert not records


def test_the_fallback_can_be_forbidden(make: Any, bigquery: Any) -> None:
    """With SVC_BQ_REQUIRE_STORAGE_API=1 a missing permission is an error that names it."""
    bigquery.deny_storage = True
    settings = Settings(bq_require_storage_api=True)
    with pytest.raises(DataSourceError, match="readsessions"):
        make("bigquery", columns=COLUMNS, settings=settings, **OPTIONS).fetch()


def test_a_denied_query_is_an_error(make: Any, bigquery: Any) -> None:
    """No fallback hides a query without permission."""
    bigquery.deny_query = True
    with pytest.raises(DataSourceError, match="Access Denied"):
        make("bigquery", columns=COLUMNS, **OPTIONS).fetch()


def test_probe_is_a_dry_run(make: Any, bigquery: Any) -> None:
    """No rows are read, and a missing column is named."""
    assert any("4096 bytes" in line for line in make("bigquery", columns=COLUMNS, **OPTIONS).probe())
    assert bigquery.jobs[0]["configuration"]["dryRun"] is True
    with pytest.raises(DataSourceError, match="no column absent"):
        make("bigquery", columns=("absent",), **OPTIONS).probe()
    assert set(bigquery.calls) == {"query"}


def test_too_many_rows_are_refused_before_reading(make: Any, bigquery: Any) -> None:
    """The reported number of rows is compared with the cap."""
    with pytest.raises(SourceTooLarge, match="SVC_MAX_SQL_ROWS"):
        make("bigquery", columns=COLUMNS, settings=Settings(max_sql_rows=4999), **OPTIONS).fetch()
    assert "session" not in bigquery.calls
