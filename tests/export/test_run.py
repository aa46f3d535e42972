"""One export: the artifact is verified first, and files are published whole."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc import events, logs
from svc.artifact.keys import parse_signing_keys
from svc.export.request import ExportRequest
from svc.export.run import LogDisplay, Scored, open_artifact, score, score_all
from svc.model.model import Model
from svc.progress import EVERY_S, State
from svc.serving.models.fragments import ItemFragments
from svc.settings import Settings
from tests import planned
from tests.export.conftest import MODELS, N_USERS, Artifact, Export, manifest_of, rows_of
from tests.forked import Forked
from tests.serving.artifacts import SIGNING_KEYS, write_artifact


def test_artifacts_are_verified(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing or damaged artifact or another key ends with 5. No keys end with 8. Nothing is written."""
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


def test_an_export_of_a_recipe_uses_its_artifact(recommend: Export, tmp_path: Path) -> None:
    """The export follows the recipe's pointer, and needs no variables of the training."""
    write_artifact(tmp_path / "models/shop.svc", MODELS["popularity"](), versioning="append_sha")
    (tmp_path / "shop.yaml").write_text(
        "name: shop\nsource: {type: csv, path: '${SVC_RECIPE_UNSET}'}\n"
        "schema: {user_column: u, item_column: i}\ntraining: {algorithms: [TopPop]}\noutput: {path: models/shop.svc}\n"
    )
    out = tmp_path / "out.jsonl"
    assert recommend(tmp_path / "shop.yaml", "--limit", "3", "--output", out) == 0
    assert len(rows_of(out)) == 3 * N_USERS


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_to_users_writes_the_users_that_the_model_ranks(recommend: Export, tmp_path: Path, extension: str) -> None:
    """Items of --to-users are in the order of their file. Unknown ones are skipped and counted."""
    model = MODELS["neighbours"]()
    write_artifact(tmp_path / "a.svc", model)
    (tmp_path / "items.txt").write_text("i7\nnothing\ni,5\n")
    out = tmp_path / f"out.{extension}"
    more = ("--to-users", "--order", "balanced", "--limit", "4", "--output", out)
    assert recommend(tmp_path / "a.svc", "--items", tmp_path / "items.txt", *more) == 0
    model.ready()
    model.serve_users()
    expected = []
    for item in ("i7", "i,5"):
        prepared = planned.users(model, item_id=item, item_features=None, limit=4, order="balanced")
        (ranking,) = model.rank([prepared.query])
        users = [model.user_ids.at(row) for row in ranking.items.tolist()]
        scores = ranking.scores.tolist()
        expected += [
            {"item_id": item, "rank": rank, "user_id": user, "score": score}
            for rank, (user, score) in enumerate(zip(users, scores, strict=True), start=1)
        ]
    assert rows_of(out) == expected
    manifest = manifest_of(out)
    assert (manifest["rows"], manifest["skipped"]) == (8, 1)
    assert manifest["asked"] == {**manifest["asked"], "to_users": True, "order": "balanced", "limit": 4}
    assert manifest["asked"]["items"].startswith("sha256:")


def test_to_users_needs_a_recipe_and_a_model_that_rank_users(
    recommend: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them --to-users ends with 2, and nothing is written."""
    write_artifact(tmp_path / "models/shop.svc", MODELS["factors"](), versioning="append_sha")
    write_artifact(tmp_path / "popular.svc", MODELS["popularity"]())
    text = (
        "name: shop\nsource: {type: csv, path: none.csv}\nschema: {user_column: u, item_column: i}\n"
        "training: {algorithms: [IALS]}\noutput: {path: models/shop.svc}\n"
    )
    recipe, out = tmp_path / "shop.yaml", tmp_path / "out.csv"
    recipe.write_text(text)
    assert recommend(recipe, "--to-users", "--output", out) == 2
    assert "serving.users" in capsys.readouterr().err
    assert recommend(tmp_path / "popular.svc", "--to-users", "--output", out) == 2
    assert "same scores for every user" in capsys.readouterr().err
    assert not out.exists()
    recipe.write_text(text + "serving: {users: true}\n")
    assert recommend(recipe, "--to-users", "--limit", "3", "--output", out) == 0
    assert {row["rank"] for row in rows_of(out)} == {1, 2, 3}


@pytest.mark.system
def test_readers_see_only_whole_files_of_killed_exports(tmp_path: Path) -> None:
    """After SIGKILL or SIGTERM each file is whole. The next run removes temporary files."""
    source, folder = tmp_path / "big.svc", tmp_path / "out"
    write_artifact(source, MODELS["neighbours"]())
    command = ["recommend", str(source), "--output", str(folder / "all.csv")]
    began = time.monotonic()
    assert Forked(command, os.environ, log=Path(os.devnull)).wait() == 0
    lasts = time.monotonic() - began
    whole = (folder / "all.csv").read_bytes(), manifest_of(folder / "all.csv")
    for step in range(6):
        process = Forked(command, os.environ, log=Path(os.devnull))
        time.sleep(lasts * (0.3 + step / 8))
        process.send_signal(signal.SIGTERM if step % 2 else signal.SIGKILL)
        assert process.wait() in (0, 143, -signal.SIGKILL, -signal.SIGTERM)
        assert ((folder / "all.csv").read_bytes(), manifest_of(folder / "all.csv")) == whole
    assert Forked(command, os.environ, log=Path(os.devnull)).wait() == 0
    assert sorted(path.name for path in folder.iterdir()) == ["all.csv", "all.csv.manifest.json"]


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_an_export_reads_from_and_writes_to_an_object_store(recommend: Export, s3_bucket: tuple[str, Any]) -> None:
    """Artifact, list of users, parts and manifests are all in the store."""
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


def answers(model: Model, *, related: bool = False, limit: int = 100) -> list[bytes]:
    """Return the `items` of the API's answer for every user, or for every item as the one seed, without brackets."""
    fragments, found = ItemFragments.build(model.item_ids, None), []
    for leader in (model.item_ids if related else model.user_ids).all():
        if related:
            prepared = planned.related(
                model, seed_items=[leader], item_features=None, user_features=None, limit=limit, exclude_items=()
            )
        else:
            prepared = planned.recommend(model, user_id=leader, user_features=None, limit=limit)
        (ranking,) = model.rank([prepared.query])
        found.append(fragments.items(ranking, with_metadata=False)[1:-1])
    return found


@pytest.mark.parametrize("related", [False, True])
@pytest.mark.parametrize("family", MODELS)
def test_exported_items_equal_the_api_byte_for_byte(
    artifact: Artifact, recommend: Export, tmp_path: Path, family: str, related: bool
) -> None:
    """Items, order and the text of scores are the same for every user or seed."""
    source, out = artifact(family), tmp_path / "out.jsonl"
    assert recommend(source, "--output", out, "--limit", "20", *(["--related"] if related else [])) == 0
    model = open_artifact(source, parse_signing_keys(SIGNING_KEYS), Settings()).model
    leaders = (model.item_ids if related else model.user_ids).all()
    expected = answers(model, related=related, limit=20)
    key = b"seed_item_id" if related else b"user_id"
    found: dict[str, list[bytes]] = {leader: [] for leader in leaders}
    for rank_line in out.read_bytes().splitlines():
        head, _, item = rank_line.partition(b',"item_id":')
        fields = json.loads(head + b"}")
        assert head.startswith(b'{"' + key)
        found[fields[key.decode()]].append(b'{"item_id":' + item)
        assert fields["rank"] == len(found[fields[key.decode()]])
    assert [b",".join(found[leader]) for leader in leaders] == expected


def test_an_export_is_the_same_with_any_number_of_threads(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and manifest have the same bytes, so a repeated shard changes nothing."""
    seen = set()
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("SVC_SCORING_THREADS", threads)
        out = tmp_path / "out.parquet"
        assert recommend(artifact("factors"), "--output", out) == 0
        seen.add((out.read_bytes(), Path(f"{out}.manifest.json").read_bytes()))
    assert len(seen) == 1


def test_scoring_is_two_chunks_per_thread_ahead_and_ends_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded if the writer is slow. Closing the iterator waits until its threads have ended."""

    def slow_score(*arguments: Any) -> Scored:
        time.sleep(0.05)
        return score(*arguments)

    monkeypatch.setattr("svc.export.run.score", slow_score)
    model, threads = MODELS["popularity"](), 2
    taken: list[int] = []
    model.ready()
    rows = (np.array([number], dtype=np.int32) for number in range(100) if not taken.append(number))
    scored = score_all(model, ExportRequest("x.csv", limit=1), rows, threads)
    assert isinstance(scored, Generator)
    assert next(scored).rows.tolist() == [0]
    assert len(taken) == 2 * threads + 1
    scored.close()
    assert len(taken) == 2 * threads + 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("svc-export")]


def test_progress_and_end_are_logged(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Events of progress have rows, rate and remaining time. The last event has the written rows."""
    monkeypatch.setattr("svc.export.run.EVERY_S", 0.0)
    began = time.monotonic()
    assert recommend(artifact("factors"), "--output", tmp_path / "out.csv", "--limit", "10") == 0
    elapsed = time.monotonic() - began
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["export_started", *["export_progress"] * 3, "export_done"]
    steps = lines[1:-1]
    assert [step["done"] for step in steps] == [256, 512, 700]
    assert [step["rows"] for step in steps] == [2560, 5120, 7000]
    assert steps[-1]["seconds_left"] == 0
    assert lines[-1]["rows"] == 7000
    assert 0 < lines[-1]["seconds"] < elapsed


def test_progress_is_logged_every_s(capsys: Any) -> None:
    """The first event comes after `EVERY_S` seconds, once a step is done. Unknown values are null."""
    now = [5.0]
    logs.configure(Settings())
    display = LogDisplay(lambda: now[0])
    for now[0], state in (
        (5.0 + EVERY_S, State("", total=4)),
        (4.9 + EVERY_S, State("", done=1, total=4)),
        (5.0 + EVERY_S, State("", done=2, total=4, rows=30, seconds=4.0)),
        (5.0 + EVERY_S, State("", done=3, total=4)),
        (5.0 + 2 * EVERY_S, State("", done=5, total=4)),
    ):
        display.show(state)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    fields = events.EXPORT_PROGRESS.fields
    assert [[line[name] for name in fields] for line in lines] == [[2, 4, 30, 8, 4], [5, 4, 0, 0, None]]
