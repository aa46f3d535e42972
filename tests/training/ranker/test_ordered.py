"""The rankings of a winner with its learned order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.ranking.query import Ranking
from svc.training.judging.evaluator import Rows
from svc.training.ranker.ordered import OrderedRanker
from tests.model.ranker.records import random_ranker
from tests.model.ranker.test_page_ranker import HISTORY, N_ITEMS, plain_page


class Falling:
    """Ranks items by descending column, without those in `gone`."""

    def __init__(self, gone: sparse.csr_matrix) -> None:
        self.gone = gone

    def excluding(self, pairs: sparse.csr_matrix) -> Falling:
        return Falling(pairs)

    def pools(self, users: Rows, size: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        for user in users.tolist():
            items = np.setdiff1d(np.arange(N_ITEMS), self.gone[user].indices)[::-1][:size].astype(np.int32)
            yield items, items.astype(np.float64)


def test_each_row_has_the_order_of_its_own_ranker_without_excluded_items() -> None:
    everyone, judge = (random_ranker(np.random.default_rng(seed), N_ITEMS) for seed in (1, 2))
    own = Falling(sparse.csr_matrix((1, N_ITEMS)))
    users, history = np.zeros(1, dtype=np.int64), HISTORY.items(0).tolist()
    without = sparse.csr_matrix(([1.0], ([0], [N_ITEMS - 3])), shape=(1, N_ITEMS))
    for judges, ranker in (({}, everyone), ({0: judge}, judge)):
        ordered = OrderedRanker(own, everyone, judges, HISTORY)
        for ranked, winner in ((ordered, own), (ordered.excluding(without), Falling(without))):
            ((items, scores),) = winner.pools(users, N_ITEMS)
            for size in (10, 70, N_ITEMS):
                assert ranked(users, size) == [plain_page(ranker, Ranking(items, scores), history)[:size]]
