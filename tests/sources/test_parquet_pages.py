"""Sizes of Parquet pages from their headers."""

from __future__ import annotations

import io
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from svc.sources.parquet_pages import _lengths, chunk_size, texts_size
from tests.sources.lying_parquet import chunks, large_cell
from tests.sources.test_bounds import fetched

ROWS = 5000


@cache
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
    """The sum in the footer of an honest file includes the headers, of at most 200 bytes each.

    A footer that states more values has no effect: no page after the end of the chunk is read.
    """
    content = written(
        data_page_version=version,
        compression=compression,
        use_dictionary=use_dictionary,
        data_page_size=data_page_size,
        write_batch_size=100,
        row_group_size=2000,
    )
    for chunk in chunks(content):
        n_values, n_bytes = chunk_size(io.BytesIO(content), chunk)
        assert n_values == chunk.num_values
        assert 0.5 * chunk.total_uncompressed_size < n_bytes <= chunk.total_uncompressed_size
        lying = SimpleNamespace(
            data_page_offset=chunk.data_page_offset,
            dictionary_page_offset=chunk.dictionary_page_offset,
            total_compressed_size=chunk.total_compressed_size,
            num_values=chunk.num_values + 1,
        )
        assert chunk_size(io.BytesIO(content), cast(pq.ColumnChunkMetaData, lying)) == (n_values, n_bytes)


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
    assert chunk_size(io.BytesIO(content), chunk)[1] > 10_000_000


TEXTS = [f"a title {row % 997 * 31} of item {row}" for row in range(3000)]
COLUMNS = {
    "item_id": TEXTS,
    "gaps": [None if row % 3 else text for row, text in enumerate(TEXTS)],
    "tags": [[text, "x"][: row % 3] for row, text in enumerate(TEXTS)],
    "few": [f"kind {row * row % 7 * 'x'}" for row in range(len(TEXTS))],
    "runs": [f"run {row // 10}" for row in range(len(TEXTS))],
}
LEAVES = {name: COLUMNS[name] for name in ("item_id", "few", "runs")} | {
    "gaps": [text for text in COLUMNS["gaps"] if text],
    "tags.list.element": [tag for tags in COLUMNS["tags"] for tag in tags or ()],
}


def written_texts(encoding: str | None, **options: Any) -> bytes:
    out = io.BytesIO()
    chosen = {"column_encoding": dict.fromkeys(LEAVES, encoding), "use_dictionary": False} if encoding else {}
    pq.write_table(pa.table(COLUMNS), out, **chosen, **options)
    return out.getvalue()


def sizes(content: bytes) -> dict[str, int]:
    schema = pq.ParquetFile(io.BytesIO(content)).schema
    return {
        chunk.path_in_schema: texts_size(io.BytesIO(content), chunk, schema.column(number), as_codes=False)
        for number, chunk in enumerate(chunks(content))
    }


def repeated(texts: list[str]) -> int:
    pairs = (takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False)) for pair in pairwise(texts))
    return sum(len(list(same)) for same in pairs)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd"])
def test_repeated_text_bytes_are_counted_exactly(
    version: str, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts repeat prefixes of the text before, or texts of a dictionary, also among nulls, in lists and over steps."""
    monkeypatch.setattr("svc.sources.parquet_pages._MOST_AT_ONCE", 256)
    options = {"data_page_version": version, "compression": compression}
    assert sizes(written_texts("DELTA_BYTE_ARRAY", **options)) == {
        name: repeated(texts) for name, texts in LEAVES.items()
    }
    assert set(sizes(written_texts("DELTA_LENGTH_BYTE_ARRAY", **options)).values()) == {0}
    assert sizes(written_texts(None, **options)) == {name: sum(map(len, texts)) for name, texts in LEAVES.items()}


def read(folder: Path, content: bytes, **options: Any) -> Any:
    (folder / "list.parquet").write_bytes(content)
    return fetched(folder, SourceSpec.model_validate({"type": "parquet", "path": "list.parquet"}), **options)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_honest_files_are_read_by_servers_and_by_trainings(tmp_path: Path, encoding: str) -> None:
    """Pages with delta encodings are accepted if their sizes are within the bounds."""
    content = written_texts(encoding, data_page_size=4096, write_batch_size=100)
    assert list(read(tmp_path, content)["item_id"]) == TEXTS
    assert list(read(tmp_path, content, bounds=None)["item_id"]) == TEXTS


def test_a_page_that_states_more_lengths_than_values_is_refused(tmp_path: Path) -> None:
    """Arrow would allocate by the stated number. Both sequences of lengths are checked."""
    content = written_texts("DELTA_BYTE_ARRAY", compression="none")
    head, count, lie = b"\x80\x01\x04", b"\xb8\x17", b"\xff\x7f"
    assert content.count(head + count) >= 2
    first = content.index(head + count) + len(head)
    for start in (first, content.index(head + count, first) + len(head)):
        with pytest.raises(DataSourceError, match="a page has more lengths than values"):
            read(tmp_path, content[:start] + lie + content[start + 2 :])


@pytest.mark.parametrize("n_rows", [1, 128, 129, 257])
def test_pages_of_one_text_and_of_whole_blocks_are_counted_exactly(n_rows: int) -> None:
    """The first length is stored outside the blocks of 128."""
    out = io.BytesIO()
    table = pa.table({"item_id": TEXTS[:n_rows]})
    pq.write_table(table, out, column_encoding={"item_id": "DELTA_BYTE_ARRAY"}, use_dictionary=False)
    assert sizes(out.getvalue()) == {"item_id": repeated(TEXTS[:n_rows])}


def test_the_widths_of_unused_parts_of_a_block_have_no_effect() -> None:
    """A writer may store any width for them."""
    head, widths = b"\x80\x01\x04\x21\x0a\x00", b"\x00\xff\xff\xff"
    assert _lengths(io.BytesIO(head + widths), 33).tolist() == [5] * 33


def test_delta_pages_with_lz4_are_refused_with_advice(tmp_path: Path) -> None:
    """The footer does not tell the two formats of LZ4 apart."""
    with pytest.raises(DataSourceError, match="compressed by lz4: take zstd or snappy"):
        read(tmp_path, written_texts("DELTA_BYTE_ARRAY", compression="lz4"))


@given(st.sampled_from(["DELTA_BYTE_ARRAY", None]), st.integers(0, 2000), st.integers(0, 255))
def test_any_page_is_measured_or_refused(encoding: str | None, position: int, byte: int) -> None:
    """A changed byte in a page gives a size or a ValueError."""
    content = written_texts(encoding, compression="none")
    schema = pq.ParquetFile(io.BytesIO(content)).schema
    chunk = chunks(content)[0]
    damaged = content[: 4 + position] + bytes([byte]) + content[5 + position :]
    try:
        assert texts_size(io.BytesIO(damaged), chunk, schema.column(0), as_codes=False) >= 0
    except ValueError as error:
        assert "page" in str(error)
