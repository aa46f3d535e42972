"""The page headers of a Parquet file, which give the sizes that decoding allocates.

The footer of a hostile file may give smaller sizes, but Arrow decodes by the page headers. They are Thrift structs in
the compact protocol.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LEVELS = 4
_MOST_VARINT_BYTES = 10
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, 12
_KIND, _SIZE, _STORED_SIZE = 1, 2, 3
_DATA_HEADERS = (5, 8)
"""Fields of a page header: kind, bytes after and before decompression, and the data headers of versions 1 and 2."""
_N_VALUES = 1
Struct = dict[int, "int | Struct"]


class Page(NamedTuple):
    """A page: its kind, number of values, bytes after decompression, header, and its offset and bytes in the file."""

    kind: int
    n_values: int
    n_bytes: int
    header: Struct
    start: int
    n_stored: int


class ChunkSize(NamedTuple):
    """The number of values of a column chunk, and its bytes after decompression."""

    n_values: int
    n_bytes: int


def chunk_size(file: IO[bytes], chunk: pq.ColumnChunkMetaData) -> ChunkSize:
    """Return the size of a column chunk by its page headers. Raises ValueError for a broken one."""
    n_values, n_bytes = 0, 0
    for page in pages(file, chunk):
        n_values += page.n_values
        n_bytes += page.n_bytes
    return ChunkSize(n_values, n_bytes)


def pages(file: IO[bytes], chunk: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """Yield the pages of a column chunk. Raises ValueError for a broken header.

    Like Arrow, it stops at the footer's number of values.
    """
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    end, n_values = start + chunk.total_compressed_size, 0
    while n_values < chunk.num_values and start < end:
        file.seek(start)
        header = _struct(file)
        numbers = [header.get(field) for field in (_KIND, _SIZE, _STORED_SIZE)]
        counts = [data.get(_N_VALUES) for field in _DATA_HEADERS if isinstance(data := header.get(field), dict)]
        stated = [number for number in (*numbers, *counts) if isinstance(number, int) and number >= 0]
        if len(stated) < len(numbers) + len(counts):
            raise ValueError("the header of a page lacks a size")
        kind, n_bytes, n_stored = stated[:3]
        start = file.tell()
        yield Page(kind, sum(stated[3:]), n_bytes, header, start, n_stored)
        start += n_stored
        n_values += sum(stated[3:])


def _struct(file: IO[bytes], level: int = 1) -> Struct:
    """Read a struct and return its integers, booleans and structs by field."""
    if level > _MOST_LEVELS:
        raise ValueError("the header of a page has too many levels")
    fields: Struct = {}
    field = 0
    while head := _byte(file):
        step, kind = head >> 4, head & 15
        field = field + step if step else integer(file)
        if field in fields:
            raise ValueError("the header of a page has a field twice")
        if kind in _INTEGERS:
            fields[field] = integer(file)
        elif kind == _STRUCT:
            fields[field] = _struct(file, level + 1)
        elif kind == _BINARY:
            file.seek(varint(file), 1)
        elif kind in (_BYTE, _DOUBLE):
            file.seek(8 if kind == _DOUBLE else 1, 1)
        elif kind in (_TRUE, _FALSE):
            fields[field] = int(kind == _TRUE)
        else:
            raise ValueError(f"the header of a page has a field of type {kind}")
    return fields


def integer(file: IO[bytes]) -> int:
    """Read a signed integer, zigzag-encoded."""
    number = varint(file)
    return (number >> 1) ^ -(number & 1)


def varint(file: IO[bytes]) -> int:
    """Read an unsigned integer of up to 64 bits."""
    number = 0
    for position in range(_MOST_VARINT_BYTES):
        part = _byte(file)
        number |= (part & 127) << (7 * position)
        if part < 128:
            return number
    raise ValueError("the header of a page has a number of more than 64 bits")


def _byte(file: IO[bytes]) -> int:
    read = file.read(1)
    if not read:
        raise ValueError("the file ends within the header of a page")
    return read[0]
