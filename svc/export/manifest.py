"""The manifest beside an export.

It has the number of rows, the model, and digests that prove that the export is complete. It is written after the files
that it describes, so a reader that waits for it never reads half an export.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from svc.errors import DataSourceError, ExportIncomplete
from svc.recipe.paths import parse_location
from svc.sources.base import SourceContext
from svc.sources.files import open_location

SUFFIX: Final = ".manifest.json"
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of one written file.

    `skipped` counts ids that the model does not know. `empty` counts ids with no item left to recommend. `asked` is
    the request, which is the same in all parts of one export.
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

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return fields if self.shard is not None else {name: value for name, value in fields.items() if name != "shard"}


@dataclass(frozen=True, slots=True)
class MergedManifest:
    """Manifest of an export in several files. Each of `parts` has `path`, `rows` and `sha256`."""

    rows: int
    model_version: str
    skipped: int
    empty: int
    asked: Mapping[str, Any]
    parts: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def encode(manifest: Manifest | MergedManifest) -> bytes:
    return (json.dumps(manifest.as_dict(), indent=2, ensure_ascii=False) + "\n").encode()


def read(uri: str, context: SourceContext) -> Manifest:
    """Return the manifest of one part. Raises ExportIncomplete if the file is missing or is no manifest."""
    try:
        with open_location(parse_location(uri), context) as file:
            return TypeAdapter(Manifest).validate_json(file.file.read(MAX_BYTES))
    except DataSourceError as error:
        raise ExportIncomplete(f"a part is missing: {error.message}; run its shard again") from error
    except ValidationError:
        raise ExportIncomplete(f"{uri} is no manifest of an export; run its shard again") from None
