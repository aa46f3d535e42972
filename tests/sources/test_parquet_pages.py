"""Sizes of Parquet pages from their headers."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.sources.parquet_pages import chunk_size
from tests.sources.lying_parquet import chunks, large_cell

ROWS = 5000


def written(**options: Any) -> bytes:
    table = pa.table(
        {
            "text": [f"text {row % 97}" for row in range(ROWS)],
            "number": [None if row % 5 == 0 else row / 3 for row in range(ROWS)],
            "tags": [["a", "b"][: row % 3] for row in range(ROWS)],
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("use_dictionary", [False, True])
@pytest.mark.parametrize("data_page_size", [1 << 20, 500])
def test_the_sizes_of_all_pages_add_up_to_the_footer(
    version: str, compression: str, use_dictionary: bool, data_page_size: int
) -> None:
    """The sum in the footer of an honest file includes the headers, of at most 200 bytes each."""
    content = written(
        data_page_version=version,
        compression=compression,
        use_dictionary=use_dictionary,
        data_page_size=data_page_size,
        write_batch_size=100,
        row_group_size=2000,
    )
    for chunk in chunks(content):
        size = chunk_size(io.BytesIO(content), chunk)
        assert size.n_values == chunk.num_values
        assert 0.5 * chunk.total_uncompressed_size < size.n_bytes <= chunk.total_uncompressed_size


def changed(content: bytes, position: int, byte: int) -> bytes:
    return content[:position] + bytes([byte]) + content[position + 1 :]


@given(st.integers(4, 400), st.integers(0, 255))
def test_any_header_is_read_or_refused(position: int, byte: int) -> None:
    """A changed byte in a header gives a size or a ValueError."""
    content = written()
    for chunk in chunks(content):
        try:
            assert min(chunk_size(io.BytesIO(changed(content, position, byte)), chunk)) >= 0
        except ValueError as error:
            assert "header of a page" in str(error)


@pytest.mark.parametrize(
    "header", [b"\x1c" * 100, b"\x15" + b"\xff" * 20, b"\x19", b"\x15\x01\x15\x01\x00", b"\x15", b"\x00"], ids=repr
)
def test_a_broken_header_is_refused(header: bytes) -> None:
    """The headers have too many levels, a number too long, a list, a negative size, an early end, or no sizes."""
    content = written()
    chunk = chunks(content)[0]
    start = chunk.dictionary_page_offset
    with pytest.raises(ValueError, match="header of a page"):
        chunk_size(io.BytesIO(content[:start] + header), chunk)


def test_a_footer_with_a_smaller_size_has_no_effect() -> None:
    """The size comes from the page headers."""
    content = large_cell(["x" * 10_000_000])
    (chunk,) = chunks(content)
    assert chunk.total_uncompressed_size == 1000
    assert chunk_size(io.BytesIO(content), chunk).n_bytes > 10_000_000
