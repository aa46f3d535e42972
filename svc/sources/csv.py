"""Delimited text files, parsed by Arrow block by block, only the needed columns converted."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.csv as pa_csv

from svc.errors import DataSourceError
from svc.recipe.source_options import CsvOptions
from svc.sources import arrow
from svc.sources.csv_types import by_content, pinned, text_with_gaps
from svc.sources.files import CappedReader, DataFile, open_file
from svc.sources.table import TableBuilder, require_columns

if TYPE_CHECKING:
    import pandas

    from svc.sources.base import SourceContext

_BLOCK_BYTES = 16 << 20
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class _Header:
    """All column names, the wanted ones, and how many lines come before the data."""

    names: list[str]
    wanted: list[str]
    skip_rows: int

    @property
    def unique_names(self) -> list[str]:
        """Names for the parser, which wants no two alike; only wanted ones matter, and those are unique."""
        return [name if name in self.wanted else f"\0{index}" for index, name in enumerate(self.names)]


class CsvSource:
    """One csv file, local or remote, maybe compressed."""

    type_name: ClassVar[str] = "csv"
    Config: ClassVar[type[CsvOptions]] = CsvOptions

    def __init__(self, config: CsvOptions, context: SourceContext) -> None:
        self._config = config
        self._context = context

    def fetch(self) -> pandas.DataFrame:
        """The wanted columns. Raises DataSourceError for a file that is missing, broken, or lacks one of them."""
        return self._read().finish(self._typed)

    def fetch_arrow(self) -> pa.Table:
        """As `fetch`, without pandas."""
        return self._read().finish_arrow(self._typed)

    def _read(self) -> TableBuilder:
        with open_file(self._config, self._context) as found:
            header = self._header(found)
            builder = TableBuilder(self._context, found.where)
            builder.add(arrow.empty(self._schema(header)))
            for batch in self._batches(found, header):
                builder.add(batch)
            return builder

    def probe(self) -> list[str]:
        """Reads the header row only."""
        with open_file(self._config, self._context, part="beginning") as found:
            header = self._header(found)
            named = ", ".join(header.wanted)
            return [f"{found.where}: readable", f"{found.where}: has the columns {named}"]

    def _header(self, found: DataFile) -> _Header:
        """Names and place of the columns, from the first rows. Leaves the file at its start."""
        row = 0 if self._config.header is None else self._config.header
        with _explained(found.where):
            text = io.TextIOWrapper(io.BufferedReader(self._stream(found)), self._encoding(), newline="")
            reader = csv.reader(text, delimiter=self._config.delimiter)
            rows = [fields for _, fields in zip(range(row + 1), reader, strict=False)]
        found.file.seek(0)
        if len(rows) <= row:
            raise DataSourceError(
                f"{found.where} is empty" if not rows else f"{found.where} has no row {row} for a header"
            )
        if self._config.header is None:
            return self._check([str(index) for index in range(len(rows[0]))], 0, found)
        return self._check(rows[row], reader.line_num, found)

    def _check(self, names: list[str], skip: int, found: DataFile) -> _Header:
        wanted = list(dict.fromkeys(self._context.columns or names))
        hint = "" if self._config.header is None else "; for a file without a header row set `header: null`"
        require_columns([*wanted, *self._config.dtype], names, found.where, hint)
        for name in wanted:
            if names.count(name) > 1:
                raise DataSourceError(f"{found.where} has two columns called {name}")
        return _Header(names, wanted, skip)

    def _batches(self, found: DataFile, header: _Header) -> Iterator[pa.RecordBatch]:
        with _explained(found.where):
            reader = pa_csv.open_csv(
                self._stream(found),
                pa_csv.ReadOptions(
                    block_size=_BLOCK_BYTES,
                    column_names=header.unique_names,
                    skip_rows=header.skip_rows,
                    encoding=self._encoding(),
                ),
                pa_csv.ParseOptions(delimiter=self._config.delimiter, newlines_in_values=True),
                pa_csv.ConvertOptions(include_columns=header.wanted, column_types=self._schema(header)),
            )
            yield from reader

    def _schema(self, header: _Header) -> pa.Schema:
        """Text, but for the columns whose type the recipe pins."""
        dtype = self._config.dtype
        return pa.schema([(name, pinned(dtype.get(name, "str"))) for name in header.wanted])

    def _typed(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        dtype = self._config.dtype.get(name)
        if dtype is None:
            return by_content(column)
        return text_with_gaps(column) if pinned(dtype) == pa.string() else column

    def _encoding(self) -> str:
        name = codecs.lookup(self._config.encoding).name
        return "utf-8-sig" if name == "utf-8" else name

    def _stream(self, found: DataFile) -> CappedReader:
        codec = self._codec(found.where)
        if codec is None:
            return CappedReader(found.file, found, self._context)
        packed = pa.PythonFile(CappedReader(found.file, found, self._context), mode="r")
        return CappedReader(pa.CompressedInputStream(packed, codec), found, self._context)

    def _codec(self, where: str) -> str | None:
        if self._config.compression == "none":
            return None
        if self._config.compression != "infer":
            return self._config.compression
        return next((codec for suffix, codec in _CODECS.items() if where.lower().endswith(suffix)), None)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except UnicodeError:
        raise DataSourceError(f"{where} is not in the expected encoding; give `encoding`, such as latin-1") from None
    except (pa.ArrowInvalid, csv.Error, EOFError) as error:
        text = str(error)
        if "Empty CSV" in text:
            raise DataSourceError(f"{where} is empty") from None
        if "UTF8" in text:
            raise DataSourceError(f"{where} is not UTF-8; give `encoding`, such as latin-1") from None
        raise DataSourceError(f"{where} cannot be parsed: {text[:300]}") from error
