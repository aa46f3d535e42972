"""The files of an export: three formats that hold the same rows."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.export.conftest import MODELS, Artifact, Export, manifest_of, rows_of


@pytest.mark.parametrize("family", MODELS)
def test_formats_hold_the_same_rows(artifact: Artifact, recommend: Export, tmp_path: Path, family: str) -> None:
    """Parquet, csv and JSON lines agree on every row, ids that need quotes among them, and scores to the last bit."""
    source = artifact(family)
    paths = [tmp_path / f"out.{extension}" for extension in ("parquet", "csv", "jsonl")]
    for path in paths:
        assert recommend(source, "--output", path, "--limit", "7") == 0
    first, second, third = map(rows_of, paths)
    assert first == second == third
    assert list(first[0]) == ["user_id", "rank", "item_id", "score"]
    assert [str(kind) for kind in pq.read_schema(paths[0]).types] == ["string", "int32", "string", "double"]
    for path in paths:
        manifest = manifest_of(path)
        assert manifest["rows"] == len(first)
        assert manifest["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert manifest["bytes"] == path.stat().st_size
        assert manifest["model_version"] == "sha256:" + hashlib.sha256(Path(source).read_bytes()).hexdigest()
        assert manifest["skipped"] == 0
    assert manifest["empty"] == (1 if family == "neighbours" else 0)
