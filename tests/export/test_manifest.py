"""The manifest of an export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from svc.errors import ExportIncomplete
from svc.export.manifest import SUFFIX, Manifest, MergedManifest, encode, read
from svc.export.run import source_context
from svc.settings import Settings

PART = Manifest(
    path="all.0-of-2.csv",
    rows=7,
    sha256="0" * 64,
    bytes=70,
    model_version="sha256:1",
    skipped=1,
    empty=0,
    asked={"users": "all", "limit": 10, "related": False},
    shard="0/2",
)


def test_a_manifest_is_read_back(tmp_path: Path) -> None:
    """The manifest names the shard of a part. It has one field per line, because users read it too."""
    path = tmp_path / f"all.csv{SUFFIX}"
    path.write_bytes(encode(PART))
    assert read(str(path), source_context(Settings())) == PART
    whole = Manifest(**{**PART.as_dict(), "shard": None})
    assert "shard" not in json.loads(encode(whole))
    assert encode(replace(PART, path="ü.csv")).decode().startswith('{\n  "path": "ü.csv",\n  "rows": 7,\n')


def test_an_invalid_manifest_is_refused_with_advice(tmp_path: Path) -> None:
    """The file is missing, is not JSON, or is the manifest of a merged export."""
    path = tmp_path / f"all.csv{SUFFIX}"
    merged = MergedManifest(rows=0, model_version="sha256:1", skipped=0, empty=0, asked={})
    for content in (None, b"rows: 7", encode(merged)):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ExportIncomplete, match="run its shard again"):
            read(str(path), source_context(Settings()))
