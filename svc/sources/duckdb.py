"""Rows of a query run by DuckDB in this process, over files and over a database of DuckDB.

The query must be one SELECT, as DuckDB's own parser says. No extension is installed, and those that reach the network
are not loaded, so a query reads local files only.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from svc import install_command
from svc.cores import usable_cores
from svc.errors import ConfigError, DataSourceError, SvcError
from svc.late_imports import LateModule, import_late
from svc.recipe.source_options import DuckdbOptions
from svc.sources import arrow
from svc.sources.table import Finish, Table, TableBuilder, TableSource, choose_columns, require_query_rows

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa


duckdb = LateModule("duckdb")

_BATCH_ROWS = 50_000
_BOUNDED_BATCH_ROWS = 1000
_MEMORY = "50%"
_EXTENSIONS = ("excel", "sqlite_scanner")
"""Extensions for local files that are loaded if the operator has installed them."""
_LITERAL = re.compile(r"'([^'\n]{1,1000})'|\"([^\"\n]{1,1000})\"")
_RESULT = "the query's result"


class DuckdbSource(TableSource[DuckdbOptions]):
    """A source that runs one SELECT. Relative paths in the query start at the recipe's folder."""

    type_name: ClassVar[str] = "duckdb"
    Config: ClassVar[type[DuckdbOptions]] = DuckdbOptions

    def _whole(self, finish: Finish[Table]) -> Table:
        cap = self._context.settings.max_sql_rows
        with self._result() as (batches, columns):
            builder = self._builder(batches, columns)
            for batch in batches:
                builder.add(batch.select(columns))
                require_query_rows(builder.n_rows, cap)
            return finish(builder)

    def probe_and_sample(self, n_rows: int) -> Generator[str, None, pandas.DataFrame]:
        """Start the query, yield a line per check, then return its first rows. Later rows are not read."""
        with self._result() as (batches, columns):
            yield f"query: runs, has the columns {', '.join(columns)}"
            builder = self._builder(batches, columns)
            builder.add_first((batch.select(columns) for batch in batches), n_rows)
            return builder.finish()

    def _builder(self, batches: pa.RecordBatchReader, columns: list[str]) -> TableBuilder:
        builder = TableBuilder(self._context, _RESULT)
        builder.add(arrow.empty(batches.schema).select(columns))
        return builder

    @contextmanager
    def _result(self) -> Iterator[tuple[pa.RecordBatchReader, list[str]]]:
        """Run the query on a new connection, and yield its batches and the wanted columns."""
        n_rows = _BATCH_ROWS if self._context.bounds is None else _BOUNDED_BATCH_ROWS
        with self._errors(), tempfile.TemporaryDirectory(prefix="svc-duckdb-") as folder:
            query = self._one_select()
            with self._connect(folder) as connection:
                result = connection.sql(query, params=dict(self._config.query_parameters) or None)
                with result.to_arrow_reader(n_rows) as batches:
                    yield batches, choose_columns(self._context, batches.schema.names, _RESULT)

    def _one_select(self) -> str:
        """Return the query. Raises DataSourceError unless it is one SELECT whose parameters are given."""
        statements = duckdb.extract_statements(self._config.query)
        kinds = [statement.type.name for statement in statements]
        if kinds != ["SELECT"]:
            raise DataSourceError(f"query: must be one SELECT, and is {', '.join(kinds) or 'empty'}")
        wanted, given = statements[0].named_parameters, self._config.query_parameters.keys()
        for name in sorted(wanted ^ given):
            what = f"query_parameters has no {name!r} for `${name}`" if name in wanted else f"has no `${name}`"
            raise DataSourceError(f"query: {what}; write `$name` for a parameter")
        self._require_own_files()
        return str(statements[0].query)

    def _require_own_files(self) -> None:
        """Raise DataSourceError for a relative name of a file that DuckDB would take from the working folder.

        It looks there first, and in the recipe's folder only for other names.
        """
        here, base = Path.cwd(), self._context.base_dir.absolute()
        texts = [single or double for single, double in _LITERAL.findall(self._config.query)]
        texts += [value for value in self._config.query_parameters.values() if isinstance(value, str)]
        for text in texts if here != base else ():
            with suppress(OSError, ValueError):
                if not Path(text).is_absolute() and (here / text).is_file() and (here / text) != (base / text):
                    raise DataSourceError(
                        f"query: {text!r} is also a file in the working folder: write {base / text}, or work in {base}"
                    )

    @contextmanager
    def _connect(self, folder: str) -> Iterator[Any]:
        """Yield a connection that cannot write, install or reconfigure. It may spill rows to `folder`."""
        base = str(self._context.base_dir.absolute())
        if "," in base:
            raise DataSourceError(f"{base}: DuckDB takes a comma in the name of the recipe's folder for its end")
        options = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",  # names of Python variables
            "file_search_path": base,
            "temp_directory": folder,
            "memory_limit": _MEMORY,
            "threads": str(usable_cores()),
        }
        database = self._config.database and self._context.base_dir.absolute() / self._config.database
        if database and not database.is_file():
            raise DataSourceError(f"{database} does not exist")
        with duckdb.connect(str(database or ":memory:"), read_only=bool(database), config=options) as connection:
            for extension in _EXTENSIONS:
                with suppress(duckdb.Error):  # not installed
                    connection.load_extension(extension)
            connection.execute("SET lock_configuration = true")
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            import_late("duckdb")
        except ImportError:
            raise ConfigError(f"duckdb needs an extra: {install_command('duckdb')}") from None
        try:
            yield
        except SvcError:
            raise
        except Exception as error:
            raise DataSourceError(f"duckdb: {' '.join(str(error).split())[:400]}") from error
