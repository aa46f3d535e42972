"""The manifest beside an export, and the merging of parts into one export.

A manifest has the number of rows, the model, and digests that prove that the export is complete. It is written after
the files that it describes. So a reader that waits for the manifest never reads half an export. If an export overwrites
an earlier one, the earlier manifest stays until the end, so the reader must also compare the digests.

A merge checks that all parts exist, are undamaged and of one model and request, and then writes a manifest for them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from svc import events, logs
from svc.artifact.store import open_folder
from svc.errors import DataSourceError, ExportDamaged, ExportIncomplete, UsageError
from svc.export.formats import format_of
from svc.export.request import Shard, part_name, source_context
from svc.recipe.paths import parse_location
from svc.settings import Settings
from svc.sources.base import SourceContext
from svc.sources.files import HashingFile, open_location

SUFFIX: Final = ".manifest.json"
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one written file.

    `path` is the name of the file, without its folder. `skipped` counts ids that the model does not know. `empty`
    counts ids with nothing left to rank. `asked` is the request, which is the same in all parts of one export. `shard`
    is `index/count`, or None for a whole export.
    """

    path: str
    rows: int
    sha256: str
    bytes: int
    model_version: str
    skipped: int
    empty: int
    asked: Mapping[str, Any]
    shard: str | None = None


@dataclass(frozen=True, slots=True)
class MergedManifest:
    """The manifest of an export in several files. Each of `parts` has `path`, `rows` and `sha256`."""

    rows: int
    model_version: str
    skipped: int
    empty: int
    asked: Mapping[str, Any]
    parts: list[dict[str, Any]] = field(default_factory=list)


def encode(manifest: Manifest | MergedManifest) -> bytes:
    fields = {name: value for name, value in asdict(manifest).items() if (name, value) != ("shard", None)}
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()


def read(uri: str, context: SourceContext) -> Manifest:
    """Return the manifest of one part. Raises ExportIncomplete if the file cannot be read or is no manifest."""
    try:
        with open_location(parse_location(uri), context) as file:
            return TypeAdapter(Manifest).validate_json(file.file.read(MAX_BYTES))
    except DataSourceError as error:
        raise ExportIncomplete(f"a part is missing: {error.message}; run its shard again") from error
    except ValidationError:
        raise ExportIncomplete(f"{uri} is not the manifest of an export; run its shard again") from None


def merge(output: str, count: int | None, settings: Settings) -> MergedManifest:
    """Check the parts of `output` and write their manifest beside it.

    No rows are copied. `count` is the number of shards. If it is None, it is read from the names of the manifests
    beside `output`.

    Raises ExportIncomplete, and writes nothing, if a part is missing, damaged, or of another model or request. If
    `count` is None, raises UsageError if the names give several counts, or if the output is on a web server, which
    lists no files. Raises ArtifactReadError if the folder cannot be listed, and ArtifactWriteError if the manifest
    cannot be written.
    """
    format_of(output)
    folder, name = open_folder(output, settings)
    context = source_context(settings)
    count = _count(folder.names(), output, name) if count is None else count
    parts: list[Manifest] = []
    for index in range(count):
        path = part_name(name, Shard(index, count))
        part = read(folder.uri_of(path + SUFFIX), context)
        _compare(part, parts[0] if parts else part, path, f"{index}/{count}")
        parts.append(part)
    # All manifests are compared before a part is read, because reading takes longer.
    for part in parts:
        _verify(folder.uri_of(part.path), part, context)
    merged = MergedManifest(
        rows=sum(part.rows for part in parts),
        model_version=parts[0].model_version,
        skipped=sum(part.skipped for part in parts),
        empty=sum(part.empty for part in parts),
        asked=parts[0].asked,
        parts=[{"path": part.path, "rows": part.rows, "sha256": part.sha256} for part in parts],
    )
    folder.put(lambda out: out.write(encode(merged)), lambda _: name + SUFFIX)
    logs.emit(events.EXPORT_MERGED, output=folder.uri_of(name), parts=count, rows=merged.rows)
    return merged


def merge_if_complete(output: str, count: int, settings: Settings) -> MergedManifest | None:
    """Merge the parts if all of them exist.

    Every shard of a job may end with this call, because the last shard to finish finds all parts. Emits an event and
    returns None if a part is missing or of another export. Two shards that finish at the same moment write the same
    manifest. Raises ExportDamaged if a part does not match its manifest, and ArtifactWriteError if the manifest cannot
    be written.
    """
    try:
        return merge(output, count, settings)
    # Not the same as a missing part: no later shard repairs it.
    except ExportDamaged:
        raise
    except ExportIncomplete as error:
        logs.emit(events.EXPORT_NOT_MERGED, output=output, reason=error.message)
        return None


def _compare(part: Manifest, first: Manifest, path: str, shard: str) -> None:
    """Raise ExportIncomplete for a part of another model, request or shard."""
    if part.path != path or part.shard != shard:
        raise ExportIncomplete(f"{path}{SUFFIX} describes {part.path}, shard {part.shard}; run shard {shard} again")
    for what, values, expected in (
        ("model", part.model_version, first.model_version),
        ("request", part.asked, first.asked),
    ):
        if values != expected:
            raise ExportIncomplete(
                f"{path} is of another {what} than {first.path}: {values} and {expected}; run the older shards again"
            )


def _verify(uri: str, part: Manifest, context: SourceContext) -> None:
    """Read the part at `uri` once, and raise ExportDamaged unless its digest is that of the manifest.

    Raises ExportIncomplete if it cannot be read.
    """
    hashing = HashingFile()
    try:
        with open_location(parse_location(uri), context) as file:
            shutil.copyfileobj(file.file, hashing)
    except DataSourceError as error:
        raise ExportIncomplete(f"a part is missing: {error.message}; run shard {part.shard} again") from error
    if hashing.sha256 != part.sha256:
        raise ExportDamaged(f"{uri} does not match its manifest; run shard {part.shard} again")


def _count(names: Iterable[str] | None, output: str, name: str) -> int:
    """Return the number of shards, from the names of the parts' manifests among `names`, beside the output.

    Raises ExportIncomplete if no part has a manifest. Raises UsageError if the names give several numbers, or if
    `names` is None, because a web server lists no files.
    """
    if names is None:
        raise UsageError("--merge: a web server lists no files; give the number of parts with --shards")
    stem, _, extension = name.rpartition(".")
    pattern = re.compile(rf"{re.escape(stem)}\.\d+-of-(\d+)\.{re.escape(extension + SUFFIX)}")
    counts = sorted({int(match[1]) for manifest_name in names if (match := pattern.fullmatch(manifest_name))})
    if not counts:
        raise ExportIncomplete(f"{output} has no parts yet: run `svc recommend --shard I/N --output {output}` first")
    if len(counts) > 1:
        listed = ", ".join(map(str, counts))
        raise UsageError(f"--merge: there are parts of {listed} shards; choose the ones to merge with --shards")
    return counts[0]
