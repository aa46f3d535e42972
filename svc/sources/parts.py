"""The files of a csv or parquet source: one file, or all files of a folder or a pattern in sorted order.

A folder is read recursively: all files with the extension of the source's type. In a pattern, `*`, `?` and `[...]`
match inside one path segment, and `**` matches any number of segments. Names that begin with `_` or `.` are skipped,
because Spark and Hive use them for markers, unless a segment of the pattern begins with the same character. A folder
`name=value` is a Hive partition and adds a text column.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

from svc.errors import DataSourceError, RecipeError
from svc.logs import redact_text
from svc.recipe.paths import LOCAL, Location
from svc.recipe.source_options import FileOptions
from svc.sources import files, objects
from svc.sources.base import SourceContext
from svc.sources.files import DataFile

_FORMATS = {
    "_delta_log": "is a Delta table, whose folder also has removed rows: set `type: delta`",
    ".hoodie": "is a Hudi table, whose folder also has replaced rows: svc does not read Hudi; write its current "
    "rows as Parquet to another folder",
    "metadata": "is an Iceberg table, whose folder also has removed rows: set `type: iceberg`",
}
"""What a folder is by the name of a folder in it. Only `metadata` is also used by other tools."""
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
READ_AHEAD = 8
"""Number of small objects to fetch, each in one request, while earlier objects are parsed."""
SMALL_OBJECT_BYTES = 8 << 20
_ICEBERG = ".metadata.json"
_MAGIC = re.compile(r"[*?\[]")
_REMOTE_MAGIC = re.compile(r"[*\[]")  # s3://bucket/key?versionId=... names one object
_BUCKET_SEGMENTS = 3  # scheme, empty, bucket

Hive = Mapping[str, str | None]
Opener = Callable[[], AbstractContextManager[DataFile]]


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a source. `where` names it in messages.

    `hive` has the value of each Hive partition column, or None for Hive's null.
    """

    where: str
    open: Opener
    hive: Hive = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _ListedFile:
    """A listed file: its location, its path as the recipe would write it, and its size in bytes if it is an object."""

    location: Location
    name: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern for paths below the folder `base`, with one segment per folder level.

    Without segments it matches the whole folder.
    """

    base: str
    segments: tuple[str, ...]

    def matches(self, names: Sequence[str], extensions: tuple[str, ...]) -> bool:
        """Return whether the pattern matches the file at the path `names` below the base, or one of its folders.

        A file in a matching folder must also end with one of the `extensions`. A file with a hidden name in its path is
        never matched (see `_is_hidden`).
        """
        if any(_is_hidden(name, self.segments) for name in names):
            return False
        return _fits(self.segments, names) or (
            names[-1].lower().endswith(extensions)
            and any(_fits(self.segments, names[:depth]) for depth in range(len(names)))
        )

    def may_hold(self, names: Sequence[str]) -> bool:
        """Return whether files below the folder `names` may match. Other folders are never listed."""
        if _is_hidden(names[-1], self.segments):
            return False
        if len(names) > len(self.segments) or "**" in self.segments[: len(names)]:
            return True
        return fnmatchcase(names[-1], self.segments[len(names) - 1])


def _is_hidden(name: str, segments: Sequence[str]) -> bool:
    """Return whether `name` begins with `_` or `.`, and no segment of the pattern begins with the same character."""
    return name.startswith(("_", ".")) and not any(segment[:1] == name[0] for segment in segments)


def _fits(segments: Sequence[str], names: Sequence[str]) -> bool:
    if not segments:
        return not names
    if segments[0] == "**":
        return any(_fits(segments[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], segments[0]) and _fits(segments[1:], names[1:])


def find_parts(
    options: FileOptions, context: SourceContext, extensions: tuple[str, ...], *, part: files.Part = "all"
) -> Iterator[Part]:
    """Yield the files of the source in sorted order. A path to one file is yielded even if the file is missing.

    `extensions` (lower case) select files in folders. With another `part` than "all", only this part of a single file
    over http(s) is fetched, and small objects are not prefetched.

    Raises DataSourceError if a folder or pattern has no matching file. Raises RecipeError if a sha256 is given for a
    folder or a pattern, and for a pattern in the name of a bucket.
    """
    location = options.location
    where = files.address_of(location, context)
    with files.file_errors(where):
        pattern = _pattern(location, context)
    if pattern is None:
        yield Part(where, lambda: files.open_location(location, context, sha256=options.sha256, part=part))
        return
    if options.sha256 is not None:
        raise RecipeError(f"{where}: sha256 is for one file, and this is a folder or a pattern; leave sha256 out")
    with files.file_errors(where):
        listed = _list_files(location, pattern, context, plain=".parquet" in extensions)
        matching = [entry for entry in listed if pattern.matches(_below(entry.name, pattern.base), extensions)]
    if not matching:
        kinds = " or ".join(extensions)
        raise DataSourceError(
            f"{where} holds no file to read: files of a folder end with {kinds}, and names that begin with _ or . are "
            "left out"
        )
    yield from _open_ahead(sorted(matching, key=lambda entry: entry.name), context, ahead=part == "all")


def probe_first(
    options: FileOptions,
    context: SourceContext,
    extensions: tuple[str, ...],
    probe_file: Callable[[DataFile, Hive], list[str]],
    *,
    part: files.Part,
) -> list[str]:
    """Return the lines of `probe_file` for the first file, of which only `part` is fetched as in `find_parts`.

    For a folder or a pattern, a line with the number of its files comes first. Raises DataSourceError.
    """
    parts = list(find_parts(options, context, extensions, part=part))
    with parts[0].open() as file:
        lines = probe_file(file, parts[0].hive)
    where = files.address_of(options.location, context)
    return lines if parts[0].where == where else [f"{where}: {len(parts)} files", *lines]


def first_rows_are_all(options: FileOptions, context: SourceContext) -> bool:
    """Return whether a source with fewer rows than a sample has no others: no folder, and nothing over http(s)."""
    return not options.location.is_http and _pattern(options.location, context) is None


def _pattern(location: Location, context: SourceContext) -> _Pattern | None:
    """Return the pattern of a folder or a path with wildcards, or None for a path that is read as one file."""
    if location.is_http:
        return None
    if location.is_remote:
        return _remote_pattern(location, context)
    text, path = str(location.path), location.resolve(context.base_dir)
    if path.is_dir():
        return _Pattern(text, ())
    # The name of an existing file may have brackets.
    if path.exists() or not _MAGIC.search(text):
        return None
    return _cut(text, 0, lambda folder: (context.base_dir / folder).is_dir())


def _remote_pattern(location: Location, context: SourceContext) -> _Pattern | None:
    """Return the pattern of an address in an object store, as `_pattern` does.

    An address that looks like a file needs no request to the store.
    """
    uri = location.uri
    if _REMOTE_MAGIC.search(uri):
        kind = objects.kind(location, context.settings)
        if kind is not None:
            return None if kind == "file" else _Pattern(uri.rstrip("/"), ())
        pattern = _cut(uri, _BUCKET_SEGMENTS, lambda _: False)
        if pattern is None:
            raise RecipeError(f"{files.address_of(location, context)}: a pattern cannot stand in the name of a bucket")
        return pattern
    if uri.endswith("/"):
        return _Pattern(uri.rstrip("/"), ())
    if "." in uri.rpartition("/")[2] or objects.kind(location, context.settings) != "directory":
        return None
    return _Pattern(uri, ())


def _cut(text: str, least: int, is_folder: Callable[[str], bool]) -> _Pattern | None:
    """Split a path before its first segment with a wildcard, and return the pattern.

    A path that `is_folder` has no wildcard, because names of folders may have brackets. Returns None without a
    wildcard, and if that segment is before segment `least`.
    """
    segments = text.rstrip("/").split("/")
    wild = (index for index, segment in enumerate(segments) if _MAGIC.search(segment))
    first = next((index for index in wild if not is_folder("/".join(segments[: index + 1]))), -1)
    if first < least:
        return None
    root = "/" if text.startswith("/") else ""
    return _Pattern("/".join(segments[:first]) or root, tuple(segments[first:]))


def _below(name: str, base: str) -> list[str]:
    return name[len(base) :].strip("/").split("/")


def _require_plain(folder: Path) -> None:
    """Raise DataSourceError if the folder, or the folder whose partition or data it is, is one of a table format."""
    while True:
        for name, text in _FORMATS.items():
            if (folder / name).is_dir() and (name != "metadata" or any((folder / name).glob(f"*{_ICEBERG}"))):
                raise DataSourceError(f"{folder} {text}")
        # Iceberg keeps its data in `data`, beside `metadata`.
        if "=" not in folder.name and folder.name != "data":
            return
        folder = folder.parent


def _require_plain_objects(uris: Iterable[str]) -> None:
    """Raise DataSourceError if one of the objects is of a table format."""
    for uri in uris:
        *folders, last = uri.split("/")
        for name, text in _FORMATS.items():
            if name in folders and (name != "metadata" or (folders[-1] == name and last.endswith(_ICEBERG))):
                raise DataSourceError(f"{redact_text('/'.join(folders[: folders.index(name)]))} {text}")


def _list_files(location: Location, pattern: _Pattern, context: SourceContext, *, plain: bool) -> Iterator[_ListedFile]:
    """Yield the files that the pattern may match. With `plain`, raise DataSourceError for a table format."""
    if location.is_remote:
        listed = objects.list_files(pattern.base, context.settings)
        if plain:
            _require_plain_objects(uri for uri, _ in listed)
        for uri, size in listed:
            yield _ListedFile(Location(location.scheme, uri, None), uri, size)
        return
    base = context.base_dir / pattern.base
    for path, names in _walk(base, [], pattern, (os.path.realpath(base),), plain=plain):
        yield _ListedFile(Location(LOCAL, str(path), path), "/".join([pattern.base.rstrip("/"), *names]))


def _walk(
    folder: Path, names: list[str], pattern: _Pattern, above: tuple[str, ...], *, plain: bool
) -> Iterator[tuple[Path, list[str]]]:
    """Yield each file below `folder` with its path below the base.

    Raises DataSourceError for a cycle of links, and with `plain` for a table format.
    """
    if plain:
        _require_plain(folder)
    with os.scandir(folder) as entries:
        # The order of `scandir` differs between file systems, and `keep_last` depends on the order of rows.
        children = sorted(entries, key=lambda entry: entry.name)
    for entry in children:
        path, below = folder / entry.name, [*names, entry.name]
        if entry.is_dir():
            if not pattern.may_hold(below):
                continue
            real = os.path.realpath(path)
            if real in above:
                raise DataSourceError(f"{path} is a link to a folder that contains it")
            yield from _walk(path, below, pattern, (*above, real), plain=plain)
        else:
            yield path, below


def _hive(name: str) -> dict[str, str | None]:
    """Return the Hive partition columns in the folders of a path."""
    pairs = (segment.partition("=") for segment in name.split("/")[:-1])
    # Hive and Spark write special characters of partitions as %XX.
    return {
        unquote(key): None if value == HIVE_NULL else unquote(value) for key, equals, value in pairs if equals and key
    }


def _open_ahead(entries: Sequence[_ListedFile], context: SourceContext, *, ahead: bool) -> Iterator[Part]:
    """Yield each file as a part. At most READ_AHEAD prefetched objects are in memory besides the parsed one."""
    pool = ThreadPoolExecutor(READ_AHEAD, "svc-read-ahead")
    waiting: deque[tuple[_ListedFile, Future[bytes] | None]] = deque()
    rest = iter(entries)
    try:
        while True:
            while len(waiting) < (READ_AHEAD if ahead else 1) and (entry := next(rest, None)) is not None:
                waiting.append((entry, _fetch(pool, entry, context) if ahead else None))
            if not waiting:
                return
            yield _part(*waiting.popleft(), context)
    finally:
        # Without waiting, so that an error is reported before downloads of other objects end.
        pool.shutdown(wait=False, cancel_futures=True)


def _fetch(pool: ThreadPoolExecutor, entry: _ListedFile, context: SourceContext) -> Future[bytes] | None:
    """Start to fetch a small object. Returns None for larger objects and local files, which are read in pieces."""
    if entry.size is None or entry.size > SMALL_OBJECT_BYTES:
        return None
    return pool.submit(objects.read_whole, entry.location, entry.size, context.settings)


def _part(entry: _ListedFile, fetched: Future[bytes] | None, context: SourceContext) -> Part:
    where = files.address_of(entry.location, context)
    hive = _hive(entry.name)
    if fetched is None:
        return Part(where, lambda: files.open_location(entry.location, context), hive)
    # `result` and not its value, so that a failed download is reported when its file is opened.
    return Part(where, lambda: files.in_memory(fetched.result, where), hive)
