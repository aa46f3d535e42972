"""Rankings of many rows: equal to the API's, in one order for any number of threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from svc.artifact.keys import parse_signing_keys
from svc.export.request import ExportRequest
from svc.export.run import open_artifact
from svc.export.scoring import score_all
from svc.model.model import Model
from svc.serving.models.fragments import ItemFragments
from svc.settings import Settings
from tests.export.conftest import MODELS, Artifact, Export
from tests.serving.artifacts import SIGNING_KEYS


def answers(model: Model, *, related: bool = False, limit: int = 100) -> list[bytes]:
    """Return the `items` of the API's answer for every user, or for every item as the one seed, without brackets."""
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
    """File and manifest are the same, so a shard that runs twice changes nothing."""
    seen = set()
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("SVC_SCORING_THREADS", threads)
        out = tmp_path / "out.parquet"
        assert recommend(artifact("factors"), "--output", out) == 0
        seen.add((out.read_bytes(), Path(f"{out}.manifest.json").read_bytes()))
    assert len(seen) == 1


def test_scoring_is_two_chunks_per_thread_ahead_and_ends_with_its_reader() -> None:
    """A slow writer needs memory for these chunks only. Closing the iterator ends the threads."""
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
