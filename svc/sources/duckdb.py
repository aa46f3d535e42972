"""Rows of a query run by DuckDB in this process, over files and over a database of DuckDB.

The query must be one SELECT, as DuckDB's own parser says. No extension is installed, and those that reach the network
are not loaded, so a query reads local files only.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from svc.cores import usable_cores
from svc.errors import DataSourceError
from svc.late_imports import LateModule, import_late
from svc.recipe.source_options import DuckdbOptions
from svc.sources import arrow
from svc.sources.table import QUERY_RESULT, SampledQuerySource, choose_columns, library_errors

if TYPE_CHECKING:
    import pyarrow as pa


duckdb = LateModule("duckdb")

_MEMORY = "50%"
_EXTENSIONS = ("excel", "sqlite_scanner")
"""Extensions for local files that are loaded if the operator has installed them."""
_LITERAL = re.compile(r"'([^'\n]{1,1000})'|\"([^\"\n]{1,1000})\"")


class DuckdbSource(SampledQuerySource[DuckdbOptions]):
    """A source that runs one SELECT. Relative paths in the query start at the recipe's folder."""

    type_name: ClassVar[str] = "duckdb"
    Config: ClassVar[type[DuckdbOptions]] = DuckdbOptions

    @contextmanager
    def _answer(self, most_rows: int) -> Iterator[tuple[list[str], Iterator[pa.RecordBatch | pa.Table]]]:  # noqa: ARG002
        with library_errors("duckdb", describe=str), tempfile.TemporaryDirectory(prefix="svc-duckdb-") as folder:
            import_late("duckdb")
            query = self._one_select()
            with self._connect(folder) as connection:
                result = connection.sql(query, params=dict(self._config.query_parameters) or None)
                with result.to_arrow_reader(self._batch_rows) as reader:
                    columns = choose_columns(self._context, reader.schema.names, QUERY_RESULT)
                    batches = (batch.select(columns) for batch in chain([arrow.empty(reader.schema)], reader))
                    yield [f"query: runs, has the columns {', '.join(columns)}"], batches

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
            # A query would otherwise download extensions, which reach the network.
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
            # By name, because autoloading would also load those that reach the network.
            for extension in _EXTENSIONS:
                with suppress(duckdb.Error):  # not installed
                    connection.load_extension(extension)
            # Functions such as set_config change settings within a SELECT.
            connection.execute("SET lock_configuration = true")
            yield connection
