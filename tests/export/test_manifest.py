"""The manifests of an export and of its parts, and the merge of parts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from svc.errors import ExportIncomplete
from svc.export.manifest import SUFFIX, Manifest, MergedManifest, encode, read
from svc.export.run import source_context
from svc.settings import Settings
from tests.export.conftest import N_USERS, Artifact, Export, manifest_of, rows_of
from tests.object_store import ObjectsInMemory

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
    """The manifest of a part names its shard. A manifest has one field per line, because users read it too."""
    path = tmp_path / f"all.csv{SUFFIX}"
    path.write_bytes(encode(PART))
    assert read(str(path), source_context(Settings())) == PART
    whole = Manifest(**{**asdict(PART), "shard": None})
    assert "shard" not in json.loads(encode(whole))
    assert encode(replace(PART, path="ü.csv")).decode().startswith('{\n  "path": "ü.csv",\n  "rows": 7,\n')


def test_an_invalid_manifest_is_refused_with_advice(tmp_path: Path) -> None:
    """A missing file, other text than JSON and the manifest of a merged export are refused."""
    path = tmp_path / f"all.csv{SUFFIX}"
    merged = MergedManifest(rows=0, model_version="sha256:1", skipped=0, empty=0, asked={})
    for content in (None, b"rows: 7", encode(merged)):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ExportIncomplete, match="run its shard again"):
            read(str(path), source_context(Settings()))


def test_merged_shards_equal_one_run(artifact: Artifact, recommend: Export, tmp_path: Path) -> None:
    """Every user is in one shard, with the order and the scores of a run without shards."""
    source, whole, out = artifact("neighbours"), tmp_path / "whole.parquet", tmp_path / "all.parquet"
    assert recommend(source, "--output", whole) == 0
    for index in (10, *range(10)):
        assert recommend(source, "--output", out, "--shard", f"{index}/11") == 0
    assert recommend("--merge", "--output", out) == 0
    merged = manifest_of(out)
    parts = [tmp_path / part["path"] for part in merged["parts"]]
    assert [path.name for path in parts] == [f"all.{index}-of-11.parquet" for index in range(11)]
    expected = rows_of(whole)
    place = {user: position for position, user in enumerate(dict.fromkeys(row["user_id"] for row in expected))}
    found = [row for path in parts for row in rows_of(path)]
    assert sorted(found, key=lambda row: (place[row["user_id"]], row["rank"])) == expected
    assert merged["rows"] == len(expected) == sum(part["rows"] for part in merged["parts"])
    same = ("rows", "model_version", "skipped", "empty", "asked")
    assert {name: merged[name] for name in same} == {name: manifest_of(whole)[name] for name in same}
    assert [part["sha256"] for part in merged["parts"]] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in parts]
    assert all([place[row["user_id"]] for row in rows] == sorted(place[row["user_id"]] for row in rows)
               for rows in map(rows_of, parts))  # fmt: skip


def test_shards_of_a_list_count_their_own_unknown_ids(artifact: Artifact, recommend: Export, tmp_path: Path) -> None:
    """The counts of unknown ids add up to those of one run."""
    (tmp_path / "ids.txt").write_text("".join(f"u{number}\n" for number in range(N_USERS + 40)))
    out, listed = tmp_path / "all.csv", ("--users", tmp_path / "ids.txt", "--limit", "1")
    for index in range(3):
        assert recommend(artifact("factors"), *listed, "--output", out, "--shard", f"{index}/3") == 0
    assert recommend("--merge", "--output", out) == 0
    assert (manifest_of(out)["skipped"], manifest_of(out)["rows"]) == (40, N_USERS)


def test_merge_refuses_missing_damaged_stale_or_foreign_parts(
    artifact: Artifact, recommend: Export, tmp_path: Path, capsys: Any
) -> None:
    """Each of these parts ends the merge with 5, and no merged manifest is written."""
    out, source = tmp_path / "all.csv", artifact("popularity")
    write = lambda index, *more, model=source: recommend(  # noqa: E731
        model, "--output", out, "--shard", f"{index}/3", "--limit", "5", *more
    )
    assert recommend("--merge", "--output", out) == 5
    assert write(0) == write(2) == 0
    assert recommend("--merge", "--output", out) == 5
    assert "all.1-of-3.csv" in capsys.readouterr().err
    assert write(1, model=artifact("factors")) == 0
    assert recommend("--merge", "--output", out) == 5
    assert "another model" in capsys.readouterr().err
    assert write(1, "--limit", "6") == 0
    assert recommend("--merge", "--output", out) == 5
    assert "another request" in capsys.readouterr().err
    assert write(1) == 0
    part = tmp_path / "all.1-of-3.csv"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    assert recommend("--merge", "--output", out) == 5
    assert "does not match its manifest" in capsys.readouterr().err
    part.unlink()
    assert recommend("--merge", "--output", out) == 5
    named = tmp_path / "all.1-of-3.csv.manifest.json"
    named.write_bytes((tmp_path / "all.0-of-3.csv.manifest.json").read_bytes())
    capsys.readouterr()
    assert recommend("--merge", "--output", out) == 5
    assert "describes all.0-of-3.csv, shard 0/3; run shard 1/3 again" in capsys.readouterr().err
    (tmp_path / "all.1-of-3.csv.manifest.json").write_text("{}")
    assert recommend("--merge", "--output", out) == 5
    assert not Path(f"{out}.manifest.json").exists()
    assert write(1) == 0
    assert part.read_bytes() == whole
    assert recommend("--merge", "--output", out) == 0


def test_the_last_shard_of_a_job_merges(artifact: Artifact, recommend: Export, tmp_path: Path, capsys: Any) -> None:
    """Earlier shards log that parts are missing, and end with 0. A damaged part ends the merge with 5."""
    out = tmp_path / "all.csv"
    for model in ("popularity", "factors"):
        source, events = artifact(model), []
        for index in (2, 0, 1):
            assert recommend(source, "--output", out, "--shard", f"{index}/3", "--merge", "--limit", "5") == 0
            events.append(json.loads(capsys.readouterr().err.splitlines()[-1]))
        assert [event["event"] for event in events] == ["export_not_merged", "export_not_merged", "export_merged"]
        assert [event["output"] for event in events] == [str(out)] * 3
        assert all("run " in event["reason"] for event in events[:2])
        assert (events[2]["parts"], events[2]["rows"]) == (3, manifest_of(out)["rows"])
        assert manifest_of(out)["model_version"] == manifest_of(tmp_path / "all.0-of-3.csv")["model_version"]
    (tmp_path / "all.0-of-3.csv").write_text("damaged")
    assert recommend(source, "--output", out, "--shard", "1/3", "--merge", "--limit", "5") == 5


def test_parts_of_several_numbers_of_shards_need_a_choice(
    artifact: Artifact, recommend: Export, tmp_path: Path
) -> None:
    """If the folder has parts of runs with 1 and 2 shards, --shards must name the number."""
    out = tmp_path / "all.csv"
    for shard in ("0/2", "1/2", "0/1"):
        assert recommend(artifact("popularity"), "--output", out, "--shard", shard) == 0
    assert recommend("--merge", "--output", out) == 2
    for count in (2, 1):
        assert recommend("--merge", "--output", out, "--shards", str(count)) == 0
        parts = [manifest_of(tmp_path / f"all.{index}-of-{count}.csv") for index in range(count)]
        merged = manifest_of(out)
        assert merged["parts"] == [{name: part[name] for name in ("path", "rows", "sha256")} for part in parts]
        assert merged["model_version"] == parts[0]["model_version"]


def test_parts_are_listed_in_object_stores_but_not_over_http(
    artifact: Artifact,
    recommend: Export,
    objects_in_memory: ObjectsInMemory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """A merge over HTTP ends with 2, because a web server lists no files. An unreadable folder ends with 5."""
    out = "s3://shop/out/all.csv"
    assert recommend("--merge", "--output", out) == 5
    for index in range(2):
        assert recommend(artifact("popularity"), "--output", out, "--limit", "1", "--shard", f"{index}/2") == 0
    objects_in_memory.pipe_file("s3://shop/out/deeper/all.0-of-7.csv.manifest.json", b"")
    assert recommend("--merge", "--output", out) == 0
    merged = json.loads(objects_in_memory.cat_file(f"{out}.manifest.json"))
    assert (merged["rows"], len(merged["parts"])) == (N_USERS, 2)
    capsys.readouterr()
    assert recommend("--merge", "--output", "https://example.org/all.csv") == 2
    assert recommend("--merge", "--output", "nowhere/all.csv") == 5
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert recommend("--merge", "--output", "closed/all.csv") == 5
    errors = [json.loads(line)["error"] for line in capsys.readouterr().err.splitlines()]
    assert "lists no files" in errors[0]
    assert "nowhere/all.csv has no parts yet" in errors[1]
    assert errors[2].endswith("closed cannot be read: Permission denied")
