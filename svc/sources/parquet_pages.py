"""The headers of the pages of a Parquet file: the sizes that decoding really allocates.

The footer states sizes too, but Arrow decodes by the page headers, and a file may state less in its footer.
Headers are Thrift structs in the compact protocol.
"""

from __future__ import annotations

from typing import IO, NamedTuple

import pyarrow.parquet as pq

_MOST_LEVELS = 4
_MOST_VARINT_BYTES = 10
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, 12
_SIZE, _STORED_SIZE = 2, 3
_DATA_HEADERS = (5, 8)
"""Fields of a page header: bytes after and before decompression, and the headers of data pages of both versions."""
_N_VALUES = 1
Struct = dict[int, "int | Struct"]


class ChunkSize(NamedTuple):
    """The values of a column chunk, and its bytes after decompression."""

    n_values: int
    n_bytes: int


def chunk_size(file: IO[bytes], chunk: pq.ColumnChunkMetaData) -> ChunkSize:
    """Return the size of a column chunk by its page headers. Raises ValueError for a broken one.

    Pages after the last value of the footer are not read, as Arrow does not read them.
    """
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    end, n_values, n_bytes = start + chunk.total_compressed_size, 0, 0
    file.seek(start)
    while n_values < chunk.num_values and file.tell() < end:
        header = _struct(file)
        sizes = [header.get(field) for field in (_SIZE, _STORED_SIZE)]
        counts = [data.get(_N_VALUES) for field in _DATA_HEADERS if isinstance(data := header.get(field), dict)]
        for number in (*sizes, *counts):
            if not isinstance(number, int) or number < 0:
                raise ValueError("the header of a page lacks a size")
        n_bytes += sizes[0]  # type: ignore[operator]
        n_values += sum(counts)  # type: ignore[arg-type]
        file.seek(sizes[1], 1)  # type: ignore[arg-type]
    return ChunkSize(n_values, n_bytes)


def _struct(file: IO[bytes], level: int = 1) -> Struct:
    """Read a struct and return its integers and structs by field."""
    if level > _MOST_LEVELS:
        raise ValueError("the header of a page has too many levels")
    fields: Struct = {}
    field = 0
    while head := _byte(file):
        step, kind = head >> 4, head & 15
        field = field + step if step else _integer(file)
        if kind in _INTEGERS:
            fields[field] = _integer(file)
        elif kind == _STRUCT:
            fields[field] = _struct(file, level + 1)
        elif kind == _BINARY:
            file.seek(_varint(file), 1)
        elif kind in (_BYTE, _DOUBLE):
            file.seek(8 if kind == _DOUBLE else 1, 1)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"the header of a page has a field of type {kind}")
    return fields


def _integer(file: IO[bytes]) -> int:
    number = _varint(file)
    return (number >> 1) ^ -(number & 1)


def _varint(file: IO[bytes]) -> int:
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
