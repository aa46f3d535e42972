"""SQL sources against SQLite, PostgreSQL and MariaDB: one suite for all, and what each alone can break."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svc.errors import ConfigError, DataSourceError, RecipeError, SourceTooLarge
from svc.settings import Settings

SERVERS = {"postgres": "SVC_TEST_POSTGRES_URL", "mysql": "SVC_TEST_MYSQL_URL"}
DSN = "SVC_RECIPE_DSN"


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.integration) for name in SERVERS)])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with a table `svc_ratings` of three rows."""
    import sqlalchemy

    if request.param != "sqlite" and not os.environ.get(SERVERS[request.param]):
        pytest.skip(f"{SERVERS[request.param]} is not set; give the SQLAlchemy URL of a database to try this on")
    url = f"sqlite:///{tmp_path}/a b.db" if request.param == "sqlite" else os.environ[SERVERS[request.param]]
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS svc_ratings")
        connection.exec_driver_sql(
            "CREATE TABLE svc_ratings (user_id INTEGER, item_id VARCHAR(20), price FLOAT, ts BIGINT)"
        )
        rows = "(1, 'a', 0.5, 10), (2, 'b', NULL, 20), (NULL, '', 2.5, NULL)"
        connection.exec_driver_sql(f"INSERT INTO svc_ratings VALUES {rows}")
    engine.dispose()
    yield url
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE svc_ratings")
    engine.dispose()


def sql(make: Any, dsn: str, query: str, **options: Any) -> Any:
    return make("sql", dsn_env=DSN, query=query, variables={DSN: dsn}, **options)


def test_rows_in_their_types(make: Any, dsn: str) -> None:
    """Integer ids are their digits, nulls are missing, whole numbers with gaps stay whole."""
    heard: list[int] = []
    frame = sql(make, dsn, "SELECT * FROM svc_ratings ORDER BY ts IS NULL, ts", progress=heard.append).fetch()
    assert frame["user_id"].cat.categories.to_list() == ["1", "2"]
    assert frame["user_id"].cat.codes.to_list() == [0, 1, -1]
    assert frame["item_id"].to_list() == ["a", "b", ""]
    assert str(frame["ts"].dtype) == "Int64"
    assert frame["price"].isna().to_list() == [False, True, False]
    assert sum(heard) == 3


def test_parameters_are_bound(make: Any, dsn: str) -> None:
    """A value that looks like SQL is a value."""
    query = "SELECT user_id FROM svc_ratings WHERE item_id = :item"
    assert len(sql(make, dsn, query, query_parameters={"item": "a"}).fetch()) == 1
    assert len(sql(make, dsn, query, query_parameters={"item": "' OR 1=1 --"}).fetch()) == 0


@pytest.mark.parametrize(
    "statement", ["DELETE FROM svc_ratings", "DROP TABLE svc_ratings", "SELECT 1; DROP TABLE svc_ratings"]
)
def test_the_session_cannot_write(make: Any, dsn: str, statement: str) -> None:
    """The server refuses it, and the table is still whole."""
    with pytest.raises(DataSourceError):
        sql(make, dsn, statement).fetch()
    assert len(sql(make, dsn, "SELECT * FROM svc_ratings").fetch()) == 3


def test_probe_names_the_columns(make: Any, dsn: str) -> None:
    """Reached, read-only, columns there; or the missing one by name."""
    checks = sql(make, dsn, "SELECT * FROM svc_ratings", columns=("user_id", "ts")).probe()
    assert any("read-only" in line for line in checks)
    assert any("user_id, ts" in line for line in checks)
    with pytest.raises(DataSourceError, match="has no column absent; it has user_id, item_id, price, ts"):
        sql(make, dsn, "SELECT * FROM svc_ratings LIMIT 0", columns=("absent",)).probe()


def test_rows_are_capped(make: Any, dsn: str) -> None:
    """One row over the cap is an error, the cap itself is not."""
    query = "SELECT * FROM svc_ratings"
    assert len(sql(make, dsn, query, settings=Settings(max_sql_rows=3)).fetch()) == 3
    with pytest.raises(SourceTooLarge, match="SVC_MAX_SQL_ROWS"):
        sql(make, dsn, query, settings=Settings(max_sql_rows=2)).fetch()


@pytest.mark.integration
def test_what_is_not_wanted_is_not_waited_for(make: Any) -> None:
    """Whoever leaves in the middle, as an interrupt does, leaves at once; the driver would read the rest first."""
    if not os.environ.get(SERVERS["mysql"]):
        pytest.skip(f"{SERVERS['mysql']} is not set; give the SQLAlchemy URL of a database to try this on")

    def leave(_: int) -> None:
        raise KeyboardInterrupt

    endless = "SELECT a.seq AS user_id FROM seq_1_to_100000 a, seq_1_to_100000 b"
    source = sql(make, os.environ[SERVERS["mysql"]], endless, progress=lambda n: n and leave(n))
    with pytest.raises(KeyboardInterrupt):
        source.fetch()


def test_long_statements_are_ended(make: Any, dsn: str) -> None:
    """The statement timeout is the server's own."""
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) AS n FROM c"
    waits = {"p": "SELECT pg_sleep(60)", "s": endless, "m": "SELECT sleep(60)"}[dsn[0]]
    with pytest.raises(DataSourceError, match=r"(?i)timeout|interrupted|max_statement_time"):
        sql(make, dsn, waits, statement_timeout_seconds=1).fetch()


def test_a_wrong_query_is_explained(make: Any, dsn: str) -> None:
    """The server's own words."""
    with pytest.raises(DataSourceError, match="svc_absent"):
        sql(make, dsn, "SELECT * FROM svc_absent").fetch()


@pytest.mark.integration
@pytest.mark.parametrize("secret", ["hunter2", "hun%ter2"])
def test_no_part_of_a_password_is_told(make: Any, secret: str) -> None:
    """Not even where the server's words, which repeat it in clear or encoded, are cut off in its middle."""
    import sqlalchemy

    if not os.environ.get(SERVERS["postgres"]):
        pytest.skip(f"{SERVERS['postgres']} is not set; give the SQLAlchemy URL of a database to try this on")
    url = sqlalchemy.make_url(os.environ[SERVERS["postgres"]]).set(password=secret)
    dsn, told = url.render_as_string(hide_password=False), secret.replace("%", "%25")
    for padding in range(350, 362):
        with pytest.raises(DataSourceError) as caught:
            sql(make, dsn, f"SELECT '{'x' * padding}{told}'::int AS n").fetch()
        assert "hun" not in caught.value.message


def test_sqlite_files_are_not_created(make: Any, tmp_path: Path) -> None:
    """A misspelt path is an error, not an empty database."""
    with pytest.raises(DataSourceError, match="unable to open"):
        sql(make, f"sqlite:///{tmp_path}/none.db", "SELECT 1").fetch()
    assert not (tmp_path / "none.db").exists()


def test_floating_point_ids_are_refused(make: Any, tmp_path: Path) -> None:
    """As in every source."""
    sqlite3.connect(tmp_path / "a.db").close()
    with pytest.raises(DataSourceError, match="floating point"):
        sql(make, f"sqlite:///{tmp_path}/a.db", "SELECT 1.0 AS user_id").fetch()


@pytest.mark.parametrize("url", ["oracle://u:hunter2@h/d", "hunter2", "://hunter2"])
def test_addresses_that_are_none(make: Any, url: str) -> None:
    """The variable is named, its value never."""
    with pytest.raises(ConfigError, match=DSN) as caught:
        sql(make, url, "SELECT 1").fetch()
    assert "hunter2" not in caught.value.message


def test_an_unset_variable_is_named(make: Any) -> None:
    """The recipe says where the address should stand."""
    with pytest.raises(RecipeError, match="SVC_RECIPE_DSN is not set"):
        make("sql", dsn_env=DSN, query="SELECT 1").fetch()


def _accept_and_close(server: socket.socket) -> None:
    server.accept()[0].close()


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mariadb+pymysql"])
@pytest.mark.parametrize("fault", ["refused", "hung", "cut"])
@pytest.mark.integration
def test_servers_that_fail(make: Any, driver: str, fault: str) -> None:
    """Nobody there, silence, and a connection that ends: an error in bounded time, without the password."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if fault == "refused":
            server.close()
        if fault == "cut":
            threading.Thread(target=_accept_and_close, args=(server,), daemon=True).start()
        url = f"{driver}://svc:hunter2@127.0.0.1:{port}/test?sslmode=disable"
        url = url if driver.startswith("post") else url.partition("?")[0]
        with pytest.raises(DataSourceError, match=r"127\.0\.0\.1") as caught:
            sql(make, url, "SELECT 1", connect_timeout_seconds=2).fetch()
    assert "hunter2" not in caught.value.message
