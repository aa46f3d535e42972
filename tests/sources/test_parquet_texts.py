"""The size of texts in Parquet pages, known before Arrow decodes them."""

from __future__ import annotations

import io
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError
from svc.recipe.source_options import SourceSpec
from svc.sources.parquet_texts import texts_size
from tests.sources.lying_parquet import chunks
from tests.sources.test_bounds import fetched

TEXTS = [f"a title {row % 997 * 31} of item {row}" for row in range(3000)]
COLUMNS = {
    "item_id": TEXTS,
    "gaps": [None if row % 3 else text for row, text in enumerate(TEXTS)],
    "tags": [[text, "x"][: row % 3] for row, text in enumerate(TEXTS)],
    "few": [f"kind {row * row % 7 * 'x'}" for row in range(len(TEXTS))],
}
LEAVES = {"item_id": TEXTS, "gaps": [text for text in COLUMNS["gaps"] if text], "few": COLUMNS["few"]} | {
    "tags.list.element": [tag for tags in COLUMNS["tags"] for tag in tags or ()]
}


def written(encoding: str | None, **options: Any) -> bytes:
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
def test_repeated_text_bytes_are_counted_exactly(version: str, compression: str) -> None:
    """Texts repeat prefixes of the text before, or texts of a dictionary, also among nulls and in lists."""
    options = {"data_page_version": version, "compression": compression}
    assert sizes(written("DELTA_BYTE_ARRAY", **options)) == {name: repeated(texts) for name, texts in LEAVES.items()}
    assert set(sizes(written("DELTA_LENGTH_BYTE_ARRAY", **options)).values()) == {0}
    assert sizes(written(None, **options)) == {name: sum(map(len, texts)) for name, texts in LEAVES.items()}


def read(folder: Path, content: bytes, **options: Any) -> Any:
    (folder / "list.parquet").write_bytes(content)
    return fetched(folder, SourceSpec.model_validate({"type": "parquet", "path": "list.parquet"}), **options)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_honest_files_are_read_by_servers_and_by_trainings(tmp_path: Path, encoding: str) -> None:
    """Pages with delta encodings are accepted if their sizes are within the bounds."""
    content = written(encoding, data_page_size=4096, write_batch_size=100)
    assert list(read(tmp_path, content)["item_id"]) == TEXTS
    assert list(read(tmp_path, content, bounds=None)["item_id"]) == TEXTS


def test_a_page_that_states_more_lengths_than_values_is_refused(tmp_path: Path) -> None:
    """Arrow would allocate by the stated number. Both sequences of lengths are checked."""
    content = written("DELTA_BYTE_ARRAY", compression="none")
    head, count, lie = b"\x80\x01\x04", b"\xb8\x17", b"\xff\x7f"
    assert content.count(head + count) >= 2
    first = content.index(head + count) + len(head)
    for start in (first, content.index(head + count, first) + len(head)):
        with pytest.raises(DataSourceError, match="a page has more lengths than values"):
            read(tmp_path, content[:start] + lie + content[start + 2 :])


def test_delta_pages_with_lz4_are_refused_with_advice(tmp_path: Path) -> None:
    """The footer does not tell the two formats of LZ4 apart."""
    with pytest.raises(DataSourceError, match="compressed by lz4: take zstd or snappy"):
        read(tmp_path, written("DELTA_BYTE_ARRAY", compression="lz4"))


@given(st.sampled_from(["DELTA_BYTE_ARRAY", None]), st.integers(0, 2000), st.integers(0, 255))
def test_any_page_is_measured_or_refused(encoding: str | None, position: int, byte: int) -> None:
    """A changed byte in a page gives a size or a ValueError."""
    content = written(encoding, compression="none")
    schema = pq.ParquetFile(io.BytesIO(content)).schema
    chunk = chunks(content)[0]
    damaged = content[: 4 + position] + bytes([byte]) + content[5 + position :]
    try:
        assert texts_size(io.BytesIO(damaged), chunk, schema.column(0), as_codes=False) >= 0
    except ValueError as error:
        assert "page" in str(error)
