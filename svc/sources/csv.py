"""Delimited text files. Arrow parses them block by block and converts only the needed columns.

A column has the type that the recipe's `dtype` gives it. Otherwise it has the first type that fits all rows: integers,
floats, booleans, text. A column with a text such as 007 stays text. Empty fields are missing values. In columns of
numbers and booleans, words such as NA, NaN and null are missing values too. Id columns without a `dtype` are text, and
their empty fields are empty texts.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from svc.errors import DataSourceError
from svc.recipe.source_options import CsvOptions
from svc.sources.dtypes import DTYPES, by_content, text_with_gaps, whole_numbers
from svc.sources.files import CappedReader, DataFile, address_of
from svc.sources.parts import Hive, find_parts, probe_first
from svc.sources.shapes import FIRST_LINES, shape_hint
from svc.sources.table import Finish, Table, TableBuilder, TableSource, require_columns, wanted_hive
from svc.sources.text_files import (
    ARCHIVE_ERRORS,
    CODECS,
    MARK,
    SingleDelimiter,
    bounded_lines,
    is_whole_archive,
    kind_of,
    open_stream,
)

if TYPE_CHECKING:
    import pandas


_BLOCK_BYTES = 16 << 20
_BOUNDED_BLOCK_BYTES = 1 << 20
"""Block size for tables that a server reads. It is small because 4 MiB of short rows take 208 MiB as columns."""
_EXCEL = (".xlsx", ".xls", ".xlsm")
_EXTENSIONS = (".csv", *(f".csv{suffix}" for suffix in CODECS))
_DELIMITERS = {"::": "a double colon", ";": "a semicolon", "\t": "a tab", "|": "a bar", ",": "a comma"}
_SHOWN_CHARACTERS = 60
Batch = TypeVar("Batch", pa.RecordBatch, pa.Table)


def header_hint(names: Sequence[str], delimiter: str) -> str:
    """Return a hint to set `delimiter` or `encoding` if the header looks wrong, else ""."""
    if any("\0" in name for name in names):
        return "; every other byte is zero: the file is UTF-16, set `encoding: utf-16-le` or `utf-16-be`"
    if len(names) > 1:
        return ""
    for other, name in _DELIMITERS.items():
        if other != delimiter and other in names[0]:
            option = "\\t" if other == "\t" else other
            return f'; {name} separates the columns: set `delimiter: "{option}"`'
    return ""


def encoding_hint(start: bytes) -> str:
    """Return a hint to set `encoding`, or another option if the first bytes, `start`, show another kind of file."""
    kind = kind_of(start)
    return f"it is {kind}" if kind else "give `encoding`, such as latin-1"


def find_fault(text: TextIO, delimiter: str, n_columns: int, n_above: int = 0) -> str | None:
    """Return a description of the first malformed line: a wrong number of fields, or an unclosed quote.

    The first `n_above` lines may have any form. Returns None if every other line is well formed.
    """
    # Strict, because otherwise the module accepts a quote that nothing closes.
    rows = csv.reader(itertools.islice(bounded_lines(text), n_above, None), delimiter=delimiter, strict=True)
    line = 1 + n_above
    try:
        for row in rows:
            if row and len(row) != n_columns:
                beginning = delimiter.join(row)[:_SHOWN_CHARACTERS]
                fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
                return f"line {line} has {fields}, but the header has {n_columns}: {beginning!r}"
            # Lines and not rows are counted, because a quoted text may have several lines.
            line = n_above + rows.line_num + 1
    except csv.Error as error:
        if "end of data" in str(error):
            return f"line {line} opens a quote that nothing closes"
        if "field limit" in str(error):
            hint = ": it may open a quote that nothing closes" if n_above + rows.line_num > line else ""
            return f"line {line} has a value of more than {csv.field_size_limit()} characters{hint}"
        return f"line {line}: {error}"
    return None


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a file: all column names, the wanted column names, and how many lines precede the data."""

    names: list[str]
    wanted: list[str]
    skip_rows: int

    @property
    def unique_names(self) -> list[str]:
        """Return the column names without duplicates, as the parser requires. Unwanted names become placeholders."""
        # A zero byte, so that a placeholder equals no wanted name.
        return [name if name in self.wanted else f"\0{index}" for index, name in enumerate(self.names)]


class CsvSource(TableSource[CsvOptions]):
    """A source of one csv file or several, local or remote, plain or compressed."""

    type_name: ClassVar[str] = "csv"
    Config: ClassVar[type[CsvOptions]] = CsvOptions

    def _whole(self, finish: Finish[Table]) -> Table:
        builder = TableBuilder(self._context, address_of(self._config.location, self._context))
        for part in find_parts(self._config, self._context, _EXTENSIONS):
            with part.open() as file:
                header = self._header(file, part.hive)
                builder.begin(part, self._schema(header))
                n_before = builder.n_rows
                for batch in self._batches(file, header):
                    builder.add(self._typed(batch.select(header.wanted), file.where, builder.n_rows - n_before))
        return finish(builder, self._convert)

    def probe(self) -> list[str]:
        """Read the header row. For a folder or pattern, read that of its first file."""
        return probe_first(self._config, self._context, _EXTENSIONS, self._probe_file, part="beginning")

    def _probe_file(self, file: DataFile, hive: Hive) -> list[str]:
        if not is_whole_archive(file, self._config.compression):
            return [f"{file.where}: answers; columns are checked when it is read"]
        header = self._header(file, hive)
        named = ", ".join([*header.wanted, *wanted_hive(self._context, hive)])
        return [f"{file.where}: readable", f"{file.where}: has the columns {named}"]

    def sample(self, n_rows: int) -> pandas.DataFrame | None:
        """Return the first rows of `fetch`. Raises DataSourceError for a fault in them, as `fetch` does.

        Over http(s) only the beginning of the file is read. Returns None if it cannot be parsed, such as the beginning
        of a compressed file, and leaves out rows with another number of fields than the header.
        """
        part = next(find_parts(self._config, self._context, _EXTENSIONS, part="beginning"))
        with part.open() as file:
            try:
                header = self._header(file, part.hive)
                builder = TableBuilder(self._context, file.where)
                builder.begin(part, self._schema(header))
                batches: Iterable[pa.RecordBatch] = self._batches(file, header)
                if not file.whole:  # the last row may be cut
                    batches = (batch.slice(0, max(batch.num_rows - 1, 0)) for batch in batches)
                # Cut before `_typed`, so that a fault in later rows of the block does not count.
                first = (batch.slice(0, n_rows - builder.n_rows).select(header.wanted) for batch in batches)
                builder.add_first((self._typed(rows, file.where, builder.n_rows) for rows in first), n_rows)
                return builder.finish(self._convert)
            except DataSourceError:
                if file.whole:
                    raise
        return None

    def _header(self, file: DataFile, hive: Hive) -> _Header:
        """Read the header. Afterwards the file is at its start again."""
        if file.where.lower().endswith(_EXCEL):
            raise DataSourceError(f"{file.where} is an Excel file, which svc does not read: save the sheet as CSV")
        row, above = self._config.header or 0, self._config.skip_rows
        with _parser_errors(file):
            lines = itertools.islice(bounded_lines(self._text(file)), above, None)
            reader = csv.reader(lines, delimiter=self._delimiter)
            rows = [fields for _, fields in zip(range(row + 1), reader, strict=False)]
        file.file.seek(0)
        if len(rows) <= row or not rows[row]:
            why = f"has nothing in row {row}: `header` is the row of the column names, from 0" if rows else "is empty"
            why = f"has nothing in line {above + 1}, after `skip_rows: {above}`" if above and not rows else why
            raise DataSourceError(f"{file.where} {why}")
        if self._config.header is None:
            return self._check([str(index) for index in range(len(rows[0]))], above, file, hive)
        # Lines and not rows, because Arrow skips lines, and a quoted name may have several.
        return self._check(rows[row], above + reader.line_num, file, hive)

    def _check(self, names: list[str], skip: int, file: DataFile, hive: Hive) -> _Header:
        wanted = [name for name in dict.fromkeys(self._context.columns or names) if name not in hive]
        hint = header_hint(names, self._config.delimiter)
        folded = {name.casefold() for name in wanted}
        if self._config.header is None:
            hint = "; `header: null` numbers the columns: leave it out if the first line names them"
        # A name in another case shows that there is a header.
        elif not hint and not any(name.strip().casefold() in folded for name in names):
            hint = _first_line_hint(names[0]) or "; for a file without a header row set `header: null`"
        if any(name not in names for name in wanted):
            hint = self._shape(file) or hint
        with_dtype = [name for name in self._config.dtype if name not in hive]
        require_columns([*wanted, *with_dtype], names, file.where, hint)
        return _Header(names, wanted, skip)

    def _batches(self, file: DataFile, header: _Header) -> Iterator[pa.RecordBatch]:
        with _parser_errors(file, lambda: self._fault(file, header)):
            # One row is enough to know that there are any. A file may have millions.
            stream, wrong_rows = self._stream(file), deque[Any](maxlen=1)
            last = reader = None

            def leave_out(row: Any) -> str:
                if file.whole:  # else it may be the last row, which is cut
                    wrong_rows.append(row)
                return "skip"  # an error that ends the reader inside Arrow could hang the process at exit

            try:
                reader = pa_csv.open_csv(
                    stream,
                    pa_csv.ReadOptions(
                        block_size=_BLOCK_BYTES if self._context.bounds is None else _BOUNDED_BLOCK_BYTES,
                        column_names=header.unique_names,
                        skip_rows=header.skip_rows,
                        # `SingleDelimiter` has already decoded the text and encoded it as UTF-8.
                        encoding=self._encoding if self._delimiter == self._config.delimiter else "utf-8",
                    ),
                    # Without newlines_in_values Arrow may end a block within a quoted text of several lines.
                    pa_csv.ParseOptions(
                        delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=leave_out
                    ),
                    pa_csv.ConvertOptions(include_columns=header.wanted, column_types=self._parsed(header)),
                )
                for last in reader:
                    if wrong_rows:
                        break
                    yield last
                if wrong_rows:
                    raise pa.ArrowInvalid("a row has another number of fields than the header")
            finally:
                stream.stop()  # Arrow's thread must not read while `_fault` reads the file again
                # Arrow's thread must end, too. If it still reads when the process exits, the process may hang.
                with suppress(pa.ArrowException, StopIteration):
                    while reader is not None:
                        reader.read_next_batch()
        if last is not None and _ends_in_a_long_text(last) and (fault := self._fault(file, header)):
            raise DataSourceError(f"{file.where} cannot be parsed: {fault}")

    def _fault(self, file: DataFile, header: _Header) -> str | None:
        """Return a description of the first malformed line, or None. Reads the file again, row by row."""
        n_above = self._config.skip_rows + (self._config.header or 0)
        fault = find_fault(self._text(file), self._delimiter, len(header.names), n_above)
        # Another shape can explain a wrong number of fields, but no open quote.
        if fault and f"header has {len(header.names)}" in fault:
            fault += self._shape(file)
        return fault and fault.replace(repr(MARK)[1:-1], self._config.delimiter)

    def _shape(self, file: DataFile) -> str:
        """Return a hint if interactions are no table of one choice a row, else "". The file is at its start again."""
        if self._context.purpose != "interactions":
            return ""
        file.file.seek(0)
        lines = itertools.islice(bounded_lines(self._text(file)), self._config.skip_rows, None)
        rows: list[list[str]] = []
        with suppress(csv.Error, UnicodeError, EOFError, pa.ArrowException):
            rows = list(itertools.islice(csv.reader(lines, delimiter=self._delimiter), FIRST_LINES))
        file.file.seek(0)
        # The first two wanted columns of interactions are those of users and items.
        return shape_hint(rows, self._config.path, self._config.delimiter, (self._context.columns or ())[:2])

    def _schema(self, header: _Header) -> pa.Schema:
        """Return a schema with the type of each column in `dtype`, and text for all other columns."""
        dtype = self._config.dtype
        return pa.schema([(name, DTYPES[dtype.get(name, "str")]) for name in header.wanted])

    def _parsed(self, header: _Header) -> pa.Schema:
        """Return the schema with which Arrow parses. Integers are parsed as text, because Arrow refuses 17850.0."""
        fields = self._schema(header)
        return pa.schema([field.with_type(pa.string()) if field.type == pa.int64() else field for field in fields])

    def _typed(self, batch: Batch, where: str, n_before: int) -> Batch:
        """Return the parsed batch with the types of `_schema`. `n_before` rows of the file `where` precede it."""
        for index, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            if DTYPES[self._config.dtype.get(name, "str")] == pa.int64():
                batch = batch.set_column(index, name, whole_numbers(column, name, where, n_before))
            elif self._delimiter == MARK and pa.types.is_string(column.type):  # delimiters within quotes
                batch = batch.set_column(index, name, pc.replace_substring(column, MARK, self._config.delimiter))
        return batch

    def _convert(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        dtype = self._config.dtype.get(name)
        if dtype is None:
            return by_content(column)
        return text_with_gaps(column) if DTYPES[dtype] == pa.string() else column

    @property
    def _delimiter(self) -> str:
        """Return the delimiter in the text to parse, which stands for a delimiter of several characters."""
        return self._config.delimiter if len(self._config.delimiter) == 1 else MARK

    def _text(self, file: DataFile) -> io.TextIOWrapper:
        # newline="", because the csv module must see the line ends within quotes.
        encoding = self._encoding if self._delimiter == self._config.delimiter else "utf-8"
        return io.TextIOWrapper(io.BufferedReader(self._stream(file)), encoding, newline="")

    @property
    def _encoding(self) -> str:
        name = codecs.lookup(self._config.encoding).name
        return "utf-8-sig" if name == "utf-8" else name  # skips a byte order mark

    def _stream(self, file: DataFile) -> CappedReader:
        stream = open_stream(file, self._config.compression, self._context)
        if self._delimiter == self._config.delimiter:
            return stream
        text = io.TextIOWrapper(io.BufferedReader(stream), self._encoding, newline="")
        return CappedReader(SingleDelimiter(text, self._config.delimiter), file, self._context)


def _ends_in_a_long_text(batch: pa.RecordBatch) -> bool:
    """Return whether a value in the last row has several lines.

    Such a value may hold all later rows of the file, because the parser accepts a quote that is never closed.
    """
    if not batch.num_rows:
        return False
    row = batch.slice(batch.num_rows - 1).to_pylist()[0]
    return any(isinstance(value, str) and "\n" in value for value in row.values())


@contextmanager
def _parser_errors(file: DataFile, find: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Turn the exceptions of parsers into DataSourceError. `find` returns a description of the malformed line."""
    where = file.where
    try:
        yield
    except UnicodeError:
        raise DataSourceError(f"{where} is not in the expected encoding; {_encoding_hint(file)}") from None
    except (pa.ArrowInvalid, csv.Error, EOFError, *ARCHIVE_ERRORS) as error:
        text = str(error)
        # Arrow raises one class for all faults, so its words tell them apart.
        if "Empty CSV" in text:
            raise DataSourceError(f"{where} is empty") from None
        if "UTF8" in text:
            raise DataSourceError(f"{where} is not UTF-8; {_encoding_hint(file)}") from None
        fault = None
        if "conversion error" not in text or "\n" in text:  # a value of several lines may be an unclosed quote
            with suppress(UnicodeError, EOFError, pa.ArrowException, csv.Error, *ARCHIVE_ERRORS):
                fault = find()
        raise DataSourceError(f"{where} cannot be parsed: {fault or text[:300]}") from error


def _encoding_hint(file: DataFile) -> str:
    file.file.seek(0)
    return encoding_hint(file.file.read(64))


def _first_line_hint(line: str) -> str:
    """Return a hint for a first line that is no header, or ""."""
    if line.lstrip().startswith("<"):
        return "; this is a page of HTML or XML, not a table: is the address right?"
    return "; set `skip_rows: 1` to skip the line above the header" if line.startswith(("#", "sep=")) else ""
