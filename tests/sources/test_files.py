"""Opening the file that a source names: verified, bounded, and named in every message."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest

from svc.errors import DataSourceError, SourceTooLarge
from svc.recipe.source_options import CsvOptions
from svc.settings import Settings
from svc.sources.base import SourceContext
from svc.sources.files import CappedReader, DataFile, explained, in_memory, open_file


@pytest.fixture
def context(tmp_path: Path) -> SourceContext:
    return SourceContext(tmp_path, Settings(), None, frozenset(), "interactions", {}, None)


def test_a_file_is_read_where_the_recipe_lies(context: SourceContext, tmp_path: Path) -> None:
    """With its size; a digest that the recipe gives must hold."""
    (tmp_path / "a.csv").write_bytes(b"u,i\n")
    digest = hashlib.sha256(b"u,i\n").hexdigest()
    with open_file(CsvOptions(path="a.csv", sha256=digest), context) as found:
        assert (found.file.read(), found.size, found.where) == (b"u,i\n", 4, str(tmp_path / "a.csv"))
    with (
        pytest.raises(DataSourceError, match="is not the expected file"),
        open_file(CsvOptions(path="a.csv", sha256="0" * 64), context),
    ):
        raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(), "x does not exist"),
        (IsADirectoryError(), "x is a folder"),
        (PermissionError(), "permission denied"),
        (OSError(5, "Input/output error"), "x cannot be read: Input/output error"),
    ],
)
def test_what_the_file_system_says_is_said_of_the_file(error: OSError, words: str) -> None:
    """One error class, whatever failed."""
    with pytest.raises(DataSourceError, match=words), explained("x"):
        raise error


def test_only_regular_files_are_opened(context: SourceContext, tmp_path: Path) -> None:
    """A pipe would hang for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, words in (("pipe", "no regular file"), ("folder", "is a folder"), ("none", "does not exist")):
        with pytest.raises(DataSourceError, match=words), open_file(CsvOptions(path=name), context):
            raise AssertionError("it was opened")


def test_bytes_in_memory_are_a_file(context: SourceContext) -> None:
    """As the objects of a store that are small enough."""
    with in_memory(lambda: b"abc", "s3://bucket/a") as found:
        assert (found.file.read(), found.size, found.where) == (b"abc", 3, "s3://bucket/a")


def test_a_stream_ends_at_its_cap(context: SourceContext, records: list[dict[str, Any]]) -> None:
    """What expands further is refused with an event; without a cap everything is read."""
    for cap, reads in ((None, True), (10, True), (9, False)):
        found = DataFile(io.BytesIO(), "a.csv.gz", 4, cap)
        reader = io.BufferedReader(CappedReader(io.BytesIO(b"0123456789"), found, context), buffer_size=4)
        if reads:
            assert reader.read() == b"0123456789"
        else:
            with pytest.raises(SourceTooLarge, match="expands to more than 9 bytes"):
                reader.read()
    assert len(records) == 1
