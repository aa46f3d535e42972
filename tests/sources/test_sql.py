"""The SQL source on SQLite, PostgreSQL and MariaDB: one suite for all, and attacks on each."""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from svc.errors import ConfigError, DataSourceError, RecipeError, SourceTooLarge
from svc.settings import Settings
from svc.sources.sql import Watchdog

SERVERS = {"postgres": "SVC_TEST_POSTGRES_URL", "mysql": "SVC_TEST_MYSQL_URL"}
LOCKS = {"postgres": "SELECT pg_advisory_lock(7421)", "mysql": "SELECT GET_LOCK('svc_ratings', 60)"}
DSN = "SVC_RECIPE_DSN"


def server_url(name: str) -> str:
    """Return the URL of a database on a server, or skip the test."""
    if not (url := os.environ.get(SERVERS[name])):
        pytest.skip(f"{SERVERS[name]} is not set; give the SQLAlchemy URL of a database to try this on")
    return url


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.integration) for name in SERVERS)])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a database with a table `svc_ratings` of three rows."""
    import sqlalchemy

    url = f"sqlite:///{tmp_path}/a b.db" if request.param == "sqlite" else server_url(request.param)
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    lock = engine.connect()
    if request.param in LOCKS:  # all processes of a run have one server, so one after the other has the table
        lock.exec_driver_sql(LOCKS[request.param])
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS svc_ratings")
        connection.exec_driver_sql(
            "CREATE TABLE svc_ratings (user_id INTEGER, item_id VARCHAR(20), price FLOAT, ts BIGINT)"
        )
        rows = "(1, 'a', 0.5, 10), (2, 'b', NULL, 20), (NULL, '', 2.5, NULL)"
        connection.exec_driver_sql(f"INSERT INTO svc_ratings VALUES {rows}")
    yield url
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE svc_ratings")
    lock.close()


def sql(make: Any, dsn: str, query: str, **options: Any) -> Any:
    return make("sql", dsn_env=DSN, query=query, variables={DSN: dsn}, **options)


def test_rows_have_natural_types(make: Any, dsn: str) -> None:
    """Integer ids become text, nulls are missing, and integers with gaps stay integers."""
    heard: list[int] = []
    frame = sql(make, dsn, "SELECT * FROM svc_ratings ORDER BY ts IS NULL, ts", progress=heard.append).fetch()
    assert frame["user_id"].cat.categories.to_list() == ["1", "2"]
    assert frame["user_id"].cat.codes.to_list() == [0, 1, -1]
    assert frame["item_id"].to_list() == ["a", "b", ""]
    assert str(frame["ts"].dtype) == "Int64"
    assert frame["price"].isna().to_list() == [False, True, False]
    assert sum(heard) == 3


def test_numbers_and_texts_of_fixed_form_are_ids_without_their_filling(make: Any, dsn: str) -> None:
    """A NUMERIC(10, 2) has decimal places and a CHAR(8) has padding, which no request repeats."""
    query = "SELECT CAST(user_id AS DECIMAL(10, 2)) AS user_id, CAST(item_id AS CHAR(8)) AS item_id FROM svc_ratings"
    frame = sql(make, dsn, f"{query} WHERE item_id <> '' ORDER BY ts").fetch()
    assert frame["user_id"].to_list() == ["1", "2"]
    assert frame["item_id"].to_list() == ["a", "b"]


def test_parameters_are_bound(make: Any, dsn: str) -> None:
    """A value that looks like SQL stays a value. A colon that begins no parameter needs a backslash."""
    query = "SELECT user_id FROM svc_ratings WHERE item_id = :item"
    with pytest.raises(DataSourceError, match=r"query_parameters has no '15' for `:15`; write `\\:`"):
        sql(make, dsn, "SELECT 'at :15' AS user_id").fetch()
    assert sql(make, dsn, "SELECT 'at \\:15' AS user_id").fetch()["user_id"].to_list() == ["at :15"]
    assert len(sql(make, dsn, query, query_parameters={"item": "a"}).fetch()) == 1
    assert len(sql(make, dsn, query, query_parameters={"item": "' OR 1=1 --"}).fetch()) == 0
    with pytest.raises(DataSourceError) as caught:
        sql(make, dsn, f"{query} AND no_column = 1", query_parameters={"item": "private"}).fetch()
    assert "private" not in caught.value.message


@pytest.mark.parametrize(
    "statement", ["DELETE FROM svc_ratings", "DROP TABLE svc_ratings", "SELECT 1; DROP TABLE svc_ratings"]
)
def test_the_session_cannot_write(make: Any, dsn: str, statement: str) -> None:
    """The server refuses the statement, and the table does not change."""
    with pytest.raises(DataSourceError):
        sql(make, dsn, statement).fetch()
    assert len(sql(make, dsn, "SELECT * FROM svc_ratings").fetch()) == 3


READING = [
    "SELECT * FROM svc_ratings",
    "SELECT * FROM svc_ratings;",
    "  SELECT * FROM (SELECT * FROM svc_ratings) AS r ;\n",
    "SELECT * FROM svc_ratings -- a remark",
    "SELECT * FROM svc_ratings /* ) ; INTO OUTFILE */",
    "WITH r AS (SELECT * FROM svc_ratings) SELECT * FROM r",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3) SELECT * FROM c",
    "SELECT a.*, b.* FROM svc_ratings a JOIN svc_ratings b ON a.item_id = b.item_id",
    "SELECT count(*) AS n, 'INTO OUTFILE %s :: %' AS t FROM svc_ratings GROUP BY item_id HAVING count(*) > 0",
    "SELECT item_id FROM svc_ratings UNION ALL SELECT item_id FROM svc_ratings WHERE 1 = 0 ORDER BY 1 LIMIT 3",
    "SELECT * FROM svc_ratings ORDER BY item_id LIMIT 3 OFFSET 0",
]


@pytest.mark.parametrize("query", READING)
def test_reading_queries_of_any_form_run(make: Any, dsn: str, query: str) -> None:
    """Columns with equal names, comments, a semicolon, parentheses and common table expressions are allowed."""
    source = sql(make, dsn, query.replace("::", r"\:\:"))
    assert probed_and_sampled(source, 1)[0]
    assert len(source.fetch()) == 3


def test_the_order_of_a_query_is_kept(make: Any, dsn: str) -> None:
    """Without times, `keep_last` depends on the order."""
    frame = sql(make, dsn, "SELECT item_id FROM svc_ratings ORDER BY item_id DESC").fetch()
    assert frame["item_id"].to_list() == ["b", "a", ""]


def refused(make: Any, dsn: str, queries: Sequence[str]) -> None:
    for query in queries:
        source = sql(make, dsn, query)
        with pytest.raises(DataSourceError):
            source.fetch()
        with pytest.raises(DataSourceError):
            probed_and_sampled(source, 1)


def test_sqlite_only_reads_its_own_file(make: Any, tmp_path: Path) -> None:
    """The authorizer denies other files, settings and functions with access to the outside."""
    source, other = tmp_path / "a.db", tmp_path / "other.db"
    with sqlite3.connect(source) as connection:
        connection.execute("CREATE TABLE svc_ratings (user_id INTEGER, item_id TEXT)")
        connection.execute("CREATE VIRTUAL TABLE notes USING fts5(text)")
        connection.execute("INSERT INTO notes VALUES ('read me')")
    connection.close()
    before = source.read_bytes()
    refused(
        make,
        f"sqlite:///{source}",
        [
            f"ATTACH '{other}' AS other",
            f"VACUUM INTO '{other}'",
            "VACUUM",
            "PRAGMA query_only = OFF",
            "PRAGMA writable_schema = ON",
            "SELECT * FROM pragma_database_list",
            "CREATE TEMP TABLE t (a)",
            "CREATE VIEW v AS SELECT 1",
            "INSERT INTO svc_ratings VALUES (1, 'a')",
            "REPLACE INTO svc_ratings VALUES (1, 'a')",
            "UPDATE svc_ratings SET user_id = 1",
            "DELETE FROM svc_ratings RETURNING user_id",
            "REINDEX",
            "ANALYZE",
            "SAVEPOINT a",
            "SELECT load_extension('x')",
            f"SELECT writefile('{other}', 'x')",
            "SELECT fts3_tokenizer('simple')",
            "UPDATE sqlite_master SET sql = 'CREATE TABLE svc_ratings (a)'",
            "DELETE FROM sqlite_master",
        ],
    )
    assert not other.exists()
    assert source.read_bytes() == before
    for query in ("SELECT value AS v FROM json_each('[1]')", "SELECT * FROM notes WHERE notes MATCH 'read'"):
        assert len(sql(make, f"sqlite:///{source}", query).fetch()) == 1


@pytest.mark.integration
@pytest.mark.parametrize("form", ["%s", "%s;", "\n%s -- )", "/* ) */ %s", "SELECT 1) AS a; %s -- ", "SELECT 1; %s"])
def test_mariadb_runs_only_one_select(make: Any, form: str) -> None:
    """An account with the rights to write files and to change settings can do neither, in any form of a query."""
    import sqlalchemy

    url = server_url("mysql")
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        folder = str(connection.exec_driver_sql("SELECT @@global.secure_file_priv").scalar() or "/tmp").rstrip("/")
        before = connection.exec_driver_sql("SELECT @@global.long_query_time, @@global.sql_mode").fetchall()
        name = f"{folder}/svc-{secrets.token_hex(8)}"
        refused(
            make,
            url,
            [
                form % statement.replace("FILE", f"'{name}'")
                for statement in (
                    "SELECT 1 INTO OUTFILE FILE",
                    "SELECT 1 INTO DUMPFILE FILE",
                    "SELECT 1 AS a UNION SELECT 2 INTO OUTFILE FILE",
                    "(SELECT 1 INTO OUTFILE FILE)",
                    "SELECT 1 INTO OUTFILE FILE FROM (SELECT 1",
                    "SELECT 1) UNION SELECT 2 INTO OUTFILE FILE FROM (SELECT 1",
                    "SELECT 1) AS a INTO OUTFILE FILE -- ",
                    "SELECT 1 /*! INTO OUTFILE FILE */",
                    "SELECT 1 /*M! INTO OUTFILE FILE */",
                    "SELECT 1 INTO @a",
                    "SET GLOBAL long_query_time = 77",
                    "SET GLOBAL sql_mode = ''",
                    "SET @a = 1",
                    "FLUSH TABLES",
                    "SHOW PROCESSLIST",
                    "CALL sys.diagnostics()",
                    "DO SLEEP(0)",
                    "KILL 0",
                    "INSERT INTO svc_ratings SELECT 1, 'a', 1, 1",
                    "DELETE FROM svc_ratings RETURNING user_id",
                    "LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE svc_ratings",
                )
            ],
        )
        assert connection.exec_driver_sql("SELECT @@global.long_query_time, @@global.sql_mode").fetchall() == before
        assert connection.exec_driver_sql(f"SELECT LOAD_FILE('{name}')").scalar() is None
    engine.dispose()


@pytest.mark.integration
@pytest.mark.parametrize("form", ["%s", "SELECT 1; %s", "SELECT 1; COMMIT; %s", "COMMIT; BEGIN READ WRITE; %s"])
def test_postgres_runs_only_one_read_only_statement(make: Any, form: str, tmp_path: Path) -> None:
    """The query is the only statement of a cursor in a read-only transaction, for any account."""
    import sqlalchemy

    url, table = server_url("postgres"), f"svc_{secrets.token_hex(8)}"
    refused(
        make,
        url,
        [
            form % statement.replace("NAME", table)
            for statement in (
                "CREATE TABLE NAME (a int)",
                "SELECT 1 AS a INTO NAME",
                "SET default_transaction_read_only = off",
                "SET TRANSACTION READ WRITE",
                "SELECT set_config('transaction_read_only', 'off', true)",
                f"COPY (SELECT 1) TO '{tmp_path}/copy'",
                "COPY (SELECT 1) TO PROGRAM 'true'",
                "ALTER SYSTEM SET work_mem = '5MB'",
                "VACUUM",
            )
        ],
    )
    engine = sqlalchemy.create_engine(url)
    assert not sqlalchemy.inspect(engine).has_table(table)
    engine.dispose()


@pytest.mark.parametrize(
    "dsn",
    [
        "{}://u:hun@ter2@h/d",
        "{}://u:hun@ter2@h:1/d",
        "{}://u:hun@ter2/x@h/d",
        "{}://u:@hunter2@h/d",
        "{}://u:hunter2@@h/d",
        "{}://u@server:hun@ter2@h/d",
        "{}://u:a@hunter2?x@h/d",
        "{}://u:a@hunter2?x=y@h/d",
        "{}://u:a@hunter2:x@h/d",
        "{}://u:p@h/d?option=hunter2@x",
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql", "mariadb+pymysql", "mysql"])
def test_a_password_with_an_unescaped_at_is_refused(make: Any, scheme: str, dsn: str) -> None:
    """Otherwise the rest of the password would be shown as the host. The message has the escape `%40`."""
    with pytest.raises(ConfigError, match=DSN) as caught:
        sql(make, dsn.format(scheme), "SELECT 1").fetch()
    assert not any(part in caught.value.message for part in ("hun", "ter2", "hunter2"))


@pytest.mark.parametrize(
    "dsn", ["{}://u:p%40ss@127.0.0.1:1/d", "{}://u@127.0.0.1:1/d", "{}://u@server:pw@127.0.0.1:1/d"]
)
@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mariadb+pymysql"])
@pytest.mark.integration
def test_an_escaped_at_and_one_in_the_user_name_are_accepted(make: Any, scheme: str, dsn: str) -> None:
    """The connection goes to the right host, which refuses it here."""
    with pytest.raises(DataSourceError, match=r"127\.0\.0\.1"):
        sql(make, dsn.format(scheme), "SELECT 1", connect_timeout_seconds=2).fetch()


def test_a_probe_names_the_columns(make: Any, dsn: str) -> None:
    """The probe also reports whether the session is read-only. A missing column is an error."""
    checks, _ = probed_and_sampled(sql(make, dsn, "SELECT * FROM svc_ratings", columns=("user_id", "ts")), 1)
    assert any("read-only" in line for line in checks)
    assert any("user_id, ts" in line for line in checks)
    with pytest.raises(DataSourceError, match="has no column absent; it has user_id, item_id, price, ts"):
        probed_and_sampled(sql(make, dsn, "SELECT * FROM svc_ratings LIMIT 0", columns=("absent",)), 1)


def test_rows_above_the_cap_are_refused(make: Any, dsn: str) -> None:
    """Exactly as many rows as the cap are read."""
    query = "SELECT * FROM svc_ratings"
    assert len(sql(make, dsn, query, settings=Settings(max_sql_rows=3)).fetch()) == 3
    with pytest.raises(SourceTooLarge, match="SVC_MAX_SQL_ROWS"):
        sql(make, dsn, query, settings=Settings(max_sql_rows=2)).fetch()


@pytest.mark.integration
def test_an_interrupt_does_not_wait_for_the_remaining_rows(make: Any) -> None:
    """The driver PyMySQL reads all rows before it closes."""

    def leave(_: int) -> None:
        raise KeyboardInterrupt

    endless = "SELECT a.seq AS user_id FROM seq_1_to_100000 a, seq_1_to_100000 b"
    source = sql(make, server_url("mysql"), endless, progress=lambda n: n and leave(n))
    with pytest.raises(KeyboardInterrupt):
        source.fetch()


def test_long_statements_time_out(make: Any, dsn: str) -> None:
    """The server ends a statement after the timeout. In SQLite, which has no server, svc ends it."""
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) AS n FROM c"
    waits = {"p": "SELECT pg_sleep(60)", "s": endless, "m": "SELECT sleep(60)"}[dsn[0]]
    with pytest.raises(DataSourceError, match=r"(?i)timeout|interrupted|max_statement_time"):
        sql(make, dsn, waits, statement_timeout_seconds=1).fetch()


def test_an_invalid_query_shows_the_servers_message(make: Any, dsn: str) -> None:
    """The message names the missing table."""
    with pytest.raises(DataSourceError, match="svc_absent"):
        sql(make, dsn, "SELECT * FROM svc_absent").fetch()


@pytest.mark.integration
@pytest.mark.parametrize("secret", ["hunter2", "hun%ter2"])
def test_no_part_of_a_password_is_shown(make: Any, secret: str) -> None:
    """A server message may repeat the password, in clear or encoded, at the place at which the message is cut."""
    import sqlalchemy

    url = sqlalchemy.make_url(server_url("postgres")).set(password=secret)
    dsn, shown = url.render_as_string(hide_password=False), secret.replace("%", "%25")
    for padding in range(350, 362):
        with pytest.raises(DataSourceError) as caught:
            sql(make, dsn, f"SELECT '{'x' * padding}{shown}'::int AS n").fetch()
        assert "hun" not in caught.value.message


def test_sqlite_files_are_not_created(make: Any, tmp_path: Path) -> None:
    """A misspelt path is an error, not an empty database."""
    with pytest.raises(DataSourceError, match="unable to open"):
        sql(make, f"sqlite:///{tmp_path}/none.db", "SELECT 1").fetch()
    assert not (tmp_path / "none.db").exists()


def test_floating_point_ids_are_refused(make: Any, tmp_path: Path) -> None:
    """A query with ids of floats is refused, as in other sources."""
    sqlite3.connect(tmp_path / "a.db").close()
    with pytest.raises(DataSourceError, match="floating point"):
        sql(make, f"sqlite:///{tmp_path}/a.db", "SELECT 1.0 AS user_id").fetch()


@pytest.mark.parametrize("url", ["oracle://u:hunter2@h/d", "hunter2", "://hunter2"])
def test_invalid_urls_are_refused(make: Any, url: str) -> None:
    """The error names the variable, never its value."""
    with pytest.raises(ConfigError, match=DSN) as caught:
        sql(make, url, "SELECT 1").fetch()
    assert "hunter2" not in caught.value.message


def test_an_unset_variable_is_named(make: Any) -> None:
    """The error names the variable that needs the URL."""
    with pytest.raises(RecipeError, match="SVC_RECIPE_DSN is not set"):
        make("sql", dsn_env=DSN, query="SELECT 1").fetch()


def _accept_and_close(server: socket.socket) -> None:
    server.accept()[0].close()


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mariadb+pymysql"])
@pytest.mark.parametrize("fault", ["refused", "hung", "cut"])
@pytest.mark.integration
def test_failing_servers_end_in_bounded_time(make: Any, driver: str, fault: str) -> None:
    """A closed port, silence and a closed connection are errors without the password."""
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


def probed_and_sampled(source: Any, n_rows: int) -> tuple[list[str], Any]:
    """Return the lines that the generator yields, and the rows that it returns."""
    lines = []
    generator = source.probe_and_sample(n_rows)
    while True:
        try:
            lines.append(next(generator))
        except StopIteration as end:
            return lines, end.value


def test_a_sample_has_the_first_rows_of_fetch(make: Any, dsn: str) -> None:
    """A sample follows the query's order, with or without a LIMIT, and its session is read-only."""
    for query in ("SELECT * FROM svc_ratings ORDER BY item_id", "SELECT * FROM svc_ratings ORDER BY item_id LIMIT 3"):
        source = sql(make, dsn, query)
        whole = source.fetch()
        for n in (1, 2, 3, 1000):
            _, rows = probed_and_sampled(source, n)
            assert rows.astype(str).equals(whole.head(n).astype(str)), n
    with pytest.raises(DataSourceError):
        probed_and_sampled(sql(make, dsn, "DELETE FROM svc_ratings"), 1)
    assert len(sql(make, dsn, "SELECT * FROM svc_ratings").fetch()) == 3


def test_a_sample_reads_only_its_rows(make: Any, dsn: str) -> None:
    """The query has 10 billion rows. The cap on rows does not apply to samples."""
    counted = (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 500) SELECT a.x AS user_id FROM "
    )
    query = f"{counted}c a, c b, c d, c e LIMIT 10000000000"
    source = sql(make, dsn, query, settings=Settings(max_sql_rows=10), statement_timeout_seconds=20)
    assert len(probed_and_sampled(source, 1000)[1]) == 1000
    generator = source.probe_and_sample(1000)
    assert next(generator).startswith("database: reached")
    generator.close()  # nobody wants the rest: it ends as quickly


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_the_watchdog_ends_a_silent_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    """The driver sees the end in `recv`, and keeps its own descriptor."""
    own, peer = pair
    watchdog = Watchdog(0.05)
    with own, peer:
        watchdog.over(own.fileno())
        assert own.recv(1) == b""
        watchdog.stop()
        assert watchdog.ended_it
        assert own.fileno() >= 0


def test_a_stopped_watchdog_ends_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    """The connection stays usable. A watchdog without a connection can be stopped too."""
    own, peer = pair
    watchdog = Watchdog(30.0)
    with own, peer:
        watchdog.over(own.fileno())
        watchdog.reset()
        watchdog.stop()
        assert not watchdog.ended_it
        peer.send(b"x")
        assert own.recv(1) == b"x"
    Watchdog(0.0).stop()
