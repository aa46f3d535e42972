"""The sizes that decoding the pages of a Parquet file allocates.

The footer of a hostile file may state sizes that are too small, but Arrow allocates by the page headers. Page headers
are Thrift structs in the compact protocol. All functions that read a page raise ValueError if it is broken.

Decoding texts, which here include binary values, can take more bytes than a page header states:

- The codes of a dictionary repeat its texts.
- DELTA_BYTE_ARRAY stores the length of the prefix that a text shares with the text before, and Arrow writes the prefix
  out.
- In both delta encodings of texts, the page states its number of lengths, and Arrow allocates by it unchecked.

Spark writes delta encodings if `parquet.writer.version` of the Parquet library is `v2`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

DELTA_ENCODINGS = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings that Arrow cannot read into a dictionary."""
# Numbers from parquet.thrift: encodings, then kinds of pages.
_DELTA_LENGTHS, _DELTA_TEXTS = 6, 7
_CODES = (2, 8)
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_MOST_AT_ONCE = 1 << 16
"""Maximum number of lengths in a block, and of codes unpacked at once. Writers make blocks of 128 or 256 lengths."""
_MOST_LEVELS = 4
_MOST_VARINT_BYTES = 10
# Field types of Thrift's compact protocol. It has three sizes of integers, all stored as varints.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, 12
_KIND, _SIZE, _STORED_SIZE = 1, 2, 3
_DATA_HEADERS = (5, 8)
"""Fields of a page header: kind, bytes after and before decompression, and the data headers of versions 1 and 2."""
_N_VALUES = 1
Struct = dict[int, "int | Struct"]


def texts_size(file: IO[bytes], chunk: pq.ColumnChunkMetaData, leaf: pq.ColumnSchema, *, as_codes: bool) -> int:
    """Return the bytes that decoding adds to the pages of a column chunk of texts.

    With `as_codes`, Arrow keeps the dictionary codes, so the texts of the dictionary add nothing. Raises ValueError for
    a broken page.
    """
    n_bytes, lengths = 0, np.empty(0, np.int64)
    for page in pages(file, chunk):
        if page.kind == _DICTIONARY and not as_codes:
            lengths = _text_lengths(_content(file, chunk, page))
        if page.kind not in (_DATA, _DATA_2):
            continue
        encoding = _field(page, 2 if page.kind == _DATA else 4)
        if encoding in (_DELTA_LENGTHS, _DELTA_TEXTS):
            n_bytes += _repeated_bytes(_values(file, chunk, page, leaf), page.n_values, encoding)
        elif encoding in _CODES and not as_codes:
            n_bytes += _coded_bytes(_values(file, chunk, page, leaf), page.n_values, lengths)
    return n_bytes


def _field(page: Page, field: int, default: int | None = None) -> int:
    """Return an integer field of the header of a data page, by its number in parquet.thrift."""
    data = page.header.get(5 if page.kind == _DATA else 8)
    number = data.get(field, default) if isinstance(data, dict) else None
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"the header of a data page lacks field {field}, or has no valid number there")
    return number


def _values(file: IO[bytes], chunk: pq.ColumnChunkMetaData, page: Page, leaf: pq.ColumnSchema) -> IO[bytes]:
    """Return the values of a data page, without the repetition and definition levels that precede them."""
    if page.kind == _DATA_2:
        n_levels = _field(page, 5) + _field(page, 6)  # bytes of both kinds of levels, which are never compressed
        return io.BytesIO(_content(file, chunk, page, n_levels, compressed=bool(_field(page, 7, 1))))
    content = io.BytesIO(_content(file, chunk, page))
    for highest in (leaf.max_repetition_level, leaf.max_definition_level):
        if highest:
            content.seek(int.from_bytes(content.read(4), "little"), 1)
    return content


def _content(
    file: IO[bytes], chunk: pq.ColumnChunkMetaData, page: Page, skipped: int = 0, *, compressed: bool = True
) -> bytes:
    """Return the bytes of a page after its first `skipped` ones, decompressed."""
    file.seek(page.start + skipped)
    stored = file.read(max(page.n_stored - skipped, 0))
    if chunk.compression == "UNCOMPRESSED" or not compressed or not stored:
        return stored
    if chunk.compression == "LZ4":
        # Two formats have this name. If svc and Arrow chose different ones, svc would measure the wrong content.
        raise ValueError("texts of a DELTA encoding are not read from pages compressed by lz4: take zstd or snappy")
    n_bytes = max(page.n_bytes - skipped, 0)
    content: bytes = pa.decompress(stored, n_bytes, chunk.compression.lower(), asbytes=True)
    return content


def _repeated_bytes(content: IO[bytes], n_values: int, encoding: int) -> int:
    """Return the bytes of the prefixes that the texts of a page share with the text before.

    For DELTA_LENGTH_BYTE_ARRAY only check the number of lengths and return 0.
    """
    lengths = _lengths(content, n_values)
    if encoding == _DELTA_LENGTHS:
        return 0
    _lengths(content, n_values)  # check the count of suffixes too, because Arrow trusts it
    return int(lengths.sum())


def _lengths(content: IO[bytes], n_values: int) -> NDArray[np.int64]:
    """Read the lengths of at most `n_values` texts, stored as DELTA_BINARY_PACKED."""
    in_block, n_parts, n_lengths, first = (varint(content), varint(content), varint(content), integer(content))
    if n_lengths > n_values:
        raise ValueError("a page has more lengths than values")
    # The format requires parts of a multiple of 32 lengths.
    if not 0 < in_block <= _MOST_AT_ONCE or not n_parts or in_block % (32 * n_parts):
        raise ValueError(f"a page has blocks of {in_block} lengths in {n_parts} parts")
    in_part, n_left, sizes = in_block // n_parts, n_lengths - 1, [np.array([first % 2**32][:n_lengths], np.uint64)]
    while n_left > 0:
        least = np.uint64(integer(content) % 2**32)
        for width in content.read(n_parts).ljust(n_parts, b"\xff"):  # _unpack refuses 255, so a missing width fails
            # Parts after the last length have a width but no data.
            if n_left > 0:
                sizes.append(_unpack(content.read(in_part * width // 8), width, min(in_part, n_left)) + least)
                n_left -= in_part
    # The format adds in 32 bits with overflow, and so does Arrow.
    lengths = np.cumsum(np.concatenate(sizes)).astype(np.uint32).view(np.int32)
    if len(lengths) and lengths.min() < 0:
        raise ValueError("a page has a text of a negative length")
    return lengths.astype(np.int64)


def _unpack(packed: bytes, width: int, count: int) -> NDArray[np.uint64]:
    """Return `count` numbers of `width` bits each."""
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")[: count * width]
    if width > 32 or len(bits) < count * width:
        raise ValueError("a page ends within its numbers")
    places = np.uint64(1) << np.arange(width, dtype=np.uint64)
    unpacked: NDArray[np.uint64] = bits.reshape(count, width).astype(np.uint64) @ places
    return unpacked


def _text_lengths(content: bytes) -> NDArray[np.int64]:
    """Return the lengths of the texts of a dictionary."""
    lengths, position = [], 0
    while position < len(content):
        lengths.append(int.from_bytes(content[position : position + 4], "little"))
        position += 4 + lengths[-1]
    return np.array(lengths, np.int64)


def _coded_bytes(content: IO[bytes], n_values: int, lengths: NDArray[np.int64]) -> int:
    """Return the bytes of the texts that the codes of a page stand for. `lengths` are those of the dictionary's texts.

    A page is a sequence of runs. A run stores either one code and how often it repeats, or groups of eight codes.
    """
    first = content.read(1)
    width, n_bytes, n_left = first[0] if first else 0, 0, n_values
    while n_left > 0 and (head := _run(content)):
        if head & 1:  # a run of groups of eight codes
            # A hostile header may state more groups than the page has values.
            groups = min(head >> 1, -(-n_left // 8))
            for start in range(0, groups, _MOST_AT_ONCE // 8):
                count = 8 * min(groups - start, _MOST_AT_ONCE // 8)
                codes = _unpack(content.read(count * width // 8), width, count)[:n_left]
                n_bytes += int(_lengths_of_codes(lengths, codes).sum())
                n_left -= count
        else:
            code = int.from_bytes(content.read((width + 7) // 8), "little")
            n_bytes += min(head >> 1, n_left) * int(_lengths_of_codes(lengths, np.array([code], np.uint64))[0])
            n_left -= head >> 1
    return n_bytes


def _run(content: IO[bytes]) -> int:
    """Return the header of the next run of codes, or 0 at the end of the page.

    A page may have fewer codes than values, because missing values have no code.
    """
    if not content.read(1):
        return 0
    content.seek(-1, 1)
    return varint(content)


def _lengths_of_codes(lengths: NDArray[np.int64], codes: NDArray[np.uint64]) -> NDArray[np.int64]:
    if len(codes) and codes.max() >= len(lengths):
        raise ValueError("a page names a text that its dictionary lacks")
    return lengths[codes.astype(np.int64)]


class Page(NamedTuple):
    """A page: its kind, number of values, bytes after decompression, and header.

    `start` is the offset in the file of the content after the header, and `n_stored` the number of its stored bytes.
    """

    kind: int
    n_values: int
    n_bytes: int
    header: Struct
    start: int
    n_stored: int


def chunk_size(file: IO[bytes], chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the number of values of a column chunk and their decompressed bytes, as its page headers state them.

    Raises ValueError for a broken header.
    """
    n_values, n_bytes = 0, 0
    for page in pages(file, chunk):
        n_values += page.n_values
        n_bytes += page.n_bytes
    return n_values, n_bytes


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
        # One byte has the type and the distance to the field before, or 0 if the number follows.
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
            # A boolean stands in its type and has no bytes of its own.
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
