"""The files of an export: three formats with the same rows."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.export.conftest import MODELS, N_USERS, Artifact, Export, manifest_of, rows_of


@pytest.mark.parametrize("family", MODELS)
def test_all_formats_have_the_same_rows(artifact: Artifact, recommend: Export, tmp_path: Path, family: str) -> None:
    """Parquet, csv and JSON lines agree in every row, in ids that need quotes, and in all bits of the scores."""
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


def test_a_parquet_file_has_row_groups_of_bounded_size(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group is written once it is full. Only the leading id has statistics. No column is nullable."""
    sizes = {256 * 7: [256 * 7, 256 * 7, (N_USERS - 512) * 7], 256 * 7 + 1: [512 * 7, (N_USERS - 512) * 7]}
    for limit, expected in reversed(sizes.items()):
        monkeypatch.setattr("svc.export.formats.ROW_GROUP", limit)
        assert recommend(artifact("factors"), "--output", tmp_path / "out.parquet", "--limit", "7") == 0
        found = pq.read_metadata(tmp_path / "out.parquet")
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        assert [group.num_rows for group in groups] == expected
    columns = [groups[0].column(number) for number in range(4)]
    assert [column.is_stats_set for column in columns] == [True, False, False, False]
    assert [column.has_dictionary_page for column in columns] == [True, False, True, False]
    assert {column.compression for column in columns} == {"SNAPPY"}
    assert not any(field.nullable for field in pq.read_schema(tmp_path / "out.parquet"))
