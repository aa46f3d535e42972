"""Trainings of tests: their recipes and data, and the artifacts that they write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.artifact.versions import Versions
from svc.model import codec
from svc.model.load_model import check_features
from svc.model.model import Model
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.judging.task import Task, split_data
from svc.training.outcome import TrainingOutcome
from svc.training.run import TrainOptions, train
from svc.training.search import prepare

Make = Callable[..., LoadedRecipe]
Log = list[dict[str, Any]]
SCHEMA = {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"}
OUTPUT = {"path": "out/small.svc", "versioning": "append_sha"}
ENFORCE = {"mode": "enforce"}
SPLIT = {"scheme": "time_user", "heldout_ratio": 0.3}
BY_SCORE = "svc.training.judging.search_result.by_score"
"""The function that orders the trials of a search, best first."""


def training(algorithm: str = "CosineKNN", **changes: Any) -> dict[str, Any]:
    return {"algorithms": [algorithm], "n_trials": 1, "cutoff": 5, "split": SPLIT, **changes}


def small_training(**changes: Any) -> dict[str, Any]:
    return training(**{"algorithms": ["TopPop", "CosineKNN"], "n_trials": 3, **changes})


def features_of(table: Path, *columns: dict[str, Any], side: str = "item") -> dict[str, Any]:
    """Return the block `features` of one side over this table, by default with the category `group`."""
    source = {"type": "csv", "path": str(table)}
    declared = columns or ({"name": "group", "kind": "categorical"},)
    return {side: {"source": source, "id_column": f"{side}_id", "columns": list(declared)}}


def run(loaded: LoadedRecipe, settings: Settings | None = None, **options: Any) -> TrainingOutcome:
    return train(loaded, TrainOptions(run_id="r1", dev_unsigned=True, **options), settings or Settings(), Progress())


def header(artifact: str | None) -> Mapping[str, Any]:
    assert artifact is not None
    return read_verified(artifact, development_keys(), Settings())[1].header


def payload(artifact: str | None) -> bytes:
    assert artifact is not None
    return bytes(read_verified(artifact, development_keys(), Settings())[1].payload)


def opened(result: TrainingOutcome) -> tuple[Any, Mapping[str, Any]]:
    """Return the model of a training, ready to serve, and its header."""
    head = header(result.artifact)
    model: Model = codec.decode(memoryview(payload(result.artifact)))
    check_features(model, head)
    model.ready()
    return model, head


def live(loaded: LoadedRecipe) -> str | None:
    return Versions(loaded.output_uri, development_keys(), Settings()).live()


def records_of(log: Log, event: str) -> Log:
    return [record for record in log if record["event"] == event]


def last(log: Log) -> dict[str, Any]:
    return log[-1]


def task_of(loaded: LoadedRecipe) -> Task:
    """Return the search task of this recipe."""
    found = fetch.load(loaded, Settings(), {}, Progress())
    loaded, split = split_data(loaded, found)
    return prepare.make_task(loaded, found, split, Settings())


def write_tastes(path: Path, *, n_users: int = 90, start_s: int = 1_600_000_000, last: slice = slice(None)) -> Path:
    """Write purchases of three groups of users, each of which buys one third of 60 items.

    The purchases of all users cover the same days. `last` selects some of each user's 12 purchases by time.
    """
    rng = np.random.default_rng(3)
    lines = ["user_id,item_id,ts"]
    for user in range(n_users):
        own = np.arange(20) * 3 + user % 3
        bought = list(enumerate(rng.choice(own, size=12, replace=False).tolist()))
        lines += [f"u{user},i{item},{start_s + step * 86_400 + user}" for step, item in bought[last]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
