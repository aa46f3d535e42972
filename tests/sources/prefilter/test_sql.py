"""What databases leave out by themselves is what the filter would drop."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from svc.errors import RowFilterMismatch
from svc.recipe.row_filter import parse_row_filter
from svc.sources.prefilter.sql import may_stand_inside
from svc.training.data.where import fetch_kept, kept_rows
from tests.sources.prefilter.rows import FILTERS, table, values
from tests.sources.test_sql import DSN, SERVERS

COLUMNS = {
    "postgres": "user_id TEXT, item_id CHAR(3), stars SMALLINT, price DOUBLE PRECISION, big BIGINT, label VARCHAR(9), "
    "cost NUMERIC(8, 3), weight REAL, note NUMERIC",
    "mysql": "user_id VARCHAR(9), item_id CHAR(3), stars TINYINT, price DOUBLE, big BIGINT, label TEXT, "
    "cost DECIMAL(8, 3), weight FLOAT, note VARBINARY(9)",
}


@pytest.fixture(scope="module", params=[*SERVERS])
def dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with the table `svc_kept`, whose text ignores case in MariaDB."""
    import sqlalchemy

    url = os.environ.get(SERVERS[request.param])
    if not url:
        pytest.skip(f"{SERVERS[request.param]} is not set; give the SQLAlchemy URL of a database to try this on")
    engine = sqlalchemy.create_engine(url)
    rows = table(7, 300)
    if request.param == "mysql":
        rows["price"] = [None if value is None or not math.isfinite(value) else value for value in rows["price"]]
    rows |= {"cost": [value and value / 8 for value in rows["stars"]], "weight": rows["stars"], "note": rows["stars"]}
    marks = ", ".join(f":{name}" for name in rows)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS svc_kept")
        connection.exec_driver_sql(f"CREATE TABLE svc_kept ({COLUMNS[request.param]})")
        each = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        connection.execute(sqlalchemy.text(f"INSERT INTO svc_kept VALUES ({marks})"), each)
    yield url
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE svc_kept")
    engine.dispose()


def source_of(make: Any, dsn: str, query: str = "SELECT * FROM svc_kept;", **options: Any) -> Any:
    return make("sql", dsn_env=DSN, query=query, variables={DSN: dsn}, **options)


@pytest.mark.integration
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(where=FILTERS)
def test_pushed_or_not_the_rows_are_the_same(make: Any, dsn: str, where: dict[str, Any]) -> None:
    """Rows, their order and values, and the count of the others: nulls, NaN, blanks, letters that collations equate."""
    source = source_of(make, dsn)
    plain, pushed = kept_rows(source.fetch(), where), fetch_kept(source, where)
    assert pushed.n_dropped == plain.n_dropped
    assert values(pushed.frame) == values(plain.frame)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("where", "sent"),
    [
        ({"stars": {"gt": 3.5}}, 60),
        ({"price": {"gt": 1}}, 140),
        ({"cost": {"eq": 0.5}}, 60),
        ({"label": {"any": ["ä"]}}, 100),
        ({"big": {"any": ["0", "x"]}}, 60),
        ({"big": {"any": ["x"]}}, 0),
        ({"all": [{"stars": {"gte": 4}}, {"not": {"label": {"any": ["b"]}}}, {"weight": {"gte": 0}}]}, 60),
    ],
)
def test_only_rows_that_may_satisfy_the_filter_are_sent(make: Any, dsn: str, where: dict[str, Any], sent: int) -> None:
    """Conditions that no database judges as svc does are left to svc; bound values stay bound."""
    told: list[int] = []
    query = "SELECT * FROM svc_kept WHERE stars IS NULL OR stars <> :odd"
    source = source_of(make, dsn, query, progress=told.append, query_parameters={"odd": 99})
    pushed = source.fetch_where(parse_row_filter(where))
    assert pushed.n_rows == 300
    assert 0 <= sum(told) <= sent * 1.5
    assert (sum(told) > 0) == (sent > 0)


@pytest.mark.integration
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM svc_kept ORDER BY user_id",
        "SELECT * FROM svc_kept LIMIT 5",
        "SELECT * FROM svc_kept -- all of them",
        "SELECT a.*, b.stars FROM svc_kept a JOIN svc_kept b ON a.user_id = b.user_id",
    ],
)
def test_some_queries_are_sent_as_they_stand(make: Any, dsn: str, query: str) -> None:
    """Those whose order or end would be lost inside another query, and those with two columns of one name."""
    assert source_of(make, dsn, query).fetch_where(parse_row_filter({"stars": {"gte": 3}})) is None


@pytest.mark.integration
def test_a_value_that_may_have_to_be_refused_is_not_left_out(make: Any, dsn: str) -> None:
    """Though another condition would drop its row."""
    source = source_of(make, dsn)
    with pytest.raises(RowFilterMismatch, match="'label'"):
        fetch_kept(source, {"all": [{"stars": {"eq": 77}}, {"label": {"gte": 1}}]})


@pytest.mark.parametrize(
    ("query", "postgresql", "mysql"),
    [
        ("SELECT * FROM sales", True, True),
        ("SELECT * FROM sales WHERE ts > now() - interval '90 days'", True, False),
        ("SELECT user_id, brand, uuid, known FROM sales", True, True),
        ("SELECT * FROM sales WHERE random() < 0.1", False, True),
        ("SELECT * FROM sales WHERE RAND () < 0.1", True, False),
        ("SELECT * FROM sales WHERE ts > current_date - 90", True, False),
        ("SELECT * FROM sales\norder\n by ts", False, False),
        ("SELECT * FROM sales /* all */", False, False),
        ("SELECT * FROM sales FETCH FIRST 5 ROWS ONLY", False, False),
    ],
)
def test_queries_whose_rows_may_differ_from_run_to_run_are_told(query: str, postgresql: bool, mysql: bool) -> None:
    """PostgreSQL's clock stands still within a transaction, that of MariaDB moves on with each statement."""
    assert (may_stand_inside(query, "postgresql"), may_stand_inside(query, "mysql")) == (postgresql, mysql)
