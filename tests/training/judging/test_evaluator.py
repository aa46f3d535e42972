"""The evaluator of rankings, compared with irspack's own."""

from __future__ import annotations

import numpy as np
import pytest
from irspack import Evaluator as IrspackEvaluator
from irspack.recommenders import (
    CosineKNNRecommender,
    DenseSLIMRecommender,
    IALSRecommender,
    RP3betaRecommender,
    TopPopRecommender,
    TruncatedSVDRecommender,
)
from scipy import sparse

from svc.recipe.training_schema import Split
from svc.training.data.interactions import Interactions
from svc.training.data.split import order_items, split
from svc.training.fitting.train import train_epochs
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.intervals import interval
from svc.training.judging.metrics import METRICS, PER_USER
from svc.training.judging.rankers import ScoreRanker, ScoresOfUsers

RNG = np.random.default_rng(5)
FULL = sparse.csr_matrix((RNG.random((60, 700)) < 0.06).astype(np.float32))
HELD_MASK = sparse.csr_matrix((RNG.random((60, 700)) < 0.3).astype(np.float32))
HELD = FULL.multiply(HELD_MASK).tocsr()
TRAIN = (FULL - HELD).tocsr()
TRAIN.eliminate_zeros()


def ranker(scorer: ScoresOfUsers) -> ScoreRanker:
    return ScoreRanker(scorer, TRAIN)


@pytest.mark.filterwarnings("ignore:Found col-major")
@pytest.mark.parametrize(
    ("cls", "epochs", "parameters"),
    [
        (IALSRecommender, 3, {"n_components": 8, "alpha0": 0.1, "n_threads": 1}),
        (DenseSLIMRecommender, None, {}),
        (TruncatedSVDRecommender, None, {"n_components": 8}),
    ],
)
@pytest.mark.parametrize("cutoff", [1, 20, 700])
def test_metrics_are_those_of_irspack(cls: type, epochs: int | None, parameters: dict, cutoff: int) -> None:
    """All metrics agree at all cutoffs.

    Algorithms with tied scores are left out, because irspack breaks ties by number.
    """
    trained = train_epochs(cls(TRAIN, **parameters), epochs)
    expected = IrspackEvaluator(HELD[20:], offset=20, cutoff=cutoff, n_threads=1).get_score(trained)
    found = Evaluator(HELD[20:], offset=20, cutoff=cutoff).evaluate(ranker(trained.get_score)).metrics
    for name in ("ndcg", "map", "recall", "hit", "precision"):
        assert found[name] == pytest.approx(expected[name], abs=3e-3 if cutoff == 700 else 1e-9), name
    assert set(found) == set(METRICS)


def _learnable(name: str) -> sparse.csr_matrix:
    """Return interactions whose popular items come first, as in a table in order of time."""
    n_users, n_items, each = {"tiny": (40, 300, 4), "sparse": (400, 2000, 5), "dense": (300, 200, 40)}[name]
    rng = np.random.default_rng(1)
    chance = 1.0 / np.arange(1, n_items + 1)
    items = [rng.choice(n_items, each, replace=False, p=chance / chance.sum()) for _ in range(n_users)]
    rows = np.repeat(np.arange(n_users), each)
    return sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, np.concatenate(items))), shape=(n_users, n_items))


@pytest.mark.parametrize(
    ("data", "cls", "parameters"),
    [
        ("tiny", TopPopRecommender, {}),
        ("sparse", CosineKNNRecommender, {"top_k": 5}),
        ("dense", RP3betaRecommender, {}),
        ("sparse", TopPopRecommender, {}),
    ],
)
def test_the_order_of_the_table_does_not_change_the_score(data: str, cls: type, parameters: dict) -> None:
    """The score of the original order lies within the interval of a shuffled one, and vice versa."""
    matrix = _learnable(data).tocoo()
    n_users, n_items = matrix.shape
    times = np.random.default_rng(3).permutation(matrix.nnz)
    names = [[f"{side}{number}" for number in range(size)] for side, size in (("u", n_users), ("i", n_items))]
    scores = []
    for rng in (None, np.random.default_rng(2)):
        rows, columns = (np.arange(n) if rng is None else rng.permutation(n) for n in (n_users, n_items))
        users, items = rows[matrix.row].astype(np.int32), columns[matrix.col].astype(np.int32)
        table = Interactions(users, items, times, *names, {})
        found = order_items(split(table, Split(scheme="time_user", heldout_ratio=0.4, seed=5)), 5)
        trained = cls(found.train, **parameters).learn()
        evaluator = Evaluator(found.heldout, offset=found.val_offset, cutoff=20)
        served = ScoreRanker(trained.get_score, found.train)
        scores.append(evaluator.evaluate(served).scores["ndcg"])
    for one, other in (scores, scores[::-1]):
        low, high = interval(other, seed=1)
        assert low <= one.mean() <= high


def test_a_sample_is_seeded_and_no_larger_than_asked() -> None:
    """A seed draws the same users in every run."""
    evaluation = Evaluator(HELD, offset=0, cutoff=5)
    one, two = evaluation.sample(7, 1), evaluation.sample(7, 1)
    assert np.count_nonzero(np.diff(one.heldout.indptr)) == 7
    assert (one.heldout != two.heldout).nnz == 0
    assert evaluation.sample(1000, 1) is evaluation


@pytest.mark.parametrize("n_users", [1, 7, 1000])
def test_users_of_a_sample_who_were_ranked_are_not_scored_again(n_users: int) -> None:
    """Completing an evaluation gives the result of evaluating all users at once."""
    full, scored, scores = Evaluator(HELD, offset=0, cutoff=20), list[int](), RNG.random(HELD.shape)
    sample = full.sample(n_users, seed=1)
    ranked = sample.rankings(ranker(lambda rows: scores[rows].copy()))
    metrics = sample.evaluate(ranker(lambda rows: scores[rows].copy())).metrics
    assert all(round(sample.by_user(ranked, name).mean(), 12) == metrics[name] for name in PER_USER)

    def scorer(rows: np.ndarray) -> np.ndarray:
        scored.extend(rows.tolist())
        return scores[rows].copy()

    found = full.complete(ranker(scorer), sample, ranked)
    expected = full.evaluate(ranker(lambda rows: scores[rows].copy()))
    assert scored == sorted(set(full.evaluated_users.tolist()) - set(sample.evaluated_users.tolist()))
    assert (found.rankings, found.metrics) == (expected.rankings, expected.metrics)
    assert (found.scores["ndcg"] == expected.scores["ndcg"]).all()
