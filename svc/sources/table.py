"""Collection of Arrow batches into one compact pandas DataFrame.

Ids are encoded as int32 codes while batches arrive. The table takes 4 bytes per row and id column, and holds each
distinct id once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from svc import install_command
from svc.errors import ConfigError, DataSourceError, SourceTooLarge, SvcError
from svc.late_imports import LateModule
from svc.logs import redact_text
from svc.names import MAX_ID_CHARACTERS, nearest
from svc.sources import arrow

if TYPE_CHECKING:
    import pandas as pd

    from svc.recipe.filter_tree import RowFilter
    from svc.sources.base import SourceContext
    from svc.sources.parts import Hive, Part

    Convert = Callable[[str, pa.ChunkedArray], pa.ChunkedArray]
    Keep = Callable[[pd.DataFrame], NDArray[np.bool_]]
else:
    pd = LateModule("pandas")

Options = TypeVar("Options")
Table = TypeVar("Table")
Finish = Callable[..., Table]
Codes = np.ndarray[Any, np.dtype[np.int32]]
_TEXT = pa.large_string()
QUERY_RESULT = "the query's result"
_QUERY_ROWS = 50_000
_BOUNDED_QUERY_ROWS = 1000
_WAITING_BYTES = 64 << 20
_MAX_ID_BYTES = 4 * MAX_ID_CHARACTERS


def require_columns(wanted: Iterable[str], available: Iterable[str], where: str, hint: str = "") -> None:
    """Raise DataSourceError, with the available columns, if a wanted column is missing or there are two of it."""
    present = list(available)
    missing = []
    for name in wanted:
        if present.count(name) > 1:
            raise DataSourceError(f"{where} has two columns called {name}")
        if name not in present:
            missing.append(name)
    if not missing:
        return
    names = [name if name == name.strip() and name.isprintable() else repr(name) for name in present[:30]]
    shown = ", ".join(names) + (", ..." if len(present) > 30 else "")
    word = "columns" if len(missing) > 1 else "column"
    near = [repr(name) for name in (nearest(name, present) for name in missing) if name is not None]
    meant = f"did you mean {', '.join(near)}? " if len(near) == len(missing) else ""
    raise DataSourceError(f"{where} has no {word} {', '.join(missing)}; {meant}it has {shown or 'none'}{hint}")


def choose_columns(
    context: SourceContext, present: Sequence[str], where: str, partitions: Collection[str] = ()
) -> list[str]:
    """Return the columns to read of a table that has those in `present`. Partition columns are not read.

    Raises DataSourceError if a wanted column is missing.
    """
    wanted = [name for name in dict.fromkeys(context.columns or present) if name not in partitions]
    require_columns(wanted, present, where)
    return wanted


def require_query_rows(n_rows: int, cap: int) -> None:
    """Raise SourceTooLarge if a query returns more than `cap` rows."""
    if n_rows > cap:
        raise SourceTooLarge(f"the query returns more than {cap} rows: SVC_MAX_SQL_ROWS", fields={"cap": cap})


def wanted_hive(context: SourceContext, hive: Hive) -> list[str]:
    """Return the wanted partition columns of a file."""
    return [name for name in hive if context.columns is None or name in context.columns]


class TableSource(ABC, Generic[Options]):
    """A source that collects its rows in a TableBuilder."""

    def __init__(self, config: Options, context: SourceContext) -> None:
        self._config = config
        self._context = context

    def fetch(self) -> pd.DataFrame:
        """Return the wanted columns of all rows.

        Raises DataSourceError for a table that is missing or broken or lacks a column, SourceTooLarge for a query with
        more rows than SVC_MAX_SQL_ROWS, and ConfigError without the extra of the source.
        """
        return self._whole(TableBuilder.finish)

    def fetch_arrow(self) -> pa.Table:
        """Return the same as `fetch`, without pandas."""
        return self._whole(TableBuilder.finish_arrow)

    @abstractmethod
    def _whole(self, finish: Finish[Table]) -> Table:
        """Collect all rows, and return the result of `finish` for their TableBuilder."""


class QuerySource(TableSource[Options]):
    """A source that runs one query, and reads no more rows of its result than it needs."""

    def _whole(self, finish: Finish[Table]) -> Table:
        cap = self._context.settings.max_sql_rows
        with self._answer(cap + 1) as (_, batches):
            builder = TableBuilder(self._context, QUERY_RESULT)
            for batch in batches:
                builder.add(batch)
                require_query_rows(builder.n_rows, cap)
            return finish(builder)

    @property
    def _batch_rows(self) -> int:
        return _QUERY_ROWS if self._context.bounds is None else _BOUNDED_QUERY_ROWS

    @abstractmethod
    def _answer(self, most_rows: int) -> AbstractContextManager[tuple[list[str], Iterator[pa.RecordBatch | pa.Table]]]:
        """Run the query on a new connection. Of its result at most `most_rows` rows are read.

        Yield a line per check, and the batches of the wanted columns. The first one is empty, so that a result without
        rows has columns too.
        """


class SampledQuerySource(QuerySource[Options]):
    """A source whose query is checked by running it."""

    def probe_and_sample(self, n_rows: int) -> Generator[str, None, pd.DataFrame]:
        """Start the query, yield a line per check, then return its first rows. Later rows are not read."""
        with self._answer(n_rows) as (lines, batches):
            yield from lines
            builder = TableBuilder(self._context, QUERY_RESULT)
            builder.add_first(batches, n_rows)
            return builder.finish()


@contextmanager
def library_errors(source: str, describe: Callable[[Exception], object] | None = None) -> Iterator[None]:
    """Turn every exception of the library of a source type into an error of svc on one line.

    This is a ConfigError without the extra that has the name of the type, and else a DataSourceError with the result of
    `describe`, by default the type and the message of the exception.
    """
    try:
        yield
    except SvcError:
        raise
    except ImportError as error:
        # Late imports happen within the block, so this is the library or one that it needs.
        extra = f"{source} needs an extra: {install_command(source)}"
        raise ConfigError(f"{extra} ({error.name} is missing)") from None
    except Exception as error:
        text = describe(error) if describe else f"{type(error).__name__}: {getattr(error, 'message', None) or error}"
        raise DataSourceError(f"{source}: {' '.join(redact_text(str(text)).split())[:400]}") from error


class TableBuilder:
    """A builder of one table from the batches of a source. All batches have the same columns.

    Calls the context's `progress` with the number of rows of each batch.
    """

    def __init__(self, context: SourceContext, where: str) -> None:
        self._where = self._source = where
        self._context = context
        self._first: tuple[Part, pa.Schema] | None = None
        self._hive: Hive = {}
        self._text_columns = context.text_columns
        self._texts: dict[str, _TextColumn] = {}
        self._others: dict[str, list[pa.Array | pa.ChunkedArray]] = {}
        self._order: list[str] = []
        self.n_rows = 0
        self._n_bytes = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns of the batches added so far, with the partitions."""
        return tuple(self._order)

    def begin(self, part: Part, schema: pa.Schema) -> None:
        """Start a file. The next batches come from this file, with the columns of `schema` and the file's partitions.

        Raises DataSourceError, which names both files, if its columns or partitions do not fit those of earlier files.
        Raises it too for an id column that `as_text` refuses.
        """
        self._where = part.where
        self._hive = {name: part.hive[name] for name in wanted_hive(self._context, part.hive)}
        self._agree(part, schema)
        self.add(arrow.empty(schema))

    def _agree(self, part: Part, schema: pa.Schema) -> None:
        """Raise DataSourceError if `part` does not fit the earlier files.

        It must have the same columns and partitions, and a common type must exist for each column that is not an id.
        """
        # Arrow merges no text with a dictionary of texts.
        schema = pa.schema([field.with_type(arrow.without_dictionaries(field.type)) for field in schema])
        first, agreed = self._first = self._first or (part, schema)
        for what, in_part, in_first in (
            ("columns", set(schema.names), set(agreed.names)),
            ("partitions", set(part.hive), set(first.hive)),
        ):
            if in_part != in_first:
                differing = ", ".join(sorted(in_part ^ in_first))
                raise DataSourceError(
                    f"{part.where} and {first.where} have different {what}: {differing} in only one of them; "
                    "files of one source need the same ones"
                )
        # The ids of the first file for all, because ids become text and need no common type.
        ids = [field for field in agreed if field.name in self._text_columns]
        others = [field for field in schema if field.name not in self._text_columns]
        try:
            both = pa.unify_schemas([agreed, pa.schema([*ids, *others])], promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise DataSourceError(
                f"{part.where}: does not fit the files before it, from {first.where} on: {error}; "
                "files of one source need types that fit together"
            ) from None
        self._first = first, both

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Add the rows of `batch`.

        Raises DataSourceError for an id column that `as_text` refuses. If the context has the bounds of a server, also
        raises SourceTooLarge above them, and DataSourceError for an id of more than _MAX_ID_BYTES.
        """
        self._check(batch)
        names = [*batch.schema.names, *self._hive]
        self._order = self._order or [name for name in dict.fromkeys(self._context.columns or names) if name in names]
        constants = [arrow.constant(value, batch.num_rows) for value in self._hive.values()]
        for name, column in zip(names, [*batch.columns, *constants], strict=True):
            if name in self._text_columns:
                self._texts.setdefault(name, _TextColumn()).add(as_text(column, name, self._where))
            else:
                self._others.setdefault(name, []).append(column)
        if self._context.progress is not None:
            self._context.progress(batch.num_rows)

    def _check(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count the rows of the batch. With bounds, also count its bytes and check both before any conversion.

        Raises SourceTooLarge, or DataSourceError for an id that is too long, but nothing without bounds.
        """
        self.n_rows += batch.num_rows
        if self._context.bounds is None:
            return
        self._n_bytes += sum(arrow.expanded_bytes(column) for column in batch.columns)
        self._context.bounds.check(self.n_rows, self._n_bytes, self._source)
        for name in self._text_columns.intersection(batch.schema.names):
            if arrow.longest_text(batch.column(name)) > _MAX_ID_BYTES:
                raise DataSourceError(
                    f"{self._where}: the id column {name} holds an id of more than {MAX_ID_CHARACTERS} characters"
                )

    def add_first(self, batches: Iterable[pa.RecordBatch | pa.Table], n_rows: int) -> None:
        """Add rows until the table has `n_rows`. Later batches are not read."""
        for batch in batches:
            self.add(batch.slice(0, n_rows - self.n_rows))
            if self.n_rows >= n_rows:
                break

    def add_where(self, batch: pa.RecordBatch, where: RowFilter, keep: Keep, first: int) -> NDArray[np.int64]:
        """Add the n rows of `batch` that `keep` selects, and return their positions in the source, (n,).

        `first` is the position of the first row. `keep` gets the columns that `where` names, as `fetch` would return
        them for this batch alone, with the positions as index.
        """
        named = tuple(where.kinds)
        columns = TableBuilder(replace(self._context, columns=named, progress=None), self._where)
        columns._hive = {name: value for name, value in self._hive.items() if name in named}
        columns.add(batch.select([name for name in named if name not in self._hive]))
        frame = columns.finish()
        frame.index += first
        rows = np.flatnonzero(keep(frame))
        self.add(batch.take(pa.array(rows)))
        return first + rows

    def finish(self, convert: Convert | None = None) -> pd.DataFrame:
        """Return the DataFrame. `convert` may change the type of a column that is neither an id nor a partition."""
        # copy=False, because pandas would copy all columns of a dict once more.
        return pd.DataFrame({name: _in_pandas(column) for name, column in self._columns(convert)}, copy=False)

    def finish_arrow(self, convert: Convert | None = None) -> pa.Table:
        """Return the same as `finish` as an Arrow table: ids as dictionaries, missing values as null."""
        return pa.table(dict(self._columns(convert)))

    def _columns(self, convert: Convert | None) -> Iterator[tuple[str, pa.DictionaryArray | pa.ChunkedArray]]:
        """Yield the columns by name: ids as dictionaries, others as `plain` returns them after `convert`.

        The builder holds no column that it has yielded.
        """
        for name in self._order:
            if name in self._texts:
                yield name, self._texts.pop(name).finish(name, self._source)
            else:
                whole = self._concatenate(name, self._others.pop(name))
                yield name, plain(whole if convert is None or name in self._hive else convert(name, whole))

    def _concatenate(self, name: str, chunks: list[pa.Array | pa.ChunkedArray]) -> pa.ChunkedArray:
        """Concatenate the chunks with the narrowest type that holds them all. Raises DataSourceError without one."""
        kinds = sorted({str(chunk.type) for chunk in chunks})
        tables = [pa.table({name: chunk}) for chunk in chunks]
        # Arrow finds no common type of texts and their dictionaries.
        if len(kinds) > 1:
            tables = [pa.table({name: plain(table.column(name))}) for table in tables]
        try:
            return pa.concat_tables(tables, promote_options="permissive").column(name)
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            raise DataSourceError(
                f"{self._source}: the column {name} mixes {', '.join(kinds)}; give it one type"
            ) from None


def as_text(column: pa.Array | pa.ChunkedArray, name: str, where: str) -> pa.Array:
    """Return an id column as text. A dictionary of text with int32 codes and no null in it stays a dictionary.

    Accepts integers, text, booleans, whole decimals, dates, times, floats that are all missing, and dictionaries of
    these. Raises DataSourceError for all other types and values.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if _is_text_dictionary(column):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_floating(kind) and column.null_count < len(column):
        raise DataSourceError(
            f"{where}: the id column {name} holds floating point numbers, where 1 would become 1.0; a blank turns "
            "integers into floats in many tools: write the column as integers or text (csv: `dtype: {"
            f"{name}: int}}`, a query: CAST({name} AS BIGINT))"
        )
    if pa.types.is_decimal(kind):
        column = _whole_decimals(column, name, where)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        raise DataSourceError(
            f"{where}: the id column {name} is of type {kind}, bytes; ids are text or whole numbers: write the column "
            f"as text, from Arrow table[{name!r}].cast('string'), in a query CAST({name} AS VARCHAR) or HEX({name})"
        )
    if pa.types.is_nested(kind):
        raise DataSourceError(
            f"{where}: the id column {name} is of type {kind}; ids and labels are text or whole numbers, and only a "
            "column of kind multi_label may have lists"
        )
    try:
        return column.cast(_TEXT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataSourceError(f"{where}: the id column {name} cannot be read as text: {error}") from None


def _whole_decimals(column: pa.Array, name: str, where: str) -> pa.Array:
    """Return decimals without their decimal places, which would make 17850.00 of the id 17850.

    Raises DataSourceError if a value is not a whole number.
    """
    whole = pa.decimal128(38, 0) if pa.types.is_decimal128(column.type) else pa.decimal256(76, 0)
    try:
        return column.cast(whole)
    except pa.ArrowInvalid:
        fractions = column.filter(pc.not_equal(pc.floor(column), column))
        example = f", such as {fractions[0]}" if len(fractions) else ""
        raise DataSourceError(
            f"{where}: the id column {name} holds numbers that are not whole{example}: is it the column of ids?"
        ) from None


def _is_text_dictionary(column: pa.Array) -> bool:
    kind = column.type
    if not pa.types.is_dictionary(kind) or kind.index_type != pa.int32() or column.dictionary.null_count:
        return False
    return bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))


def _by_appearance(columns: list[pa.DictionaryArray]) -> tuple[pa.Array, list[Codes]]:
    """Return the texts that rows use, in order of first appearance, and for each chunk the codes of its rows.

    Dictionaries of a file may be in any order and have texts that no row uses.
    """
    chunks = pa.chunked_array(columns).unify_dictionaries().chunks
    indices = pa.chunked_array([chunk.indices for chunk in chunks])
    order = indices.unique().drop_null()
    rank = np.full(len(chunks[-1].dictionary) + 1, -1, np.int32)  # the last element stands for missing values
    rank[arrow.codes(order)] = np.arange(len(order))
    return chunks[-1].dictionary.take(order).cast(_TEXT), [rank[arrow.codes(part)] for part in indices.chunks]


class _TextColumn:
    """Codes of the rows added so far, and the distinct texts in order of first appearance.

    Rows are buffered as text and encoded together, because one hash table for many rows is cheaper than one per batch.
    """

    def __init__(self) -> None:
        self._known = pa.nulls(0, _TEXT)
        self._codes: list[Codes] = []
        self._waiting: list[pa.Array] = []
        self._waiting_bytes = 0

    def add(self, texts: pa.Array) -> None:
        # A chunked array has one type, and files may store an id as text or as a dictionary.
        if self._waiting and self._waiting[0].type != texts.type:
            self._encode()
        self._waiting.append(texts)
        self._waiting_bytes += texts.nbytes
        if self._waiting_bytes > _WAITING_BYTES:
            self._encode()

    def _encode(self) -> None:
        waiting = [texts for texts in self._waiting if len(texts)]
        self._waiting, self._waiting_bytes = [], 0
        if not waiting:
            return
        if pa.types.is_dictionary(waiting[0].type):
            dictionary, rows = _by_appearance(waiting)
        else:
            chunks = pa.chunked_array(waiting).dictionary_encode().chunks
            dictionary, rows = chunks[-1].dictionary, [arrow.codes(chunk.indices) for chunk in chunks]
        indices = pc.index_in(dictionary, value_set=self._known)
        fresh = dictionary.filter(pc.is_null(indices))
        # The code -1 of a missing value selects this last element.
        codes = np.append(arrow.codes(indices), np.int32(-1))
        codes[:-1][codes[:-1] < 0] = np.arange(len(fresh)) + len(self._known)
        self._known = pa.concat_arrays([self._known, fresh])
        self._codes.extend(codes[part] for part in rows)

    def finish(self, name: str, where: str) -> pa.DictionaryArray:
        """Return the column. Raises DataSourceError if a text is not UTF-8."""
        self._encode()
        codes = np.concatenate(self._codes) if self._codes else np.empty(0, np.int32)
        self._codes = []
        try:
            # Here and not for each batch, because Arrow must look at every byte, and here each text stands once.
            self._known.validate(full=True)
        except pa.ArrowInvalid:
            raise DataSourceError(f"{where}: the id column {name} holds text that is not UTF-8") from None
        return pa.DictionaryArray.from_arrays(arrow.integers(codes), self._known)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with dictionaries decoded, decimals as floats and dates as timestamps of midnight."""
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array([piece.dictionary_decode() for piece in column.chunks], type=column.type.value_type)
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string()).cast(pa.float64())  # Arrow's cast to a float is not the nearest number
    # Arrow turns dates into Python objects in pandas: a million take 18 ms, and 1 ms as timestamps.
    return column.cast(pa.timestamp("s")) if pa.types.is_date(column.type) else column


def _in_pandas(column: pa.DictionaryArray | pa.ChunkedArray) -> Any:
    if pa.types.is_dictionary(column.type):
        categories = pd.CategoricalDtype(pd.Index(column.dictionary.to_pandas()))
        codes = arrow.codes(column.indices)
        return pd.Categorical.from_codes(codes, dtype=categories, validate=False)  # type: ignore[call-arg, arg-type, unused-ignore]
    # Int64 has no room for the upper half of uint64.
    if column.null_count and pa.types.is_integer(column.type) and column.type != pa.uint64():
        return column.cast(pa.int64()).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    if column.null_count and pa.types.is_boolean(column.type):
        return column.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
    return column.to_pandas()
