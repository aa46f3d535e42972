"""Differences between databases: read-only sessions, timeouts and connect arguments."""

from __future__ import annotations

import sqlite3
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svc import events, logs
from svc.errors import ConfigError, DataSourceError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, CursorResult, TextClause

_SQLITE_STEPS = 100_000
_READING = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_TRANSACTION,  # the driver ends its session with this action
    }
)
_OF_VIRTUAL_TABLES = frozenset(
    {
        # SQLite requests these to open virtual tables such as json_each. Writing would need PRAGMA writable_schema.
        *(
            (sqlite3.SQLITE_UPDATE, "sqlite_master", column)
            for column in ("type", "name", "tbl_name", "rootpage", "sql")
        ),
        (sqlite3.SQLITE_PRAGMA, "data_version", None),  # requested by full-text search
    }
)
_OUTWARD_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})
GRACE_S = 10
"""Seconds that the client waits longer than the server's timeout, so that the server can report the reason."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A database to read from, and how svc connects to its kind.

    `name` is postgresql, sqlite, or mysql, which includes MariaDB. `url` includes the driver's name. `extra` is svc's
    optional extra that installs the driver, or "" if none is needed. `shown` is the address without secrets, for
    messages.
    """

    name: str
    extra: str
    url: URL
    shown: str

    def connect_arguments(self, connect_timeout_s: int) -> dict[str, Any]:
        """Return the arguments of the driver's connect function.

        On PostgreSQL, keepalives detect a lost peer within about a minute.
        """
        if self.name == "postgresql":
            keepalives = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
            return {"connect_timeout": connect_timeout_s, **keepalives}
        if self.name == "sqlite":
            return {"timeout": connect_timeout_s}
        # With local_infile a hostile server could ask for any file that svc may read.
        return {"connect_timeout": connect_timeout_s, "read_timeout": connect_timeout_s, "local_infile": False}

    def bound(self, connection: Connection, timeout_s: int, max_rows: int) -> None:
        """Make the session refuse writes and end statements after `timeout_s` seconds.

        On MySQL and MariaDB a result also ends after `max_rows` rows. Logs an event if the connection is not encrypted.
        """
        is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
        for statement in self._bounds(timeout_s, max_rows, is_mariadb=is_mariadb):
            connection.exec_driver_sql(statement)
        raw: Any = connection.connection.dbapi_connection
        self.warn_of_plain(raw)
        if self.name == "mysql":
            # PyMySQL uses one read timeout for the greeting and for rows, and accepts it only at connect.
            raw._read_timeout = timeout_s + GRACE_S
        if self.name == "sqlite":
            deadline = time.monotonic() + timeout_s
            # SQLite has no timeout for statements. 100,000 steps take about 2 ms.
            raw.set_progress_handler(lambda: int(time.monotonic() > deadline), _SQLITE_STEPS)
            raw.set_authorizer(_reads_only)

    def warn_of_plain(self, raw: Any) -> None:
        """Log an event if the driver's connection `raw` goes to another machine without TLS."""
        host = self.url.host or ""
        if self.name == "sqlite" or host in ("", "localhost", "::1") or host.startswith(("/", "127.")):
            return
        encrypted = raw.pgconn.ssl_in_use if self.name == "postgresql" else isinstance(raw._sock, ssl.SSLSocket)
        if not encrypted:
            logs.emit(events.DATABASE_NOT_ENCRYPTED, database=self.shown)

    def require_reading(self, connection: Connection, query: TextClause, parameters: Mapping[str, Any]) -> None:
        """Raise DataSourceError for a query that MySQL or MariaDB does not parse as one SELECT without INTO.

        Their read-only transactions still permit writing files and changing global settings. The server prepares the
        query twice without running it. The first time the query stands alone, so its own parentheses must match. The
        second time it stands in added parentheses, where the grammar permits only a SELECT. The query then runs without
        the added parentheses, because a derived table would lose the order of its rows.
        """
        if self.name != "mysql":
            return
        raw: Any = connection.connection.dbapi_connection
        with raw.cursor() as cursor:
            compiled = query.bindparams(**parameters).compile(dialect=connection.dialect)
            sent = cursor.mogrify(str(compiled), compiled.construct_params())
            cursor.execute("PREPARE svc_query FROM %s", (sent,))
            try:
                # In lines of their own, because the query may end in a comment.
                cursor.execute("PREPARE svc_query FROM %s", (f"SELECT EXISTS (\n{sent.rstrip().removesuffix(';')}\n)",))
            except raw.Error as error:
                raise DataSourceError(
                    f"{self.shown}: svc runs only one SELECT without INTO, and the server does not accept the query as "
                    f"one (error {error.args[0] if error.args else 'without a number'}); SET, CALL and SHOW are not "
                    "run either"
                ) from None
            cursor.execute("DEALLOCATE PREPARE svc_query")

    def abandon(self, connection: Connection, result: CursorResult[Any]) -> None:
        """Drop the connection to MySQL or MariaDB without reading further rows. Do nothing for other databases.

        PyMySQL would read all rows before it closes.
        """
        if self.name == "mysql":
            rows: Any = getattr(result.cursor, "_result", None)
            if rows is not None:
                # PyMySQL reads on while this is true. Nothing of the connection is used again.
                rows.unbuffered_active = False
            connection.invalidate()

    def _bounds(self, timeout_s: int, max_rows: int, *, is_mariadb: bool) -> tuple[str, ...]:
        if self.name == "postgresql":
            # The first concerns later transactions, the second the one that SQLAlchemy has begun.
            read_only = ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET TRANSACTION READ ONLY")
            return (*read_only, f"SET statement_timeout = {timeout_s * 1000}")
        if self.name == "sqlite":
            return ("PRAGMA query_only = ON",)
        # MariaDB counts seconds, MySQL milliseconds.
        limit = f"max_statement_time = {timeout_s}" if is_mariadb else f"max_execution_time = {timeout_s * 1000}"
        session = (f"SET SESSION {limit}", f"SET SESSION sql_select_limit = {max_rows}")
        return (*session, "SET SESSION TRANSACTION READ ONLY", "START TRANSACTION READ ONLY")


def _reads_only(action: int, name: str | None, detail: str | None, *_place: str | None) -> int:
    """Deny all actions but reading. SQLite calls this authorizer when it compiles a statement.

    So ATTACH, PRAGMA and VACUUM INTO fail. `PRAGMA query_only` alone would permit ATTACH, which creates files.
    """
    if action == sqlite3.SQLITE_FUNCTION:
        granted = (detail or "").lower() not in _OUTWARD_FUNCTIONS
    else:
        granted = action in _READING or (action, name, detail) in _OF_VIRTUAL_TABLES
    return sqlite3.SQLITE_OK if granted else sqlite3.SQLITE_DENY


def dialect_of(url: URL, variable: str) -> Dialect:
    """Return the dialect of `url`. Raises ConfigError, which names `variable`, for an unsupported database."""
    backend = url.get_backend_name()
    where = url.host or "local socket"
    database = url.database or ""
    if backend == "sqlite":
        return Dialect("sqlite", "", _read_only_file(url), f"sqlite {database}")
    if backend in ("postgresql", "postgres"):
        return Dialect(
            "postgresql", "postgres", url.set(drivername="postgresql+psycopg"), f"postgresql {where}/{database}"
        )
    if backend in ("mysql", "mariadb"):
        return Dialect("mysql", "mysql", url.set(drivername=f"{backend}+pymysql"), f"{backend} {where}/{database}")
    raise ConfigError(
        f"{variable}: {backend!r} is not a database that svc reads; use postgresql, mysql, mariadb or sqlite"
    )


def _read_only_file(url: URL) -> URL:
    """Return the URL that opens the SQLite file read-only, so that SQLite does not create a missing file.

    A URL without a database, which SQLite opens in memory, and one with a `file:` URI are returned unchanged.
    """
    if not url.database or url.database.startswith("file:"):
        return url
    return url.set(database=f"file:{quote(url.database)}", query={**url.query, "mode": "ro", "uri": "true"})
