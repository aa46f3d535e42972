"""Parquet files: only the needed columns, batch by batch."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from svc.errors import DataSourceError
from svc.recipe.source_options import ParquetOptions
from svc.sources import arrow
from svc.sources.files import DataFile, open_file, refuse_expansion
from svc.sources.table import TableBuilder, require_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas

    from svc.sources.base import SourceContext

_BATCH_ROWS = 512 * 1024
Table = TypeVar("Table")


class ParquetSource:
    """One Parquet file, local or remote."""

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
        with open_file(self._config, self._context) as found:
            try:
                return finish(self._read(found))
            except pa.ArrowException as error:
                raise DataSourceError(f"{found.where} is no readable Parquet file: {str(error)[:300]}") from error

    def probe(self) -> list[str]:
        """Reads the footer only. Where it cannot be had alone over http(s), only the address is tried."""
        with open_file(self._config, self._context, part="end") as found:
            if not _has_footer(found):
                return [f"{found.where}: answers; columns and sha256 are checked when it is read"]
            try:
                file = pq.ParquetFile(found.file)
            except (pa.ArrowException, OSError) as error:
                raise DataSourceError(f"{found.where} is no readable Parquet file: {str(error)[:300]}") from error
            columns = self._columns(file, found)
            return [
                f"{found.where}: readable, {file.metadata.num_rows} rows",
                f"{found.where}: has the columns {', '.join(columns)}",
            ]

    def _columns(self, file: pq.ParquetFile, found: DataFile) -> list[str]:
        there = list(file.schema_arrow.names)
        wanted = list(dict.fromkeys(self._context.columns or there))
        require_columns(wanted, there, found.where)
        return wanted

    def _read(self, found: DataFile) -> TableBuilder:
        file = pq.ParquetFile(found.file, pre_buffer=False)
        columns = self._columns(file, found)
        texts = [name for name in columns if name in self._context.text_columns]
        kinds = [file.schema_arrow.field(name).type for name in texts]
        coded = [name for name, kind in zip(texts, kinds, strict=True) if pa.types.is_string(kind)]
        file = pq.ParquetFile(found.file, metadata=file.metadata, read_dictionary=coded, pre_buffer=False)
        builder = TableBuilder(self._context, found.where)
        builder.add(arrow.empty(pa.schema([file.schema_arrow.field(name) for name in columns])))
        expanded = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            expanded += batch.nbytes
            if found.max_expanded is not None and expanded > found.max_expanded:
                refuse_expansion(found.where, expanded, found.max_expanded, self._context)
            builder.add(batch.select(columns))
        return builder


def _has_footer(found: DataFile) -> bool:
    """Whether the footer, whose length stands before the file's last four bytes, lies in the part that is there."""
    if found.begin in (0, None):
        return found.begin == 0
    found.file.seek(-8, io.SEEK_END)
    length = int.from_bytes(found.file.read(4), "little")
    found.file.seek(0)
    return found.size - 8 - length >= (found.begin or 0)
