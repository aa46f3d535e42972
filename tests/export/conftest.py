"""Models of each family as signed artifacts, and the command that exports them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from svc.cli.main import run
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.neighbours import NeighbourScorer
from tests.serving.artifacts import SIGNING_KEYS, factor_model, history, popularity_model, write_artifact

N_USERS, N_ITEMS = 700, 90
Export = Callable[..., int]


def neighbour_model() -> Model:
    """Return a model with ids that csv and JSON must escape, an empty history, and a history of all items."""
    random = np.random.default_rng(5)
    weights = np.where(random.random((N_ITEMS, N_ITEMS)) < 0.2, random.random((N_ITEMS, N_ITEMS)), 0)
    rows, columns = np.nonzero(weights)
    starts = np.searchsorted(rows, np.arange(N_ITEMS + 1)).astype(np.int64)
    lengths = random.integers(1, 9, N_USERS)
    lengths[3], lengths[5] = 0, N_ITEMS
    seen = [np.sort(random.permutation(N_ITEMS)[:length]) for length in lengths]
    return Model(
        user_ids=IdTable.from_ids([f'u"{row},\n' if row % 7 == 0 else f"ü {row}" for row in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i,{row}" if row % 5 == 0 else f"i{row}" for row in range(N_ITEMS)]),
        history=History(np.append(0, np.cumsum(lengths)), np.concatenate(seen).astype(np.int32)),
        scorer=NeighbourScorer(starts, columns.astype(np.int32), weights[rows, columns].astype(np.float32)),
        features=None,
    )


MODELS = {
    "neighbours": neighbour_model,
    "factors": lambda: factor_model(N_USERS, N_ITEMS, 8),
    "popularity": lambda: popularity_model(n_users=N_USERS, n_items=N_ITEMS),
}
__all__ = ["MODELS", "N_ITEMS", "N_USERS", "history"]


@pytest.fixture(autouse=True)
def signing_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    monkeypatch.setenv("SVC_SCORING_THREADS", "2")


@pytest.fixture
def artifact(tmp_path: Path) -> Callable[[str], str]:
    """Return a function from a family of models to the path of a signed artifact."""

    def write(family: str) -> str:
        path = tmp_path / f"{family}.svc"
        write_artifact(path, MODELS[family]())
        return str(path)

    return write


@pytest.fixture
def recommend() -> Export:
    """Return a function from arguments of `svc recommend` to its exit code."""
    return lambda *arguments: run(["recommend", *map(str, arguments)])


Artifact = Callable[[str], str]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an export in any format."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return [{**row, "rank": int(row["rank"]), "score": float(row["score"])} for row in csv.DictReader(file)]


def manifest_of(path: Path) -> dict[str, Any]:
    return json.loads(Path(f"{path}.manifest.json").read_text())
