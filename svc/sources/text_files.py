"""Streams of the text in a file: decompressed, in lines of bounded length, with one character between two fields."""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, TextIO, cast

import pyarrow as pa

from svc.errors import DataSourceError
from svc.recipe.source_options import Compression
from svc.sources.base import SourceContext
from svc.sources.files import CappedReader, DataFile

CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zip": "zip"}
"""The compression that each ending of a file name stands for."""
_BEGINNINGS: Final = {"gzip": b"\x1f\x8b", "bz2": b"BZh", "zip": b"PK"}
"""The first bytes of compressed files. A zstd file has no single beginning."""
_MARKS = {
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "UTF-16: set `encoding: utf-16`"),
    b"\xef\xbb\xbf": "UTF-8: set `encoding: utf-8`",
    b"\x1f\x8b": "compressed: set `compression: gzip`",
    b"\x28\xb5\x2f\xfd": "compressed: set `compression: zstd`",
    b"BZh": "compressed: set `compression: bz2`",
    b"PK\x03\x04": "a zip archive: set `compression: zip`, or save the sheet as CSV if it is from Excel",
    b"PAR1": "a Parquet file: set `type: parquet`",
}
"""What a file is, and the option for it, by its first bytes."""
ARCHIVE_ERRORS: Final = (zipfile.BadZipFile, zlib.error)
_TABLES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
_SHOWN_MEMBERS: Final = 10
MARK: Final = "\x1f"
"""The character that replaces a delimiter of several characters. ASCII calls it the unit separator."""
MAX_LINE_CHARACTERS: Final = 1 << 20
_PIECE_CHARACTERS: Final = 1 << 16


def kind_of(start: bytes) -> str | None:
    """Return what a file with this beginning is, and the option for it, or None if it may be plain text in UTF-8."""
    return next((text for mark, text in _MARKS.items() if start.startswith(mark)), None)


def open_stream(file: DataFile, compression: Compression, context: SourceContext) -> CappedReader:
    """Return the decompressed content of `file` from its start.

    Raises DataSourceError for a zip archive that does not hold exactly one table.
    """
    codec = _codec(file, compression)
    file.file.seek(0)
    if codec is None:
        return CappedReader(file.file, file, context)
    if codec == "zip":
        return CappedReader(_open_member(file), file, context)
    packed = pa.PythonFile(CappedReader(file.file, file, context), mode="r")
    # Wrapped twice, because Arrow closes the file that it reads from, and `file` is read again to explain a fault.
    return CappedReader(pa.CompressedInputStream(packed, codec), file, context)


def is_whole_archive(file: DataFile, compression: Compression) -> bool:
    """Return False for the beginning of a zip archive, which cannot be opened, because its directory is at its end."""
    return file.whole or _codec(file, compression) != "zip"


def _codec(file: DataFile, compression: Compression) -> str | None:
    """Return the compression of the file, or None if it is plain.

    With `infer`, a file with an ending such as .gz is plain if it does not begin as such files do: clients of web
    servers often decompress a file and keep its name.
    """
    if compression != "infer":
        return None if compression == "none" else compression
    codec = next((codec for ending, codec in CODECS.items() if file.where.lower().endswith(ending)), None)
    beginning = _BEGINNINGS.get(codec or "", b"")
    file.file.seek(0)
    return codec if file.file.read(len(beginning)) == beginning else None


def _open_member(file: DataFile) -> BinaryIO:
    """Return the one table in a zip archive. Names that begin with a dot, and macOS' own files, do not count."""
    try:
        archive = zipfile.ZipFile(file.file)
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
        names = [name for name in names if not name.rpartition("/")[2].startswith(".")]
        tables = [name for name in names if name.lower().endswith(_TABLES)] or names
        if len(tables) == 1:
            return cast("BinaryIO", archive.open(tables[0]))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # the last one: it needs a password
        raise DataSourceError(f"{file.where} cannot be read as a zip archive: {str(error)[:300]}") from None
    shown = ", ".join(tables[:_SHOWN_MEMBERS]) + (", ..." if len(tables) > _SHOWN_MEMBERS else "")
    raise DataSourceError(
        f"{file.where} holds {len(tables)} tables, and one is read{f': {shown}' if tables else ''}; unpack it and name "
        "one of them in `path`"
    )


def bounded_lines(text: TextIO) -> Iterator[str]:
    """Yield the lines. Raises csv.Error for a line of more than MAX_LINE_CHARACTERS, before reading all of it."""
    # Not `for line in text`, which would read a line of any length into memory.
    while line := text.readline(MAX_LINE_CHARACTERS):
        if len(line) == MAX_LINE_CHARACTERS and not line.endswith(("\n", "\r")):
            raise csv.Error(f"the line has more than {MAX_LINE_CHARACTERS} characters")
        yield line


class SingleDelimiter(io.RawIOBase):
    """The text in UTF-8, with MARK in place of a delimiter of several characters, which no parser takes.

    Raises csv.Error if the text holds MARK itself, or has a line of more than MAX_LINE_CHARACTERS.
    """

    def __init__(self, text: TextIO, delimiter: str) -> None:
        self._lines = bounded_lines(text)
        self._delimiter = delimiter
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._ready = self._ready or memoryview(self._next_piece())
        piece, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def _next_piece(self) -> bytes:
        lines, size = [], 0
        for line in self._lines:
            lines.append(line)
            size += len(line)
            if size >= _PIECE_CHARACTERS:
                break
        piece = "".join(lines)
        if MARK in piece:
            raise csv.Error(f"the text holds the control character {MARK!r}, so a `delimiter` must be one character")
        # Pieces are whole lines, so that no delimiter is cut in two.
        return piece.replace(self._delimiter, MARK).encode()
