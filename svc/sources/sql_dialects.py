"""What differs between databases: read-only sessions, timeouts, and how a driver is asked to connect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svc.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, CursorResult

_SQLITE_STEPS = 100_000
GRACE_S = 10
"""How much later than the server, which says why, the client itself ends a long statement."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of database. `url` has the driver that svc uses; `extra` brings it; `shown` may stand in messages."""

    name: str
    extra: str
    url: URL
    shown: str

    def connect_arguments(self, connect_timeout_s: int) -> dict[str, Any]:
        """Arguments of the driver's connect. A peer that vanishes is noticed within about a minute."""
        if self.name == "postgresql":
            keepalives = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
            return {"connect_timeout": connect_timeout_s, **keepalives}
        if self.name == "sqlite":
            return {"timeout": connect_timeout_s}
        return {"connect_timeout": connect_timeout_s, "read_timeout": connect_timeout_s, "local_infile": False}

    def bound(self, connection: Connection, timeout_s: int, max_rows: int) -> None:
        """Make the session refuse writes and long statements, and where the server can, more rows than `max_rows`."""
        is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
        for statement in self._bounds(timeout_s, max_rows, is_mariadb=is_mariadb):
            connection.exec_driver_sql(statement)
        raw: Any = connection.connection.dbapi_connection
        if self.name == "mysql":
            # PyMySQL waits for the greeting as long as for rows, and takes the limit at connect only.
            raw._read_timeout = timeout_s + GRACE_S
        if self.name == "sqlite":
            deadline = time.monotonic() + timeout_s
            raw.set_progress_handler(lambda: int(time.monotonic() > deadline), _SQLITE_STEPS)

    @contextmanager
    def abandoning(self, connection: Connection, result: CursorResult[Any]) -> Iterator[None]:
        """When the block fails, give up on the rows that are still to come; PyMySQL would read them all first."""
        try:
            yield
        except BaseException:
            if self.name == "mysql":
                rows: Any = getattr(result.cursor, "_result", None)
                if rows is not None:
                    rows.unbuffered_active = False
                connection.invalidate()
            raise

    def _bounds(self, timeout_s: int, max_rows: int, *, is_mariadb: bool) -> tuple[str, ...]:
        if self.name == "postgresql":
            read_only = ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET TRANSACTION READ ONLY")
            return (*read_only, f"SET statement_timeout = {timeout_s * 1000}")
        if self.name == "sqlite":
            return ("PRAGMA query_only = ON",)
        limit = f"max_statement_time = {timeout_s}" if is_mariadb else f"max_execution_time = {timeout_s * 1000}"
        session = (f"SET SESSION {limit}", f"SET SESSION sql_select_limit = {max_rows}")
        return (*session, "SET SESSION TRANSACTION READ ONLY", "START TRANSACTION READ ONLY")


def dialect_of(url: URL, variable: str) -> Dialect:
    """The dialect of `url`; `variable` names where it came from. Raises ConfigError for one that svc does not read."""
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
        f"{variable}: {backend!r} is no database that svc reads; use postgresql, mysql, mariadb or sqlite"
    )


def _read_only_file(url: URL) -> URL:
    """SQLite creates missing files unless it is told to open them for reading."""
    if not url.database or url.database.startswith("file:"):
        return url
    return url.set(database=f"file:{quote(url.database)}", query={**url.query, "mode": "ro", "uri": "true"})
