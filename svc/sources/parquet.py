"""A source that reads Parquet files batch by batch, and only the columns that it needs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from svc.errors import DataSourceError
from svc.recipe.filter_tree import RowFilter
from svc.recipe.source_options import ParquetOptions
from svc.sources import arrow
from svc.sources.base import TableBounds
from svc.sources.files import DataFile, address_of, refuse_expansion
from svc.sources.parquet_pages import DELTA_ENCODINGS, chunk_size, texts_size
from svc.sources.parts import Hive, Part, find_parts, probe_first
from svc.sources.prefilter import row_groups
from svc.sources.table import Finish, Table, TableBuilder, TableSource, choose_columns, wanted_hive

if TYPE_CHECKING:
    import pandas

    from svc.sources.table import Keep

_BATCH_ROWS = 512 * 1024
_BOUNDED_BATCH_ROWS = 64 * 1024
_BYTES = "BYTE_ARRAY"
_LEAST_CELL_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, _BYTES: 4}
_SAMPLE_BUFFER_BYTES = 256 * 1024
"""Buffer for a sample. Without it, Arrow reads each column chunk of a row group whole."""
_EXTENSIONS = (".parquet",)


class ParquetSource(TableSource[ParquetOptions]):
    """A source of one Parquet file or several, local or remote."""

    type_name: ClassVar[str] = "parquet"
    Config: ClassVar[type[ParquetOptions]] = ParquetOptions

    def _whole(self, finish: Finish[Table]) -> Table:
        where = address_of(self._config.location, self._context)
        builder = TableBuilder(self._context, where)
        for part in find_parts(self._config, self._context, _EXTENSIONS):
            with part.open() as data_file, _parquet_errors(data_file.where):
                file, columns = self._begin(part, data_file, builder)
                groups = [(range(file.metadata.num_row_groups), 0)]
                for _, batch in self._batches(file, columns, data_file, groups):
                    builder.add(batch)
        with _parquet_errors(where):
            return finish(builder)

    def fetch_where(self, where: RowFilter, keep: Keep) -> tuple[pandas.DataFrame, NDArray[np.int64], int]:
        """Return the n rows of `fetch` that `keep` selects, their positions in the source, (n,), and the number of all.

        The other rows are in memory only one batch at a time.

        `keep` gets the columns that `where` names, with the position in the source as index of each row. It selects the
        rows that satisfy `where`. Row groups without such rows are skipped by their statistics.
        """
        address = address_of(self._config.location, self._context)
        builder = TableBuilder(self._context, address)
        n_rows, positions = 0, [np.empty(0, np.int64)]
        for part in find_parts(self._config, self._context, _EXTENSIONS):
            with part.open() as data_file, _parquet_errors(data_file.where):
                file, columns = self._begin(part, data_file, builder)
                groups = row_groups(file, where, part.hive, self._context.text_columns)
                for first, batch in self._batches(file, columns, data_file, groups):
                    positions.append(builder.add_where(batch, where, keep, n_rows + first))
                n_rows += file.metadata.num_rows
        with _parquet_errors(address):
            return builder.finish(), np.concatenate(positions), n_rows

    def probe(self) -> list[str]:
        """Read the footer only. For a folder or a pattern, read the footer of its first file.

        If an http(s) server cannot send the footer alone, the probe only checks that it answers.
        """
        return probe_first(self._config, self._context, _EXTENSIONS, self._probe_file, part="end")

    def sample(self, n_rows: int) -> pandas.DataFrame | None:
        """Return the first rows of `fetch`, without reading later row groups.

        Returns None over http(s), because the file would have to be fetched whole.
        """
        if self._config.location.is_http:
            return None
        part = next(find_parts(self._config, self._context, _EXTENSIONS, part="end"))
        with part.open() as data_file, _parquet_errors(data_file.where):
            builder = TableBuilder(self._context, data_file.where)
            file, columns = self._begin(part, data_file, builder, buffer_bytes=_SAMPLE_BUFFER_BYTES)
            batches = file.iter_batches(batch_size=n_rows, columns=columns)
            builder.add_first((batch.select(columns) for batch in batches), n_rows)
            return builder.finish()

    def _probe_file(self, data_file: DataFile, hive: Hive) -> list[str]:
        if not _has_footer(data_file):
            return [f"{data_file.where}: answers; columns and sha256 are checked when it is read"]
        with _parquet_errors(data_file.where):
            file = pq.ParquetFile(data_file.file)
        columns = [*self._columns(file, data_file, hive), *wanted_hive(self._context, hive)]
        return [
            f"{data_file.where}: readable, {file.metadata.num_rows} rows",
            f"{data_file.where}: has the columns {', '.join(columns)}",
        ]

    def _columns(self, file: pq.ParquetFile, data_file: DataFile, hive: Hive) -> list[str]:
        return choose_columns(self._context, file.schema_arrow.names, data_file.where, hive)

    def _begin(
        self, part: Part, data_file: DataFile, builder: TableBuilder, *, buffer_bytes: int = 0
    ) -> tuple[pq.ParquetFile, list[str]]:
        """Open the file, tell `builder` that the next batches come from it, and return it with the columns to read.

        With bounds, first check the size of the whole file (see `_check_size`). `buffer_bytes` 0 means no buffer.

        Raises DataSourceError if a wanted column is missing, or if the columns do not fit those of earlier files.
        """
        file = pq.ParquetFile(data_file.file)
        columns = self._columns(file, data_file, part.hive)
        texts = [name for name in columns if name in self._context.text_columns]
        kinds = [file.schema_arrow.field(name).type for name in texts]
        codable = _codable(file)
        coded = [name for name, kind in zip(texts, kinds, strict=True) if pa.types.is_string(kind) and name in codable]
        if self._context.bounds is not None:
            self._check_size(file, columns, builder, data_file)
            coded = codable  # all texts as dictionaries, which hold a repeated text once
        # The footer names the columns to code, so the file is opened twice and its footer read once.
        file = pq.ParquetFile(
            data_file.file, metadata=file.metadata, read_dictionary=coded, buffer_size=buffer_bytes, pre_buffer=False
        )
        fields = [file.schema_arrow.field(name) for name in columns]
        if self._context.bounds is not None:  # the schema of the batches that `_plain` returns
            fields = [
                field if field.name in texts else field.with_type(arrow.without_dictionaries(field.type))
                for field in fields
            ]
        builder.begin(part, pa.schema(fields))
        return file, columns

    def _check_size(self, file: pq.ParquetFile, columns: list[str], builder: TableBuilder, data_file: DataFile) -> None:
        """Raise SourceTooLarge if the file has too many rows or its columns would be decoded to too many bytes.

        This is checked before anything is decoded, because Arrow decodes a whole page at once. Raises DataSourceError
        for a broken page.
        """
        assert self._context.bounds is not None
        n_rows = builder.n_rows + file.metadata.num_rows
        self._context.bounds.check(n_rows, 0, data_file.where)
        try:
            n_bytes = _decoded_bytes(file, columns, data_file.file)
            self._context.bounds.check(n_rows, n_bytes, data_file.where)  # before a page is decompressed
            n_bytes += _texts_bytes(file, columns, data_file.file)
        except ValueError as error:
            raise DataSourceError(f"{data_file.where} is not a readable Parquet file: {error}") from None
        self._context.bounds.check(n_rows, n_bytes, data_file.where)

    def _batches(
        self, file: pq.ParquetFile, columns: list[str], data_file: DataFile, groups: Iterable[tuple[Sequence[int], int]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows in bounded batches, each with the position of its first row in the file.

        `groups` has the numbers of row groups that are read one after the other, and the position of their first row.
        """
        expanded, bounds = 0, self._context.bounds
        n_rows = _BATCH_ROWS if bounds is None else _BOUNDED_BATCH_ROWS
        for numbers, position in groups:
            first = position
            for batch in file.iter_batches(batch_size=n_rows, row_groups=list(numbers), columns=columns):
                # Over all row groups, because each of them may be small alone.
                expanded += batch.nbytes
                if data_file.max_expanded is not None and expanded > data_file.max_expanded:
                    refuse_expansion(data_file.where, expanded, data_file.max_expanded, self._context)
                chosen = batch.select(columns)
                yield first, chosen if bounds is None else self._plain(chosen, bounds, data_file)
                first += batch.num_rows

    def _plain(self, batch: pa.RecordBatch, bounds: TableBounds, data_file: DataFile) -> pa.Table:
        """Return the batch with dictionaries decoded, except for ids.

        Raises SourceTooLarge before decoding if the decoded batch would exceed the bounds.
        """
        bounds.check(batch.num_rows, sum(map(arrow.expanded_bytes, batch.columns)), data_file.where)
        ids = self._context.text_columns
        return pa.table(
            {
                name: column if name in ids else column.cast(arrow.without_dictionaries(column.type))
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
        )


def _leaves(file: pq.ParquetFile) -> list[pq.ColumnSchema]:
    return [file.schema.column(number) for number in range(len(file.schema))]


def _groups(file: pq.ParquetFile) -> list[pq.RowGroupMetaData]:
    return [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]


def _codable(file: pq.ParquetFile) -> list[str]:
    """Return the paths of the leaf columns, of text or binary values, that Arrow can read as dictionaries."""
    groups = _groups(file)
    return [
        leaf.path
        for number, leaf in enumerate(_leaves(file))
        if leaf.physical_type == _BYTES
        and not any(DELTA_ENCODINGS.intersection(group.column(number).encodings) for group in groups)
    ]


def _wanted_chunks(
    file: pq.ParquetFile, columns: list[str]
) -> Iterator[tuple[pq.ColumnSchema, pq.ColumnChunkMetaData]]:
    for number, leaf in enumerate(_leaves(file)):
        if any(leaf.path == name or leaf.path.startswith(f"{name}.") for name in columns):
            yield from ((leaf, group.column(number)) for group in _groups(file))


def _decoded_bytes(file: pq.ParquetFile, columns: list[str], content: BinaryIO) -> int:
    """Return the bytes of the columns after decoding, as the footer and the page headers in `content` state them.

    Each text of a dictionary counts once. Prefixes that delta encoding repeats are not counted (see `_texts_bytes`).
    """
    n_bytes = 0
    for leaf, chunk in _wanted_chunks(file, columns):
        # `length` is that of fixed-length values, and 0 for all others.
        width = max(_LEAST_CELL_BYTES.get(leaf.physical_type, 8), leaf.length)
        n_values, n_page_bytes = chunk_size(content, chunk)
        # The largest, because the footer of a hostile file may state less than Arrow will allocate.
        n_bytes += max(n_page_bytes, chunk.total_uncompressed_size, max(n_values, chunk.num_values) * width)
    return n_bytes


def _texts_bytes(file: pq.ParquetFile, columns: list[str], content: BinaryIO) -> int:
    """Return the bytes that decoding adds to the texts of the columns.

    These are repeated prefixes, and the texts of dictionaries that Arrow cannot keep as codes.
    """
    codable = _codable(file)
    return sum(
        texts_size(content, chunk, leaf, as_codes=leaf.physical_type != _BYTES or leaf.path in codable)
        for leaf, chunk in _wanted_chunks(file, columns)
    )


@contextmanager
def _parquet_errors(where: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        # A missing or unreadable file keeps its own error.
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # Arrow reports damaged pages without errno
        raise DataSourceError(f"{where} is not a readable Parquet file: {str(error)[:300]}") from error


def _has_footer(data_file: DataFile) -> bool:
    """Return whether the fetched part contains the footer. The footer's length stands 8 bytes before the end."""
    if data_file.begin in (0, None):
        return data_file.begin == 0
    data_file.file.seek(-8, io.SEEK_END)
    length = int.from_bytes(data_file.file.read(4), "little")
    data_file.file.seek(0)
    return data_file.size - 8 - length >= (data_file.begin or 0)
