"""JSON lines: text files with one JSON object in each line. Arrow parses them in blocks of lines.

A nested field is a column with a dotted name, such as `user.id`. A field that some lines lack is missing there.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from svc.errors import DataSourceError
from svc.names import NULL_LINE
from svc.recipe.source_options import JsonlOptions
from svc.sources.dtypes import as_dtype
from svc.sources.files import DataFile, address_of
from svc.sources.parts import Hive, Part, find_parts, probe_first
from svc.sources.table import Finish, Table, TableBuilder, TableSource, require_columns, wanted_hive
from svc.sources.text_files import ARCHIVE_ERRORS, CODECS, is_whole_archive, kind_of, open_stream

if TYPE_CHECKING:
    import pandas

_EXTENSIONS = tuple(f"{kind}{suffix}" for kind in (".jsonl", ".ndjson", ".json") for suffix in ("", *CODECS))
_BLOCK_BYTES = 8 << 20
_BOUNDED_BLOCK_BYTES = 1 << 20
"""Block size for tables that a server reads, as in csv."""
_LINE_BYTES = 64 << 20
_ROW = re.compile(r" in row ([0-9]{1,9})$")
_SHOWN_BYTES = 60


class JsonlSource(TableSource[JsonlOptions]):
    """A source of one file of JSON lines or several, local or remote, plain or compressed."""

    type_name: ClassVar[str] = "jsonl"
    Config: ClassVar[type[JsonlOptions]] = JsonlOptions

    def _whole(self, finish: Finish[Table]) -> Table:
        where = address_of(self._config.location, self._context)
        builder, seen = TableBuilder(self._context, where), dict[str, None]()
        for part in find_parts(self._config, self._context, _EXTENSIONS):
            with part.open() as file, _parser_errors(file.where):
                for number, block in enumerate(self._tables(file)):
                    seen.update(dict.fromkeys([*block.column_names, *part.hive]))
                    self._add(builder, part, block, begins=number == 0)
        if not seen:
            raise DataSourceError(f"{where} is empty")
        require_columns([*(self._context.columns or ()), *self._config.dtype], seen, where)
        return finish(builder)

    def probe(self) -> list[str]:
        """Read the first lines. For a folder or pattern, read those of its first file."""
        return probe_first(self._config, self._context, _EXTENSIONS, self._probe_file, part="beginning")

    def _probe_file(self, file: DataFile, hive: Hive) -> list[str]:
        if not is_whole_archive(file, self._config.compression):
            return [f"{file.where}: answers; columns are checked when it is read"]
        with _parser_errors(file.where):
            first = next(self._tables(file), None)
        if first is None:
            raise DataSourceError(f"{file.where} is empty")
        names = first.column_names
        wanted = [*dict.fromkeys(self._context.columns or names), *wanted_hive(self._context, hive)]
        absent = [name for name in wanted if name not in names and name not in hive]
        if len(absent) == len(wanted):
            require_columns(absent, names, file.where)
        unseen = f"; the first lines have no {', '.join(absent)}" if absent else ""
        has = ", ".join(name for name in wanted if name not in absent)
        return [f"{file.where}: readable", f"{file.where}: has the columns {has}{unseen}"]

    def sample(self, n_rows: int) -> pandas.DataFrame | None:
        """Return the first rows of `fetch`. Over http(s) only the beginning of the file is read.

        Returns None if this beginning cannot be read or parsed, such as that of an archive.
        """
        part = next(find_parts(self._config, self._context, _EXTENSIONS, part="beginning"))
        try:
            with part.open() as file, _parser_errors(file.where):
                builder = TableBuilder(self._context, file.where)
                for number, block in enumerate(self._tables(file)):
                    self._add(builder, part, block.slice(0, n_rows - builder.n_rows), begins=number == 0)
                    if builder.n_rows >= n_rows:
                        break
                return builder.finish() if builder.names else None
        except DataSourceError:
            return None

    def _add(self, builder: TableBuilder, part: Part, block: pa.Table, *, begins: bool) -> None:
        """Add the wanted columns of `block`, or those of the first block. It `begins` a file or continues it."""
        # Without wanted columns those of the first block count, as the header of a csv file does.
        names = [name for name in self._context.columns or builder.names or block.column_names if name not in part.hive]
        missing = pa.nulls(block.num_rows)
        table = pa.table({name: block.column(name) if name in block.column_names else missing for name in names})
        if begins:
            builder.begin(part, table.schema)
        builder.add(table)

    def _tables(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield the flat columns of each block of lines."""
        texts, n_rows = pa.schema([]), 0
        for first, block in self._blocks(file):
            try:
                table, texts = _parse(block, first, texts, file.where)
            except (
                DataSourceError
            ):  # Arrow infers a type for every field, and refuses mixed types also if none reads it
                if (used := self._used_fields(block)) is None:
                    raise
                table, texts = _parse(used, first, texts, file.where)
            table = _flatten(table, self._config.explode, file.where)
            for index, name in enumerate(table.column_names):
                if name in self._config.dtype:
                    column = as_dtype(table.column(name), self._config.dtype[name], name, file.where, n_rows)
                    table = table.set_column(index, name, column)
            n_rows += table.num_rows
            yield table

    def _used_fields(self, block: bytes) -> bytes | None:
        """Return `block` without the fields that nobody reads, or None if all are read or a line is no object."""
        names = {*(self._context.columns or ()), *self._config.dtype}
        nested = [*names, f"{self._config.explode}."]
        inner = {name[: dot.start()] for name in nested for dot in re.finditer(r"\.", name)}

        def used(value: Any, path: str) -> Any:
            if isinstance(value, list):
                return [used(entry, path) for entry in value]
            if path in names or not isinstance(value, dict):
                return value
            paths = {key: f"{path}.{key}".removeprefix(".") for key in value}
            return {key: used(value[key], paths[key]) for key in value if paths[key] in names | inner}

        lines = block.split(b"\n")  # blank ones too, which count in messages
        try:
            # Arrow refuses a field that stands twice in an object, and json would take the last value.
            rows = [json.loads(line.decode(), object_pairs_hook=_unique) if line.strip() else {} for line in lines]
        except (ValueError, RecursionError):
            return None
        if self._context.columns is None or not all(isinstance(row, dict) for row in rows):
            return None
        return b"\n".join(
            json.dumps(used(row, "")).encode() if line.strip() else b"" for row, line in zip(rows, lines, strict=True)
        )

    def _blocks(self, file: DataFile) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines that are not all blank, with the number of the first line, from 1."""
        size = _BLOCK_BYTES if self._context.bounds is None else _BOUNDED_BLOCK_BYTES
        stream, first, rest = open_stream(file, self._config.compression, self._context), 1, b""
        content = io.BufferedReader(stream)
        while piece := content.read(size):
            rest = (rest + piece).removeprefix(b"\xef\xbb\xbf" if first == 1 else b"")
            end = rest.rfind(b"\n") + 1
            # Without a limit a file without line ends would be in memory whole.
            if not end and len(rest) > _LINE_BYTES:
                raise DataSourceError(f"{file.where}, line {first}: has more than {_LINE_BYTES} bytes")
            if rest[:end].strip():
                yield first, rest[:end]
            first, rest = first + rest.count(b"\n", 0, end), rest[end:]
        # The last line of a part may be cut.
        if rest.strip() and file.whole:
            yield first, rest


def _parse(block: bytes, first: int, texts: pa.Schema, where: str) -> tuple[pa.Table, pa.Schema]:
    """Return the objects in `block` as a table, and the fields that must be read as texts from now on.

    Arrow takes a text such as 2024-05-31 for a time, which would change ids, so these fields are read again as `texts`.

    Raises DataSourceError with the number of the first broken line. `first` is the number of the first line.
    """
    # One block: in smaller ones Arrow refuses long lines, and counts the rows of messages anew in each.
    options = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    if NULL_LINE.search(b"\n" + block):
        raise DataSourceError(f"{where}, {_fault(block, first, '')}")
    try:
        while True:
            table = pa_json.read_json(io.BytesIO(block), options, pa_json.ParseOptions(explicit_schema=texts))
            times = [pa.field(field.name, kind) for field in table.schema if (kind := _without_times(field.type))]
            if not times:
                table.validate(full=True)  # texts that are not UTF-8
                return table, texts
            texts = pa.unify_schemas([texts, pa.schema(times)], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataSourceError(f"{where}, {_fault(block, first, str(error))}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object. Raises ValueError if two have the same name."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields


def _without_times(kind: pa.DataType) -> pa.DataType | None:
    """Return the parts of a type that are times, as texts, or None without any."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        inner = _without_times(kind.value_type)
        return inner and pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = [pa.field(field.name, inner) for field in kind if (inner := _without_times(field.type))]
        return pa.struct(fields) if fields else None
    return None


def _fault(block: bytes, first: int, message: str) -> str:
    """Return a description of the first broken line, or of the row in Arrow's message."""
    if first == 1 and (kind := kind_of(block)):
        return f"line 1: it is {kind}"
    if first == 1 and block.lstrip().startswith(b"["):
        return "line 1: it is a JSON array; write one object in each line, as `jq -c '.[]'` does"
    lines = [(number, line) for number, line in enumerate(block.split(b"\n"), first) if line.strip()]
    for number, line in lines:
        shown = repr(line[:_SHOWN_BYTES].decode(errors="replace"))
        try:
            if not isinstance(json.loads(line.decode()), dict):
                return f"line {number}: is no JSON object: {shown}"
        except json.JSONDecodeError as error:
            return f"line {number}: {error.msg} at character {error.colno}: {shown}"
        except (UnicodeDecodeError, RecursionError) as error:
            return f"line {number}: {str(error)[:100]}"
    row = _ROW.search(message)
    number = lines[min(int(row[1]), len(lines) - 1)][0] if row else first
    return f"line {number}: {_ROW.sub('', message.removeprefix('JSON parse error: '))[:300]}"


def _flatten(table: pa.Table, explode: str | None, where: str) -> pa.Table:
    """Return the table with a column for each nested field, and a row for each entry of the list `explode`."""
    table = _without_structs(table)
    if explode is None:
        return table
    require_columns([explode], table.column_names, where)
    lists = table.column(explode).combine_chunks()
    if not pa.types.is_list(lists.type) and not pa.types.is_null(lists.type):
        raise DataSourceError(f"{where}: explode: {explode} is no list, but of type {lists.type}")
    entries = lists.flatten() if pa.types.is_list(lists.type) else lists.slice(0, 0)
    rows = pc.list_parent_indices(lists) if pa.types.is_list(lists.type) else pa.array([], pa.int64())
    table = table.drop_columns([explode])
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):  # a repeated text is stored once, so bounds are checked before it is copied
            table = table.set_column(index, field.name, table.column(index).dictionary_encode())
    return _without_structs(table.take(rows).append_column(explode, entries))


def _without_structs(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


@contextmanager
def _parser_errors(where: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, EOFError, *ARCHIVE_ERRORS) as error:
        raise DataSourceError(f"{where} cannot be read: {str(error)[:300]}") from error
