"""`svc recommend`: the same answers as the API, in three formats, whole or in shards, never half."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.artifact.keys import parse_signing_keys
from svc.export.request import Shard
from svc.export.run import open_artifact
from svc.model.ids import digest
from svc.model.model import Model
from svc.serving.models.fragments import ItemFragments
from svc.settings import Settings
from tests.export.conftest import MODELS, N_USERS, Export
from tests.serving.artifacts import SIGNING_KEYS, write_artifact

Artifact = Callable[[str], str]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of an export, whatever its format."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return [{**row, "rank": int(row["rank"]), "score": float(row["score"])} for row in csv.DictReader(file)]


def manifest_of(path: Path) -> dict[str, Any]:
    return json.loads(Path(f"{path}.manifest.json").read_text())


def answers(model: Model, *, related: bool = False, limit: int = 100) -> list[bytes]:
    """The `items` of the API for every user, or every item as the one seed, each without its brackets."""
    fragments, found = ItemFragments.build(model.item_ids, None), []
    for leader in (model.item_ids if related else model.user_ids).all():
        if related:
            prepared = model.prepare_related(
                seed_items=[leader], item_features=None, user_features=None, limit=limit, exclude_items=()
            )
        else:
            prepared = model.prepare_recommend(user_id=leader, user_features=None, limit=limit)
        (ranking,) = model.rank([prepared.query])
        found.append(fragments.items(ranking, with_metadata=False)[1:-1])
    return found


@pytest.mark.parametrize("related", [False, True])
@pytest.mark.parametrize("family", MODELS)
def test_every_byte_is_that_of_the_api(
    artifact: Artifact, recommend: Export, tmp_path: Path, family: str, related: bool
) -> None:
    """Items, order and the spelling of scores, for every user or seed."""
    source, out = artifact(family), tmp_path / "out.jsonl"
    assert recommend(source, "--output", out, "--limit", "20", *(["--related"] if related else [])) == 0
    model = open_artifact(source, parse_signing_keys(SIGNING_KEYS), Settings()).model
    leaders = (model.item_ids if related else model.user_ids).all()
    expected = answers(model, related=related, limit=20)
    key = b"seed_item_id" if related else b"user_id"
    found: dict[str, list[bytes]] = {leader: [] for leader in leaders}
    for rank_line in out.read_bytes().splitlines():
        head, _, item = rank_line.partition(b',"item_id":')
        told = json.loads(head + b"}")
        assert head.startswith(b'{"' + key)
        found[told[key.decode()]].append(b'{"item_id":' + item)
        assert told["rank"] == len(found[told[key.decode()]])
    assert [b",".join(found[leader]) for leader in leaders] == expected


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


def test_a_list_of_users(artifact: Artifact, recommend: Export, tmp_path: Path) -> None:
    """In its order, each once; unknown ones are skipped and counted; blank lines and line ends do not matter."""
    (tmp_path / "ids.txt").write_text("u5\r\nnobody\n\nu2\nu5\nnor she\n u2\n")
    out = tmp_path / "out.csv"
    assert recommend(artifact("factors"), "--users", tmp_path / "ids.txt", "--limit", "2", "--output", out) == 0
    assert [(row["user_id"], row["rank"]) for row in rows_of(out)] == [("u5", 1), ("u5", 2), ("u2", 1), ("u2", 2)]
    assert manifest_of(out)["skipped"] == 3


@pytest.mark.parametrize(("content", "words"), [(None, "does not exist"), (b"u1\n\xff\n", "line 2 is not UTF-8")])
def test_an_unreadable_list_ends_with_3(
    artifact: Artifact, recommend: Export, tmp_path: Path, *, capsys: Any, content: bytes | None, words: str
) -> None:
    """The file and the line are named, and nothing is written."""
    if content is not None:
        (tmp_path / "ids.txt").write_bytes(content)
    out = tmp_path / "out/x.csv"
    assert recommend(artifact("factors"), "--users", tmp_path / "ids.txt", "--output", out) == 3
    assert words in capsys.readouterr().err
    assert not any(out.parent.iterdir())


def test_sixteen_shards_are_one_run(artifact: Artifact, recommend: Export, tmp_path: Path) -> None:
    """Row by row: every user in one shard, in the order and with the scores of the whole."""
    source, whole, out = artifact("neighbours"), tmp_path / "whole.parquet", tmp_path / "all.parquet"
    assert recommend(source, "--output", whole) == 0
    for index in (11, *range(11), *range(12, 16)):
        assert recommend(source, "--output", out, "--shard", f"{index}/16") == 0
    assert recommend("--merge", "--output", out) == 0
    merged = manifest_of(out)
    parts = [tmp_path / part["path"] for part in merged["parts"]]
    assert [path.name for path in parts] == [f"all.{index}-of-16.parquet" for index in range(16)]
    expected = rows_of(whole)
    place = {user: position for position, user in enumerate(dict.fromkeys(row["user_id"] for row in expected))}
    found = [row for path in parts for row in rows_of(path)]
    assert sorted(found, key=lambda row: (place[row["user_id"]], row["rank"])) == expected
    assert merged["rows"] == len(expected) == sum(part["rows"] for part in merged["parts"])
    assert merged["model_version"] == manifest_of(whole)["model_version"]
    assert [part["sha256"] for part in merged["parts"]] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in parts]
    assert all([place[row["user_id"]] for row in rows] == sorted(place[row["user_id"]] for row in rows)
               for rows in map(rows_of, parts))  # fmt: skip


@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.integers(1, 50))
def test_each_id_is_in_exactly_one_shard(text: str, count: int) -> None:
    """Whatever the id is, and by its digest alone."""
    assert sum(Shard(index, count).holds(digest(text.encode())) for index in range(count)) == 1


def test_shards_of_a_list_count_their_own_unknown_ids(artifact: Artifact, recommend: Export, tmp_path: Path) -> None:
    """Their sum is that of one run."""
    (tmp_path / "ids.txt").write_text("".join(f"u{number}\n" for number in range(N_USERS + 40)))
    out, listed = tmp_path / "all.csv", ("--users", tmp_path / "ids.txt", "--limit", "1")
    for index in range(3):
        assert recommend(artifact("factors"), *listed, "--output", out, "--shard", f"{index}/3") == 0
    assert recommend("--merge", "--output", out) == 0
    assert (manifest_of(out)["skipped"], manifest_of(out)["rows"]) == (40, N_USERS)


def test_merge_refuses_what_is_no_export(artifact: Artifact, recommend: Export, tmp_path: Path, capsys: Any) -> None:
    """A missing, damaged, stale or foreign part ends with 5 and writes nothing."""
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
    assert "not what its manifest describes" in capsys.readouterr().err
    part.unlink()
    assert recommend("--merge", "--output", out) == 5
    (tmp_path / "all.1-of-3.csv.manifest.json").write_text("{}")
    assert recommend("--merge", "--output", out) == 5
    assert not Path(f"{out}.manifest.json").exists()
    assert write(1) == 0
    assert part.read_bytes() == whole
    assert recommend("--merge", "--output", out) == 0


def test_the_last_shard_of_a_job_merges(artifact: Artifact, recommend: Export, tmp_path: Path, capsys: Any) -> None:
    """Each shard tries; others end with 0. Parts of yesterday's model are no parts of today's export."""
    out = tmp_path / "all.csv"
    for model in ("popularity", "factors"):
        source, events = artifact(model), []
        for index in (2, 0, 1):
            assert recommend(source, "--output", out, "--shard", f"{index}/3", "--merge", "--limit", "5") == 0
            events.append(json.loads(capsys.readouterr().err.splitlines()[-1])["event"])
        assert events == ["export_not_merged", "export_not_merged", "export_merged"]
        assert manifest_of(out)["model_version"] == manifest_of(tmp_path / "all.0-of-3.csv")["model_version"]
    (tmp_path / "all.0-of-3.csv").write_text("damaged")
    assert recommend(source, "--output", out, "--shard", "1/3", "--merge", "--limit", "5") == 5


def test_merge_of_several_numbers_of_shards(artifact: Artifact, recommend: Export, tmp_path: Path) -> None:
    """Parts of an older run lie there: somebody must say which."""
    out = tmp_path / "all.csv"
    for shard in ("0/2", "1/2", "0/1"):
        assert recommend(artifact("popularity"), "--output", out, "--shard", shard) == 0
    assert recommend("--merge", "--output", out) == 2
    assert recommend("--merge", "--output", out, "--shards", "2") == 0
    assert len(manifest_of(out)["parts"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.svc"], "--output is missing"),
        (["--output", "x.csv"], "name the recipe or the artifact"),
        (["a.svc", "--output", "x.txt"], "must end with .parquet, .csv, .jsonl"),
        (["a.svc", "--output", ".csv"], "must end with"),
        (["a.svc", "--output", "x.csv", "--limit", "1001"], "less than or equal to 1000"),
        (["a.svc", "--output", "x.csv", "--shard", "3/3"], "'3/3' is no shard"),
        (["a.svc", "--output", "x.csv", "--shard", "one"], "'one' is no shard"),
        (["a.svc", "--output", "x.csv", "--shards", "3"], "--shards goes with"),
        (["a.svc", "--output", "x.csv", "--related", "--users", "ids.txt"], "leave --users out"),
        (["a.svc", "--output", "x.csv", "--merge"], "--merge needs only --output"),
        (["a.svc", "--output", "x.csv", "--engine", "dask://h:1", "--shard", "0/2"], "leave --shard out"),
    ],
)
def test_wrong_usage_ends_with_2(recommend: Export, capsys: Any, arguments: list[str], words: str) -> None:
    """Before any artifact is read; the message names the option and the way out."""
    assert recommend(*arguments) == 2
    assert words in capsys.readouterr().err


def test_artifacts_are_verified(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing 5, damaged 5, another key 5, no keys 8; nothing is written."""
    source, out = Path(artifact("popularity")), tmp_path / "out/x.csv"
    assert recommend(tmp_path / "none.svc", "--output", out) == 5
    whole = source.read_bytes()
    source.write_bytes(whole[:-40] + b"x" + whole[-39:])
    assert recommend(source, "--output", out) == 5
    source.write_bytes(whole)
    monkeypatch.setenv("SVC_SIGNING_KEYS", "k1:" + "33" * 32)
    assert recommend(source, "--output", out) == 5
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    assert recommend(source, "--output", out) == 8
    assert not out.parent.exists()


def test_a_recipe_stands_for_its_artifact(recommend: Export, tmp_path: Path) -> None:
    """Through its pointer, and without the variables that only training needs."""
    write_artifact(tmp_path / "models/shop.svc", MODELS["popularity"](), versioning="append_sha")
    (tmp_path / "shop.yaml").write_text(
        "name: shop\nsource: {type: csv, path: '${SVC_RECIPE_UNSET}'}\n"
        "schema: {user_column: u, item_column: i}\ntraining: {algorithms: [TopPop]}\noutput: {path: models/shop.svc}\n"
    )
    out = tmp_path / "out.jsonl"
    assert recommend(tmp_path / "shop.yaml", "--limit", "3", "--output", out) == 0
    assert len(rows_of(out)) == 3 * N_USERS


def test_an_export_is_the_same_whenever_it_runs(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and manifest, with any number of threads: a shard that runs twice changes nothing."""
    seen = set()
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("SVC_SCORING_THREADS", threads)
        out = tmp_path / "out.parquet"
        assert recommend(artifact("factors"), "--output", out) == 0
        seen.add((out.read_bytes(), Path(f"{out}.manifest.json").read_bytes()))
    assert len(seen) == 1


def test_progress_and_end_are_logged(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Rows, rate and time left; the last line says what is in place."""
    monkeypatch.setattr("svc.export.progress.EVERY_S", 0.0)
    assert recommend(artifact("factors"), "--output", tmp_path / "out.csv", "--limit", "10") == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["export_started", *["export_progress"] * 3, "export_done"]
    steps = lines[1:-1]
    assert [step["done"] for step in steps] == [256, 512, 700]
    assert [step["rows"] for step in steps] == [2560, 5120, 7000]
    assert steps[-1]["seconds_left"] == 0
    assert lines[-1]["rows"] == 7000


def test_killed_at_any_moment_nothing_half_written_is_seen(tmp_path: Path) -> None:
    """SIGKILL, and SIGTERM with exit code 143: what is there is always a whole export, the next run tidies up."""
    source, folder = tmp_path / "big.svc", tmp_path / "out"
    write_artifact(source, MODELS["neighbours"]())
    command = [sys.executable, "-m", "svc", "recommend", str(source), "--output", str(folder / "all.csv")]
    began = time.monotonic()
    assert subprocess.run(command, env=os.environ, capture_output=True, check=False).returncode == 0
    lasts = time.monotonic() - began
    whole = (folder / "all.csv").read_bytes(), manifest_of(folder / "all.csv")
    for step in range(6):
        process = subprocess.Popen(command, env=os.environ, stderr=subprocess.DEVNULL)
        time.sleep(lasts * (0.3 + step / 8))
        process.send_signal(signal.SIGTERM if step % 2 else signal.SIGKILL)
        assert process.wait() in (0, 143, -signal.SIGKILL, -signal.SIGTERM)
        assert ((folder / "all.csv").read_bytes(), manifest_of(folder / "all.csv")) == whole
    assert subprocess.run(command, env=os.environ, capture_output=True, check=False).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["all.csv", "all.csv.manifest.json"]


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_from_and_to_an_object_store(recommend: Export, s3_bucket: tuple[str, Any]) -> None:
    """Artifact, list of users, parts and manifests all lie there."""
    bucket, filesystem = s3_bucket
    write_artifact(f"{bucket}/models/a.svc", MODELS["factors"]())
    filesystem.pipe_file(f"{bucket}/ids.txt", b"u1\nu2\nnobody\n")
    out = f"{bucket}/out/all.parquet"
    for index in range(2):
        arguments = ("--users", f"{bucket}/ids.txt", "--limit", "4", "--output", out, "--shard", f"{index}/2")
        assert recommend(f"{bucket}/models/a.svc", *arguments) == 0
    assert recommend("--merge", "--output", out) == 0
    merged = json.loads(filesystem.cat_file(f"{out}.manifest.json"))
    assert (merged["rows"], merged["skipped"], len(merged["parts"])) == (8, 1, 2)
    filesystem.rm_file(f"{bucket}/out/all.1-of-2.parquet")
    assert recommend("--merge", "--output", out) == 5
