"""The task of a search: models of trials rank as served models do, and checks of the split name a remedy."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from scipy import sparse

from svc.recipe.algorithms import BLEND, TAKES_RECENCY
from svc.training.data.weights import positions_of
from svc.training.fitting.export import assemble, fold_in_users
from svc.training.fitting.train import Builder, train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.recency import HistoryOrder
from svc.training.judging.task import Holdout
from tests import planned
from tests.training.runs import Log, Make, last, run, training

N_USERS, N_ITEMS, OFFSET, CUTOFF = 90, 60, 20, 12
BUILDER = Builder(1, 1, 1)
FEW = {"n_components": 6}
PARAMS = {
    "IALSRecommender": {**FEW, "alpha0": 0.1, "reg": 0.01},
    "TruncatedSVDRecommender": {**FEW, "weighting": "DEGREES"},
    "CosineKNNRecommender": {"top_k": 9, "shrinkage": 1.0},
    "RP3betaRecommender": {"top_k": 9, "alpha": 0.8, "beta": 0.3},
    "DenseSLIMRecommender": {"reg": 20.0},
    "SLIMRecommender": {"alpha": 0.01, "l1_ratio": 0.1, "top_k": 20},
    "TransitionsRecommender": {"max_steps": 3, "top_k": 9},
    "TopPopRecommender": {},
    "BPRFMRecommender": FEW,
}


def trial(name: str, recency: float = 0.0) -> TrialRecord:
    return TrialRecord(
        0, name, PARAMS[name], "complete", 0.1, {}, 3 if name == "IALSRecommender" else None, 1.0, (), recency
    )


def blend(*parts: TrialRecord) -> TrialRecord:
    weights = {part.algorithm: weight for part, weight in zip(parts, (0.5, 0.3, 0.2), strict=False)}
    recency = max(part.recency for part in parts)
    return replace(parts[0], algorithm=BLEND, params={"weights": weights}, epochs=None, parts=parts, recency=recency)


FACTORS_AND_SUMS = ("RP3betaRecommender", "IALSRecommender", "DenseSLIMRecommender")
MISSING = set() if find_spec("lightfm") else {"BPRFMRecommender"}
TRIALS = {
    **{name: trial(name) for name in PARAMS if name not in MISSING},
    **{f"{name} by recency": trial(name, 0.3) for name in PARAMS if name in TAKES_RECENCY},
    "blend": blend(*map(trial, FACTORS_AND_SUMS)),
    "blend by recency": blend(*(trial(name, 0.2) for name in FACTORS_AND_SUMS)),
    "blend without factors": blend(trial("CosineKNNRecommender"), trial("TransitionsRecommender", 0.4)),
}


def problem(*, repeats: bool) -> Holdout:
    """Return interactions with values, times and hidden items. Popular items come first."""
    rng = np.random.default_rng(8)
    chance = rng.random((N_USERS, N_ITEMS)) ** np.linspace(1, 3, N_ITEMS)
    chosen, held = chance > 0.75, chance < 0.02
    train = sparse.csr_matrix(chosen * rng.choice([1.0, 2.0], chosen.shape).astype(np.float32))
    times = sparse.csr_matrix((rng.integers(-50, 0, train.nnz) * 10**9, train.indices, train.indptr), shape=train.shape)
    hidden = sparse.csr_matrix(((chance > 0.05) & (chance < 0.1)).astype(np.float32))
    evaluator = Evaluator(sparse.csr_matrix(held[OFFSET:].astype(np.float32)), offset=OFFSET, cutoff=CUTOFF)
    evaluators = Evaluators.of(evaluator, "ndcg", 1)
    order = HistoryOrder(positions_of(times))
    return Holdout(train, evaluators, {}, times=times, hidden=hidden, order=order, repeats=repeats)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("name", TRIALS)
def test_the_evaluated_rankings_are_the_served_answers(name: str, repeats: bool) -> None:
    """Rankings and scores have the same bits, for every algorithm and for blends."""
    judged, holdout = TRIALS[name], problem(repeats=repeats)
    trained = train_trial(BUILDER, judged, holdout.train, {}, holdout.times)
    ranker = holdout.ranker_of(trained, judged)
    assert holdout.order is not None
    positions = holdout.order.positions if judged.recency else None
    served = train_trial(BUILDER, judged, holdout.train, {}, holdout.times)
    fold_in_users(judged, served, [(holdout.train, None)], positions, features=None)
    model = assemble(
        served,
        user_ids=[f"u{row}" for row in range(N_USERS)],
        item_ids=[f"i{column}" for column in range(N_ITEMS)],
        X=holdout.train,
        features=None,
        hidden=holdout.hidden,
        positions=positions,
        recency=judged.recency,
        repeats=repeats,
    )
    users = np.arange(OFFSET, N_USERS)
    queries = [planned.recommend(model, user_id=f"u{row}", user_features=None, limit=CUTOFF).query for row in users]
    answers = model.rank(queries)
    assert ranker(users, CUTOFF) == [answer.items.tolist() for answer in answers]
    for row, answer in zip(users.tolist(), answers, strict=True):
        (own,) = ranker.model.rank([planned.known_user(ranker.model, row, limit=CUTOFF)])
        assert own.scores.tobytes() == answer.scores.tobytes()


def test_one_model_is_ranked_at_several_recencies() -> None:
    """Each ranker has user vectors for its own recency, so an earlier ranker does not change."""
    holdout, own = problem(repeats=False), TRIALS["blend by recency"]
    trained = train_trial(BUILDER, own, holdout.train, {}, holdout.times)
    users, first = np.arange(OFFSET, N_USERS), holdout.ranker_of(trained, own)
    before = first(users, CUTOFF)
    assert holdout.ranker_of(trained, replace(own, recency=2.0))(users, CUTOFF) != before
    assert first(users, CUTOFF) == before == holdout.ranker_of(trained, own)(users, CUTOFF)


def test_the_named_ratio_cures_a_zero_score(make_recipe: Make, log: Log) -> None:
    """The message names the smallest heldout_ratio that works. A run with it succeeds."""
    split = {"scheme": "time_user", "heldout_ratio": 0.01}
    assert run(make_recipe(training=training(split=split))).exit_code == 4
    error = last(log)
    assert error["code"] == "zero_score"
    ratio = float(next(word for word in error["error"].replace(";", " ").split() if word.startswith("0.08")))
    split["heldout_ratio"] = ratio
    assert run(make_recipe(training=training(split=split))).exit_code == 0


def test_a_cutoff_above_the_number_of_items_is_refused(make_recipe: Make, log: Log) -> None:
    """The error comes before any training and has the number of items. A cutoff of exactly that number works."""
    assert run(make_recipe(training=training(cutoff=41))).exit_code == 4
    assert last(log)["code"] == "cutoff_too_large"
    assert "40 items" in last(log)["error"]
    assert run(make_recipe(training=training(cutoff=40))).exit_code == 0
