"""Equal inputs give equal bytes with any number of threads and worker processes."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from svc.model import codec
from svc.recipe.algorithms import BLEND
from svc.training.fitting.algorithms.registry import ALGORITHMS, search_space
from svc.training.fitting.train import Builder, train_trial
from svc.training.fitting.trial import TrialRecord
from tests.training.runs import Make, header, payload, run

N_USERS, N_ITEMS = 600, 80
MISSING = set() if find_spec("lightfm") else {"BPRFMRecommender"}
FAMILIES = [name for name in ALGORITHMS if name not in MISSING]
BLENDS = [(name, "CosineKNNRecommender") for name in ("IALSRecommender", "DenseSLIMRecommender", "RP3betaRecommender")]


@cache
def _interactions() -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Return weights, (users, items), whose sums depend on their order in the last bits, and times."""
    rng = np.random.default_rng(2)
    matrix = sparse.random(N_USERS, N_ITEMS, 0.1, random_state=1, format="csr", dtype=np.float32)
    matrix.data = rng.lognormal(0.0, 2.0, matrix.nnz).astype(np.float32)
    times = sparse.csr_matrix((-rng.permutation(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    return matrix, times


def _trial(name: str) -> TrialRecord:
    space = search_space(name, n_users=N_USERS, n_items=N_ITEMS)
    epochs = 3 if ALGORITHMS[name].epochs else None
    return TrialRecord(0, name, dict(space.guesses[0]), "complete", 0.1, {}, epochs, 0.0)


def _encoded(trial: TrialRecord) -> bytes:
    """Return the payload of a model that is trained with two threads."""
    matrix, times = _interactions()
    builder = Builder(42, None, 2)
    return b"".join(codec.encode(train_trial(builder, trial, matrix, {}, times)))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_algorithm_gives_the_same_bytes_with_two_threads(name: str) -> None:
    """Each model is trained five times, because threads often finish in the same order."""
    trial = _trial(name)
    assert len({_encoded(trial) for _ in range(5)}) == 1


@pytest.mark.parametrize("names", BLENDS, ids=lambda names: names[0])
def test_a_blend_of_every_kind_of_parts_gives_the_same_bytes_with_two_threads(names: tuple[str, str]) -> None:
    """The deviations of factors, dense weights and sparse weights have the same bytes, too."""
    parts = tuple(map(_trial, names))
    trial = TrialRecord(2, BLEND, {"weights": dict.fromkeys(names, 0.5)}, "complete", 0.1, {}, None, 0.0, parts)
    assert len({_encoded(trial) for _ in range(5)}) == 1


@pytest.mark.system
def test_a_search_of_all_algorithms_in_two_worker_processes_gives_the_same_bytes(make_recipe: Make) -> None:
    """Two runs have the same payload, the same winner, and the same best trial of each algorithm."""
    names = [*FAMILIES, BLEND]
    training: dict[str, Any] = {"algorithms": names, "n_trials": len(names), "parallelism": 2, "cutoff": 5}
    found = []
    for _ in range(2):
        artifact = run(make_recipe(training=training)).artifact
        head = header(artifact)
        best = head["tuning"]["best_per_algorithm"]
        assert set(FAMILIES) <= set(best)
        trials = {name: (trial["score"], trial["params"], trial["metrics"]) for name, trial in best.items()}
        found.append((payload(artifact), head["best_params"], trials))
    assert found[0] == found[1]
