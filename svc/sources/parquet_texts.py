"""The size of texts in Parquet pages with encodings that let a small page expand to many bytes.

DELTA_BYTE_ARRAY stores, for each text, the length of the prefix shared with the text before. Arrow writes the prefix
out, and allocates by the counts in front of the lengths. Version 2 of Spark's writer makes such pages.
"""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa

from svc.sources.parquet_pages import integer, pages, varint

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from svc.sources.parquet_pages import Page

DELTA_ENCODINGS = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings that Arrow cannot read into a dictionary."""
_DELTA_LENGTHS, _DELTA_TEXTS = 6, 7
_CODES = (2, 8)
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_MOST_AT_ONCE = 1 << 16
"""Most lengths in a block, and most codes unpacked at once. Writers make blocks of 128 or 256 lengths."""


def texts_size(file: IO[bytes], chunk: pq.ColumnChunkMetaData, leaf: pq.ColumnSchema, *, as_codes: bool) -> int:
    """Return the bytes that decoding adds to the pages of a column chunk of texts.

    With `as_codes` dictionary pages are not decoded. Raises ValueError for a broken page.
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
    """Return an integer field of the header of a data page."""
    data = page.header.get(5 if page.kind == _DATA else 8)
    number = data.get(field, default) if isinstance(data, dict) else None
    if not isinstance(number, int) or number < 0:
        raise ValueError("the header of a page lacks the place of its values")
    return number


def _values(file: IO[bytes], chunk: pq.ColumnChunkMetaData, page: Page, leaf: pq.ColumnSchema) -> IO[bytes]:
    """Return the values of a data page, without the levels before them."""
    if page.kind == _DATA_2:
        n_levels = _field(page, 5) + _field(page, 6)
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
        # There are two formats of this name. If svc guessed another than Arrow, it would measure another content.
        raise ValueError("texts of a DELTA encoding are not read from pages compressed by lz4: take zstd or snappy")
    n_bytes = max(page.n_bytes - skipped, 0)
    content: bytes = pa.decompress(stored, n_bytes, chunk.compression.lower(), asbytes=True)
    return content


def _repeated_bytes(content: IO[bytes], n_values: int, encoding: int) -> int:
    """Return the bytes of the prefixes that the texts of a page share with the text before."""
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
    if not 0 < in_block <= _MOST_AT_ONCE or not n_parts or in_block % (32 * n_parts):
        raise ValueError(f"a page has blocks of {in_block} lengths in {n_parts} parts")
    in_part, n_left, sizes = in_block // n_parts, n_lengths - 1, [np.array([first % 2**32][:n_lengths], np.uint64)]
    while n_left > 0:
        least = np.uint64(integer(content) % 2**32)
        for width in content.read(n_parts).ljust(n_parts, b"\xff"):
            if n_left > 0:
                sizes.append(_unpack(content.read(in_part * width // 8), width, min(in_part, n_left)) + least)
                n_left -= in_part
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
    """Return how many bytes the texts of a dictionary-coded page take.

    The codes come as runs of one code and as groups of eight.
    """
    first = content.read(1)
    width, n_bytes, n_left = first[0] if first else 0, 0, n_values
    while n_left > 0 and (head := _run(content)):
        if head & 1:
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
    """Return the head of the next run, or 0 at the end: missing values have no code, so it may come early."""
    if not content.read(1):
        return 0
    content.seek(-1, 1)
    return varint(content)


def _lengths_of_codes(lengths: NDArray[np.int64], codes: NDArray[np.uint64]) -> NDArray[np.int64]:
    if len(codes) and codes.max() >= len(lengths):
        raise ValueError("a page names a text that its dictionary lacks")
    return lengths[codes.astype(np.int64)]
