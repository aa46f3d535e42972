"""Several processes on one study: they share one budget, and a killed one loses only its own trial."""

from __future__ import annotations

import math
import os
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from svc.cli.main import run
from svc.recipe.load import LoadedRecipe
from svc.training.search import budget, storage
from svc.training.search.sampler import own_parameters
from svc.training.search.storage import locate, open_storage
from tests.forked import Forked

N_TRIALS = 16
KILLS = int(os.environ.get("SVC_TEST_KILLS", "3"))


def start(recipe: Path, run_id: str) -> Forked:
    return Forked(["train", str(recipe), "--run-id", run_id, "--search-only"], {**os.environ, "SVC_LOG_FORMAT": "json"})


def storage_path(kind: str) -> str:
    if kind == "sqlite":
        return "shared.db"
    variable = {"postgres": "SVC_TEST_POSTGRES_URL", "mysql": "SVC_TEST_MYSQL_URL"}[kind]
    url = os.environ.get(variable)
    if not url:
        pytest.skip(f"{variable} is not set")
    return url


def shared_recipe(make: Callable[..., LoadedRecipe], path: str) -> LoadedRecipe:
    return make(
        training={
            "algorithms": ["IALS", "CosineKNN", "TopPop"],
            "n_trials": N_TRIALS,
            "cutoff": 5,
            "storage_path": path,
            "split": {"scheme": "time_user", "heldout_ratio": 0.3},
        }
    )


def trials_of(loaded: LoadedRecipe, run_id: str) -> list[Any]:
    opened = open_storage(locate(loaded.recipe.training.storage_path, loaded.base_dir))
    study = optuna.load_study(study_name=f"svc_small_{run_id}", storage=opened.backend)
    try:
        return study.get_trials(deepcopy=False)
    finally:
        opened.close()


def wait_for(process: Forked, text: str) -> None:
    """Read the log of `process` until a line has `text`, or until it ends."""
    for line in process.stderr:
        if text in line:
            return


def check(trials: list[Any]) -> None:
    counted = [trial for trial in trials if budget.uses_budget(trial)]
    assert len(counted) == N_TRIALS
    assert all(trial.state.is_finished() for trial in trials)
    scores: dict[Any, set[Any]] = {}
    for trial in counted:
        name = trial.user_attrs[budget.ALGORITHM]
        parameters = tuple(sorted(own_parameters(name, trial.params).items()))
        scores.setdefault((name, parameters), set()).add(trial.value)
    assert all(len(own) == 1 for own in scores.values()), "equal trials have one score, whoever trained them"


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_processes_share_one_budget(kind: str, make_recipe: Callable[..., LoadedRecipe]) -> None:
    """The study of four processes ends with exactly its number of trials."""
    loaded, run_id = shared_recipe(make_recipe, storage_path(kind)), uuid.uuid4().hex[:12]
    processes = [start(loaded.path, run_id) for _ in range(4)]
    for process in processes:
        _, err = process.communicate(timeout=170)
        assert process.returncode == 0, err[-2000:]
    check(trials_of(loaded, run_id))


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_a_process_killed_at_any_moment_does_not_delay_the_next_one(
    kind: str, make_recipe: Callable[..., LoadedRecipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes are killed in turn at random moments.

    The next one finishes the search without waiting a grace period.
    """
    loaded, run_id = shared_recipe(make_recipe, storage_path(kind)), uuid.uuid4().hex[:12]
    moments = random.Random(run_id)
    for _ in range(KILLS):
        victim = start(loaded.path, run_id)
        wait_for(victim, '"split_done"')
        time.sleep(moments.uniform(0.0, 0.6))
        victim.kill()
        victim.communicate()
    monkeypatch.setattr(storage, "GRACE_S", math.inf)
    assert run(["train", str(loaded.path), "--run-id", run_id, "--search-only", "--quiet"]) == 0
    check(trials_of(loaded, run_id))


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_a_killed_process_loses_only_its_own_trial(kind: str, make_recipe: Callable[..., LoadedRecipe]) -> None:
    """After kill -9, the other process repeats the lost trial at once."""
    loaded, run_id = shared_recipe(make_recipe, storage_path(kind)), uuid.uuid4().hex[:12]
    victim, survivor = start(loaded.path, run_id), start(loaded.path, run_id)
    wait_for(victim, '"trial_done"')
    victim.kill()
    victim.communicate()
    _, err = survivor.communicate(timeout=110)
    assert survivor.returncode == 0, err[-2000:]
    trials = trials_of(loaded, run_id)
    check(trials)
    assert sum(1 for trial in trials if trial.state is TrialState.FAIL) <= 2
