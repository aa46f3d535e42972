"""Differences between databases: drivers, bounds of sessions, and addresses in messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url, text

from svc.errors import ConfigError, DataSourceError
from svc.sources.sql_dialects import dialect_of


@pytest.mark.parametrize(
    ("url", "name", "driver", "shown"),
    [
        ("postgresql://me:secret@db/shop", "postgresql", "postgresql+psycopg", "postgresql db/shop"),
        ("postgresql+asyncpg://me:secret@db/shop", "postgresql", "postgresql+psycopg", "postgresql db/shop"),
        ("mysql://me:secret@db/shop", "mysql", "mysql+pymysql", "mysql db/shop"),
        ("mariadb+mysqldb://me:secret@/shop", "mysql", "mariadb+pymysql", "mariadb local socket/shop"),
    ],
)
def test_the_driver_is_svcs_own(url: str, name: str, driver: str, shown: str) -> None:
    """A driver in the URL is replaced by the one that svc uses. Messages show neither user nor password."""
    dialect = dialect_of(make_url(url), "SVC_RECIPE_DSN")
    assert (dialect.name, dialect.url.drivername, dialect.shown) == (name, driver, shown)
    assert dialect.connect_arguments(7)["connect_timeout"] == 7


@pytest.mark.parametrize(
    ("url", "database", "query"),
    [
        ("sqlite://", None, {}),
        ("sqlite:///file:a.db?uri=true", "file:a.db", {"uri": "true"}),
        ("sqlite:///a b#1.db", "file:a%20b%231.db", {"mode": "ro", "uri": "true"}),
        ("sqlite:////tmp/a.db?x=1", "file:/tmp/a.db", {"mode": "ro", "uri": "true", "x": "1"}),
    ],
)
def test_the_path_of_a_sqlite_file_is_opened_read_only(url: str, database: str | None, query: dict[str, str]) -> None:
    """A database in memory and a `file:` URI are opened as they are."""
    dialect = dialect_of(make_url(url), "SVC_RECIPE_DSN")
    assert (dialect.url.database, dict(dialect.url.query)) == (database, query)
    assert (dialect.name, dialect.shown) == ("sqlite", f"sqlite {make_url(url).database or ''}")


def test_an_unsupported_database_is_refused() -> None:
    """The error names the variable, not its value."""
    with pytest.raises(ConfigError, match="SVC_RECIPE_DSN: 'oracle' is not a database that svc reads"):
        dialect_of(make_url("oracle://me:secret@db"), "SVC_RECIPE_DSN")


class RefusingCursor:
    """A cursor of a server that cannot parse what stands in parentheses."""

    def __enter__(self) -> RefusingCursor:
        return self

    def __exit__(self, *_: object) -> None: ...

    def mogrify(self, query: str, _: object) -> str:
        return query

    def execute(self, _: str, arguments: tuple[str]) -> None:
        if arguments[0].startswith("SELECT EXISTS ("):
            raise ValueError(1064, "near 'INTO @a'")


def test_a_query_that_mysql_does_not_accept_as_one_select_is_refused() -> None:
    """The message says what is run, and has the server's error number but not its text, which repeats the query."""
    dialect = dialect_of(make_url("mysql://me:secret@db/shop"), "SVC_RECIPE_DSN")
    raw = SimpleNamespace(cursor=RefusingCursor, Error=ValueError)
    connection: Any = SimpleNamespace(
        connection=SimpleNamespace(dbapi_connection=raw), dialect=dialect.url.get_dialect()()
    )
    with pytest.raises(DataSourceError) as caught:
        dialect.require_reading(connection, text("SELECT 1 INTO @a"), {})
    assert caught.value.message == (
        "mysql db/shop: svc runs only one SELECT without INTO, and the server does not accept the query as one "
        "(error 1064); SET, CALL and SHOW are not run either"
    )


@pytest.mark.parametrize(
    ("url", "encrypted", "warned"),
    [
        ("postgresql://me:secret@db/shop", False, True),
        ("postgresql://me:secret@db/shop", True, False),
        ("postgresql://me:secret@127.0.0.1/shop", False, False),
        ("mysql://me:secret@db/shop", False, True),
        ("mysql://me:secret@localhost/shop", False, False),
        ("mysql://me:secret@/shop", False, False),
    ],
)
def test_an_unencrypted_connection_to_another_machine_is_logged(
    url: str, encrypted: bool, warned: bool, records: list[dict[str, Any]]
) -> None:
    """Others on the network could read the rows and the password."""
    raw = SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=encrypted), _sock=object())
    dialect_of(make_url(url), "SVC_RECIPE_DSN").warn_of_plain(raw)
    plain = [record["database"] for record in records if record["event"] == "database_not_encrypted"]
    assert plain == ([f"{url.partition(':')[0]} db/shop"] if warned else [])
