"""Rows of a SQL query on PostgreSQL, MySQL/MariaDB or SQLite.

The driver hands over rows in chunks. The result is held in memory whole, with at most SVC_MAX_SQL_ROWS rows.

The session is read-only. How well the database enforces this depends on the rights of the account (docs/howto/data.md).
The database URL comes only from an environment variable, and messages of drivers are redacted.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from os import dup
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from svc import install_command
from svc.errors import ConfigError, DataSourceError, RecipeError, SvcError
from svc.late_imports import LateModule
from svc.recipe.source_options import SqlOptions
from svc.sources.arrow import table_of_rows
from svc.sources.sql_dialects import GRACE_S, Dialect, dialect_of
from svc.sources.table import QUERY_RESULT, SampledQuerySource, choose_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy
    from sqlalchemy import URL, Connection, CursorResult, Engine
else:
    sqlalchemy = LateModule("sqlalchemy")

_PADDED = 1042
"""The type of CHAR(n) in a result of PostgreSQL, which pads such texts with blanks. MySQL and SQLite return them
without padding, and have no type of this number."""


class Watchdog:
    """A thread that shuts down a socket if `reset` is not called for `limit_s` seconds. Then `ended_it` is True.

    The driver, which waits in another thread, sees a lost connection.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.ended_it = False
        self._activity = Event()
        self._stopped = False
        self._thread: Thread | None = None

    def over(self, descriptor: int) -> None:
        """Start to watch a connected socket by its file descriptor. The caller still closes the descriptor."""
        # A descriptor of its own: the driver may close its own, and the number may then belong to another file.
        self._thread = Thread(target=self._watch, args=(socket.socket(fileno=dup(descriptor)),), daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Restart the time limit, because rows arrived."""
        self._activity.set()

    def stop(self) -> None:
        """Stop watching without shutting down the socket."""
        self._stopped = True
        # Wakes the thread, which waits for up to `limit_s`.
        self._activity.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, connection: socket.socket) -> None:
        with connection:
            while self._activity.wait(self.limit_s):
                if self._stopped:
                    return
                self._activity.clear()
            self.ended_it = True
            with suppress(OSError):
                # Closing would not wake a thread that waits in `recv`.
                connection.shutdown(socket.SHUT_RDWR)


class SqlSource(SampledQuerySource[SqlOptions]):
    """A source that runs one query on one database."""

    type_name: ClassVar[str] = "sql"
    Config: ClassVar[type[SqlOptions]] = SqlOptions

    @contextmanager
    def _answer(self, most_rows: int) -> Iterator[tuple[list[str], Iterator[pa.Table]]]:
        """Raises RecipeError without a database URL, and ConfigError for a URL that cannot be used."""
        with (
            self._session() as (connection, dialect, watchdog),
            self._execute(connection, dialect, most_rows) as result,
        ):
            try:
                names = list(
                    dict.fromkeys(result.keys())
                )  # `SELECT a.*, b.*` may name a column twice: the first counts
                columns = choose_columns(self._context, names, QUERY_RESULT)
                reached = f"database: reached, {dialect.shown}, session is read-only"
                lines = [reached, f"query: runs, has the columns {', '.join(columns)}"]
                yield lines, self._batches(result, columns, min(most_rows, self._batch_rows), watchdog)
            finally:
                dialect.abandon(connection, result)

    def _batches(
        self, result: CursorResult[Any], columns: list[str], n_rows: int, watchdog: Watchdog
    ) -> Iterator[pa.Table]:
        positions = {name: list(result.keys()).index(name) for name in columns}
        padded = frozenset(i for i, column in enumerate(result.cursor.description) if column[1] == _PADDED)
        # The empty batch gives a result without rows its columns.
        for rows in chain([[]], result.partitions(n_rows)):
            watchdog.reset()
            yield table_of_rows(rows, positions, self._context.text_columns, padded)

    def _execute(self, connection: Connection, dialect: Dialect, max_rows: int) -> CursorResult[Any]:
        query, parameters = sqlalchemy.text(self._config.query), dict(self._config.query_parameters)
        for name in sorted(query.compile().params.keys() - parameters.keys()):
            raise DataSourceError(
                f"query: query_parameters has no {name!r} for `:{name}`; write `\\:` for a plain colon"
            )
        dialect.bound(connection, self._config.statement_timeout_seconds, max_rows)
        dialect.require_reading(connection, query, parameters)
        streaming = connection.execution_options(stream_results=True, max_row_buffer=self._batch_rows)
        return streaming.execute(query, parameters)

    def _url(self) -> URL:
        name = self._config.dsn_env
        dsn = self._context.variables.get(name)
        if not dsn:
            raise RecipeError(f"dsn_env: {name} is not set; export it with the SQLAlchemy URL of the database")
        try:
            url = sqlalchemy.make_url(dsn)
        except Exception:
            # `from None`, because the cause may repeat a part of the URL, such as a password after the host's colon.
            raise ConfigError(f"{name} is not an SQLAlchemy URL such as postgresql+psycopg://host/database") from None
        if url.get_backend_name() != "sqlite" and _has_loose_at(dsn):
            raise ConfigError(
                f"{name}: more than one `@`, so the host cannot be told from the password: write %40 for an `@` in it"
            )
        return url

    @contextmanager
    def _session(self) -> Iterator[tuple[Connection, Dialect, Watchdog]]:
        """Yield a new connection and close it after the block.

        A missing driver becomes a ConfigError, and every other foreign exception a DataSourceError without secrets.
        """
        url = self._url()
        dialect = dialect_of(url, self._config.dsn_env)
        watchdog = Watchdog(self._config.statement_timeout_seconds + GRACE_S)
        try:
            with self._engine(dialect, watchdog).connect() as connection:
                yield connection, dialect, watchdog
        except SvcError:
            raise
        except ImportError:
            raise ConfigError(f"{dialect.name} needs an extra: {install_command(dialect.extra)}") from None
        except Exception as error:
            if watchdog.ended_it:
                raise DataSourceError(f"{dialect.shown}: sent nothing for {watchdog.limit_s} s") from None
            raise DataSourceError(f"{dialect.shown}: {_without_secrets(error, url)}") from None
        finally:
            watchdog.stop()

    def _engine(self, dialect: Dialect, watchdog: Watchdog) -> Engine:
        arguments = dialect.connect_arguments(self._config.connect_timeout_seconds)
        # A pool would keep the connection after the block, and messages would repeat values of parameters.
        engine = sqlalchemy.create_engine(
            dialect.url, poolclass=sqlalchemy.NullPool, connect_args=arguments, hide_parameters=True
        )
        if dialect.name == "postgresql":  # libpq, unlike PyMySQL, has no read timeout after connecting
            # `insert` puts the watchdog before SQLAlchemy's own listener, which sends the first queries.
            sqlalchemy.event.listen(engine, "connect", lambda raw, _: watchdog.over(raw.fileno()), insert=True)
        return engine


def _has_loose_at(dsn: str) -> bool:
    """Return whether the URL has more than one unescaped `@`.

    SQLAlchemy ends the password at the first `@`, so messages would show the rest of the password as the host.
    """
    return dsn.partition("://")[2].partition(":")[2].count("@") > 1


def _without_secrets(error: Exception, url: URL) -> str:
    """Return the driver's message on one line, without the password and the values in the URL's query."""
    cause = getattr(error, "orig", None) or error
    words = " ".join(str(cause).split()) or type(cause).__name__
    # Before the message is cut, because a cut secret would not be found.
    secrets = [str(url.password or ""), *(str(value) for value in url.query.values())]
    for secret in filter(None, secrets):
        for form in (secret, quote(secret, safe="")):
            words = words.replace(form, "[REDACTED]")
    return f"{type(cause).__name__}: {words[:400]}"
