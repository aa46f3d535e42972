"""Parquet files with a footer that states fewer bytes than their pages have."""

from __future__ import annotations

import io
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def chunks(content: bytes) -> list[pq.ColumnChunkMetaData]:
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [group.column(number) for group in groups for number in range(group.num_columns)]


def padded(number: int, n_bytes: int) -> bytes:
    """Return a number in Thrift's encoding, with more bytes than it needs."""
    parts = [(number << 1 >> 7 * place) & 127 | 128 for place in range(n_bytes)]
    return bytes([*parts[:-1], parts[-1] & 127])


def footer_says(content: bytes, size: int, instead: int) -> bytes:
    """Return the file with another uncompressed size in its footer and the same pages."""
    start = len(content) - 8 - struct.unpack("<I", content[-8:-4])[0]
    n_bytes = next(count for count in range(1, 11) if size << 1 < 1 << 7 * count)
    footer = content[start:].replace(padded(size, n_bytes), padded(instead, n_bytes))
    assert footer != content[start:]
    return content[:start] + footer


def large_cell(values: Any) -> bytes:
    """Return a file of a few kilobytes with one large page and a footer that states 1,000 bytes."""
    out = io.BytesIO()
    options: dict[str, Any] = {"use_dictionary": False, "compression": "zstd", "data_page_size": 1 << 30}
    pq.write_table(pa.table({"item_id": values}), out, **options)
    (chunk,) = chunks(out.getvalue())
    return footer_says(out.getvalue(), chunk.total_uncompressed_size, 1000)
