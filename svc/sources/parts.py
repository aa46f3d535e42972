"""Which files a csv or parquet source consists of: one, or those of a folder or a pattern, in sorted order.

A folder is read with all folders below it: files with the extension of the source's type. A pattern names files or
folders with `*`, `?` and `[...]` inside one segment, and `**` for any number of segments. Files and folders whose
names begin with `_` or `.` are left out, as Spark and Hive leave their own markers there. A segment `name=value` is a
Hive partition: a column of text beside those of the file.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from svc.errors import DataSourceError, RecipeError
from svc.recipe.paths import LOCAL, Location
from svc.sources import files, objects
from svc.sources.files import DataFile

if TYPE_CHECKING:
    from svc.recipe.source_options import FileOptions
    from svc.sources.base import SourceContext

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
READ_AHEAD = 8
"""Small objects that are fetched while earlier ones are parsed: each costs several round trips otherwise."""
SMALL_OBJECT_BYTES = 8 << 20
_MAGIC = re.compile(r"[*?\[]")
_REMOTE_MAGIC = re.compile(r"[*\[]")  # s3://bucket/key?versionId=... names one object
_BUCKET_SEGMENTS = 3  # scheme, empty, bucket

Hive = Mapping[str, str | None]
Opener = Callable[[], AbstractContextManager[DataFile]]


@dataclass(frozen=True, slots=True)
class Part:
    """One file. `hive` has a value for each partition column, None where the partition is Hive's null."""

    where: str
    open: Opener
    hive: Hive = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    """A file of a listing: its address, its path as the recipe spells it, and for objects the size."""

    location: Location
    name: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What to look for below `base`: `segments` are matched one a folder level; empty means the whole folder."""

    base: str
    segments: tuple[str, ...]

    def matches(self, names: Sequence[str], extensions: tuple[str, ...]) -> bool:
        """Whether the file at `names` below the base is read: named itself, or in a folder that is."""
        if any(_is_hidden(name, self.segments) for name in names):
            return False
        return _fits(self.segments, names) or (
            names[-1].lower().endswith(extensions)
            and any(_fits(self.segments, names[:depth]) for depth in range(len(names)))
        )

    def may_hold(self, names: Sequence[str]) -> bool:
        """Whether files below the folder at `names` may match, so that other folders are not even listed."""
        if _is_hidden(names[-1], self.segments):
            return False
        if len(names) > len(self.segments) or "**" in self.segments[: len(names)]:
            return True
        return fnmatchcase(names[-1], self.segments[len(names) - 1])


def _is_hidden(name: str, segments: Sequence[str]) -> bool:
    """Names of markers and temporary files, unless the pattern spells the beginning of the name."""
    return name.startswith(("_", ".")) and not any(segment[:1] == name[0] for segment in segments)


def _fits(segments: Sequence[str], names: Sequence[str]) -> bool:
    if not segments:
        return not names
    if segments[0] == "**":
        return any(_fits(segments[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], segments[0]) and _fits(segments[1:], names[1:])


def is_many(options: FileOptions, context: SourceContext) -> bool:
    """Whether the path names a folder or a pattern. A file whose name looks like a pattern is that file."""
    return _explained_pattern(options.location, context) is not None


def find_parts(
    options: FileOptions, context: SourceContext, extensions: tuple[str, ...], *, ahead: bool = True
) -> Iterator[Part]:
    """The files of the source in sorted order; one for a path that is a file.

    `extensions` are those of files in folders, in lower case. With `ahead`, small objects are fetched before they are
    asked for. Raises DataSourceError where there is no file at all, RecipeError for a sha256 beside many files.
    """
    location = options.location
    pattern = _explained_pattern(location, context)
    if pattern is None:
        yield Part(files.shown(location, context), lambda: files.open_file(options, context))
        return
    where = files.shown(location, context)
    if options.sha256 is not None:
        raise RecipeError(f"{where}: sha256 is for one file, and this is a folder or a pattern; leave sha256 out")
    with files.explained(where):
        listed = _listed(location, pattern, context)
        found = [one for one in listed if pattern.matches(_below(one.name, pattern.base), extensions)]
    if not found:
        kinds = " or ".join(extensions)
        raise DataSourceError(
            f"{where} holds no file to read: files of a folder end with {kinds}, and names that begin with _ or . are "
            "left out"
        )
    yield from _opened_ahead(sorted(found, key=lambda one: one.name), context, ahead=ahead)


def first_part(options: FileOptions, context: SourceContext, extensions: tuple[str, ...], *, part: files.Part) -> Part:
    """The first file of the source. Where the path is one file over http(s), only its `part` is fetched."""
    if is_many(options, context):
        return next(find_parts(options, context, extensions, ahead=False))
    where = files.shown(options.location, context)
    return Part(where, lambda: files.open_file(options, context, part=part))


def probe_many(
    options: FileOptions,
    context: SourceContext,
    extensions: tuple[str, ...],
    look: Callable[[DataFile, Hive], list[str]],
) -> list[str]:
    """How many files there are, and what `look` says of the first. Raises DataSourceError."""
    parts = list(find_parts(options, context, extensions, ahead=False))
    with parts[0].open() as found:
        told = look(found, parts[0].hive)
    return [f"{files.shown(options.location, context)}: {len(parts)} files", *told]


def _explained_pattern(location: Location, context: SourceContext) -> _Pattern | None:
    with files.explained(files.shown(location, context)):
        return _pattern(location, context)


def _pattern(location: Location, context: SourceContext) -> _Pattern | None:
    """None for a path that is one file."""
    if location.is_http:
        return None
    if location.is_remote:
        return _remote_pattern(location, context)
    text, path = str(location.path), location.resolved(context.base_dir)
    if path.is_dir():
        return _Pattern(text, ())
    if path.exists() or not _MAGIC.search(text):
        return None
    return _cut(text, 0)


def _remote_pattern(location: Location, context: SourceContext) -> _Pattern | None:
    """The store is asked what lies there only where the address does not look like that of a file."""
    uri = location.uri
    if _REMOTE_MAGIC.search(uri):
        if objects.kind(location, context.settings) == "file":
            return None
        pattern = _cut(uri, _BUCKET_SEGMENTS)
        if pattern is None:
            raise RecipeError(f"{files.shown(location, context)}: a pattern cannot stand in the name of a bucket")
        return pattern
    if uri.endswith("/"):
        return _Pattern(uri.rstrip("/"), ())
    if "." in uri.rpartition("/")[2] or objects.kind(location, context.settings) != "directory":
        return None
    return _Pattern(uri, ())


def _cut(text: str, least: int) -> _Pattern | None:
    """The folder before the first wildcard, and the segments from there; None for one before segment `least`."""
    segments = text.rstrip("/").split("/")
    first = next(place for place, segment in enumerate(segments) if _MAGIC.search(segment))
    if first < least:
        return None
    root = "/" if text.startswith("/") else ""
    return _Pattern("/".join(segments[:first]) or root, tuple(segments[first:]))


def _below(name: str, base: str) -> list[str]:
    return name[len(base) :].strip("/").split("/")


def _listed(location: Location, pattern: _Pattern, context: SourceContext) -> Iterator[_Found]:
    if location.is_remote:
        for uri, size in objects.list_files(pattern.base, context.settings):
            yield _Found(Location(location.scheme, uri, None), uri, size)
        return
    base = context.base_dir / pattern.base
    for path, names in _walk(base, [], pattern, (os.path.realpath(base),)):
        yield _Found(Location(LOCAL, str(path), path), "/".join([pattern.base.rstrip("/"), *names]))


def _walk(
    folder: Path, names: list[str], pattern: _Pattern, above: tuple[str, ...]
) -> Iterator[tuple[Path, list[str]]]:
    """Files below `folder` and their names below the base. Raises DataSourceError for a link that leads back up."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path, below = folder / entry.name, [*names, entry.name]
        if entry.is_dir():
            if not pattern.may_hold(below):
                continue
            real = os.path.realpath(path)
            if real in above:
                raise DataSourceError(f"{path} is a link to a folder that it lies in")
            yield from _walk(path, below, pattern, (*above, real))
        else:
            yield path, below


def _hive(name: str) -> dict[str, str | None]:
    """The partition columns in the folders of a path."""
    pairs = (segment.partition("=") for segment in name.split("/")[:-1])
    return {
        unquote(key): None if value == HIVE_NULL else unquote(value) for key, equals, value in pairs if equals and key
    }


def _opened_ahead(found: Sequence[_Found], context: SourceContext, *, ahead: bool) -> Iterator[Part]:
    """Each file as a part. At most READ_AHEAD small objects are in memory beside the one that is parsed."""
    pool = ThreadPoolExecutor(READ_AHEAD, "svc-read-ahead")
    waiting: deque[tuple[_Found, Future[bytes] | None]] = deque()
    rest = iter(found)
    try:
        while True:
            while len(waiting) < (READ_AHEAD if ahead else 1) and (one := next(rest, None)) is not None:
                waiting.append((one, _fetch(pool, one, context) if ahead else None))
            if not waiting:
                return
            yield _part(*waiting.popleft(), context)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _fetch(pool: ThreadPoolExecutor, one: _Found, context: SourceContext) -> Future[bytes] | None:
    """The bytes of a small object, on their way; None for what is read in pieces."""
    if one.size is None or one.size > SMALL_OBJECT_BYTES:
        return None
    return pool.submit(objects.read_whole, one.location, one.size, context.settings)


def _part(one: _Found, fetched: Future[bytes] | None, context: SourceContext) -> Part:
    where = files.shown(one.location, context)
    hive = _hive(one.name)
    if fetched is None:
        return Part(where, lambda: files.open_location(one.location, context), hive)
    return Part(where, lambda: files.in_memory(fetched.result, where), hive)
