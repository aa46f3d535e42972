"""Parquet files: only the needed columns, batch by batch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from svc.errors import DataSourceError
from svc.recipe.source_options import ParquetOptions
from svc.sources.files import DataFile, open_file, refuse_expansion, shown
from svc.sources.parts import find_parts, first_part, is_many, probe_many
from svc.sources.table import TableBuilder, require_columns, wanted_hive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pandas

    from svc.sources.base import SourceContext
    from svc.sources.parts import Hive, Part

_BATCH_ROWS = 512 * 1024
_SAMPLE_BUFFER_BYTES = 256 * 1024
"""Read at a time for a sample, which without this would read each column of a row group whole."""
_EXTENSIONS = (".parquet",)
Table = TypeVar("Table")


class ParquetSource:
    """One Parquet file or many, local or remote."""

    type_name: ClassVar[str] = "parquet"
    Config: ClassVar[type[ParquetOptions]] = ParquetOptions

    def __init__(self, config: ParquetOptions, context: SourceContext) -> None:
        self._config = config
        self._context = context

    def fetch(self) -> pandas.DataFrame:
        """The wanted columns. Raises DataSourceError for a file that is missing, broken, or lacks one of them."""
        return self._whole(TableBuilder.finish)

    def fetch_arrow(self) -> pa.Table:
        """As `fetch`, without pandas."""
        return self._whole(TableBuilder.finish_arrow)

    def _whole(self, finish: Callable[[TableBuilder], Table]) -> Table:
        where = shown(self._config.location, self._context)
        builder = self._read(where)
        with _explained(where):
            return finish(builder)

    def probe(self) -> list[str]:
        """Reads the footer only, of a folder that of its first file.

        Where it cannot be had alone over http(s), only the address is tried.
        """
        if is_many(self._config, self._context):
            return probe_many(self._config, self._context, _EXTENSIONS, self._look)
        with open_file(self._config, self._context, part="end") as found:
            return self._look(found, {})

    def sample(self, n_rows: int) -> pandas.DataFrame | None:
        """The first rows of the first file, as `fetch` would give them. Row groups behind them are not read.

        None over http(s), where the file would have to be fetched whole.
        """
        if self._config.location.is_http:
            return None
        part = first_part(self._config, self._context, _EXTENSIONS, part="end")
        with part.open() as found, _explained(found.where):
            builder = TableBuilder(self._context, found.where)
            file, columns = self._begin(part, found, builder, buffer_bytes=_SAMPLE_BUFFER_BYTES)
            for batch in _first(file.iter_batches(batch_size=n_rows, columns=columns), n_rows):
                builder.add(batch.select(columns))
            return builder.finish()

    def _look(self, found: DataFile, hive: Hive) -> list[str]:
        if not _has_footer(found):
            return [f"{found.where}: answers; columns and sha256 are checked when it is read"]
        with _explained(found.where):
            file = pq.ParquetFile(found.file)
        columns = [*self._columns(file, found, hive), *wanted_hive(self._context, hive)]
        return [
            f"{found.where}: readable, {file.metadata.num_rows} rows",
            f"{found.where}: has the columns {', '.join(columns)}",
        ]

    def _columns(self, file: pq.ParquetFile, found: DataFile, hive: Hive) -> list[str]:
        there = list(file.schema_arrow.names)
        wanted = [name for name in dict.fromkeys(self._context.columns or there) if name not in hive]
        require_columns(wanted, there, found.where)
        return wanted

    def _read(self, where: str) -> TableBuilder:
        builder = TableBuilder(self._context, where)
        for part in find_parts(self._config, self._context, _EXTENSIONS):
            with part.open() as found, _explained(found.where):
                self._add(part, found, builder)
        return builder

    def _begin(
        self, part: Part, found: DataFile, builder: TableBuilder, *, buffer_bytes: int = 0
    ) -> tuple[pq.ParquetFile, list[str]]:
        """The file, ready to be read, and its columns that are to be read. A buffer of 0 bytes means none."""
        file = pq.ParquetFile(found.file, pre_buffer=False)
        columns = self._columns(file, found, part.hive)
        texts = [name for name in columns if name in self._context.text_columns]
        kinds = [file.schema_arrow.field(name).type for name in texts]
        coded = [name for name, kind in zip(texts, kinds, strict=True) if pa.types.is_string(kind)]
        if self._context.bounds is not None:
            coded = []  # each batch would bring the whole dictionary along, and count it
        file = pq.ParquetFile(
            found.file, metadata=file.metadata, read_dictionary=coded, buffer_size=buffer_bytes, pre_buffer=False
        )
        builder.begin(part, pa.schema([file.schema_arrow.field(name) for name in columns]))
        return file, columns

    def _batch_rows(self, file: pq.ParquetFile) -> int:
        bounds = self._context.bounds
        return _BATCH_ROWS if bounds is None else bounds.batch_rows(_largest_chunk(file))

    def _add(self, part: Part, found: DataFile, builder: TableBuilder) -> None:
        file, columns = self._begin(part, found, builder)
        expanded = 0
        for batch in file.iter_batches(batch_size=self._batch_rows(file), columns=columns):
            expanded += batch.nbytes
            if found.max_expanded is not None and expanded > found.max_expanded:
                refuse_expansion(found.where, expanded, found.max_expanded, self._context)
            builder.add(batch.select(columns))


def _largest_chunk(file: pq.ParquetFile) -> int:
    """Bytes of the largest column chunk, uncompressed; no cell is larger."""
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    sizes = (group.column(number).total_uncompressed_size for group in groups for number in range(group.num_columns))
    return max(sizes, default=0)


def _first(batches: Iterable[pa.RecordBatch], n_rows: int) -> Iterator[pa.RecordBatch]:
    """The first rows of `batches`; none is asked for beyond them."""
    for batch in batches:
        yield batch.slice(0, n_rows)
        n_rows -= batch.num_rows
        if n_rows <= 0:
            return


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise DataSourceError(f"{where} is no readable Parquet file: {str(error)[:300]}") from error
    except OSError as error:
        if type(error) is not OSError or error.errno is not None:  # Arrow raises a bare one for damaged pages
            raise
        raise DataSourceError(f"{where} is no readable Parquet file: {str(error)[:300]}") from error


def _has_footer(found: DataFile) -> bool:
    """Whether the footer, whose length stands before the file's last four bytes, lies in the part that is there."""
    if found.begin in (0, None):
        return found.begin == 0
    found.file.seek(-8, io.SEEK_END)
    length = int.from_bytes(found.file.read(4), "little")
    found.file.seek(0)
    return found.size - 8 - length >= (found.begin or 0)
