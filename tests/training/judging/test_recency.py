"""The choice of the recency of a trained model, and its evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from svc.training.judging.evaluator import Evaluator, Evaluators, Ranker, Rankings, Rows
from svc.training.judging.rankers import ScoreRanker, Scores
from svc.training.judging.recency import VALUES, HistoryOrder, RecencySearch, choose, judge

N_USERS, N_ITEMS = 200, 10
EMPTY = sparse.csr_matrix((N_USERS, N_ITEMS), dtype=np.float32)


def finding(n_users: int) -> ScoreRanker:
    """Return a ranker that puts the held-out item first for this many users, and last for the others."""

    def scorer(rows: Rows) -> Scores:
        scores = np.tile(np.arange(N_ITEMS, 0, -1.0), (len(rows), 1))
        scores[rows < n_users, N_ITEMS - 1] = 99.0
        return scores

    return ScoreRanker(scorer, EMPTY)


def chosen(found: dict[float, int]) -> tuple[float, float]:
    search = RecencySearch(tuple(found), lambda value: finding(found[value]))
    best = choose(search, Evaluators.of(evaluation(), "hit", 1))
    return best.recency, float(best.by_user.mean())


def evaluation() -> Evaluator:
    """Return an evaluator at cutoff 1, with the last item of each user held out."""
    columns = np.full(N_USERS, N_ITEMS - 1)
    heldout = sparse.csr_matrix((np.ones(N_USERS, np.float32), (np.arange(N_USERS), columns)), shape=EMPTY.shape)
    return Evaluator(heldout, offset=0, cutoff=1)


def test_the_best_recency_is_chosen() -> None:
    """The gain may be small. The lowest of equal values is chosen."""
    assert chosen({0.0: 50, 0.1: 60, 0.5: 90}) == (0.5, 0.45)
    assert chosen({0.0: 90, 0.1: 80, 0.5: 90}) == (0.0, 0.45)
    assert chosen({0.0: 50, 0.5: 49}) == (0.0, 0.25)
    assert chosen({0.0: 89, 0.5: 90}) == (0.5, 0.45)


def test_a_range_without_0_compares_with_its_own_lowest_value() -> None:
    """A range of one value is used without a comparison."""
    assert chosen({0.2: 50, 0.5: 50}) == (0.2, 0.25)
    assert chosen({0.5: 10}) == (0.5, 0.05)


def test_values_follow_bounds_a_fixed_recency_and_the_algorithm() -> None:
    """Both ends of a range are tried. An algorithm that ignores order has no values."""
    order = HistoryOrder(EMPTY, bounds={"RP3betaRecommender": (0.3, 0.8)})
    assert order.values("RP3betaRecommender") == (0.3, 0.35, 0.5, 0.75, 0.8)
    assert order.values("IALSRecommender") == VALUES
    assert order.values("TopPopRecommender") == order.values("BPRFMRecommender") == ()
    assert HistoryOrder(EMPTY, fixed=0.7).values("IALSRecommender") == (0.7,)


@pytest.mark.parametrize("peak", range(1, len(VALUES)))
def test_a_peak_is_reached_without_scoring_every_value(peak: int) -> None:
    """Each value costs an evaluation, so every third value is scored, and then the neighbours of the best."""
    hits = {value: 100 - 10 * abs(index - peak) for index, value in enumerate(VALUES)}
    scored: list[float] = []

    def at(value: float) -> ScoreRanker:
        scored.append(value)
        return finding(hits[value])

    search = RecencySearch(VALUES, at)
    best = choose(search, Evaluators.of(evaluation(), "hit", 1))
    assert (best.recency, best.by_user.mean()) == (VALUES[peak], 0.5)
    assert len(set(scored)) <= 7


def test_recencies_are_compared_on_the_sample_and_the_best_is_scored_on_all() -> None:
    """The users of the sample are not ranked again."""
    full = evaluation()
    evaluators = Evaluators(full, full.sample(N_USERS // 2, 1), "hit")
    n_rows: dict[float, int] = {0.0: 0, 0.5: 0}
    reported: list[float] = []

    def at(value: float) -> Ranker:
        def rank(rows: Rows, size: int) -> Rankings:
            n_rows[value] += len(rows)
            return finding(170 if value else 20)(rows, size)

        return rank

    fitted = judge(RecencySearch((0.0, 0.5), at), evaluators, reported.append)
    assert (fitted.recency, fitted.metrics["hit"]) == (0.5, 170 / N_USERS)
    assert n_rows == {0.0: N_USERS // 2, 0.5: N_USERS}
    assert reported == [evaluators.sample.by_user(evaluators.sample.rankings(finding(170)), "hit").mean()]
