"""The cost of a question is known by its kind before it is scored, and learned from what others of its kind took."""

from __future__ import annotations

import math

import numpy as np
import pytest

from svc.model.ranking.query import Query
from svc.model.ranking.rerank import Rules
from svc.serving.models.costs import (
    DEAR_WEIGHT,
    MOST_KINDS,
    PLAIN,
    PLAIN_LIMIT,
    PLAIN_SEEDS,
    Costs,
    Kind,
    Median,
    kind_of,
)
from tests.serving.models.test_dear import BOOSTED, DIVERSE

SEEDS = np.arange(PLAIN_SEEDS + 1, dtype=np.int32)


@pytest.mark.parametrize(
    ("query", "is_plain"),
    [
        (Query(limit=PLAIN_LIMIT, user=1), True),
        (Query(limit=10, seeds=SEEDS[:-1]), True),
        (Query(limit=PLAIN_LIMIT + 1, user=1), False),
        (Query(limit=10, seeds=SEEDS), False),
        (Query(limit=10, user=1, explain=1), False),
        (Query(limit=10, user=1, rules=Rules(diversity=0.1)), False),
        (Query(limit=10, popular=True), False),
        (Query(limit=10, user_features=np.zeros(3)), False),
        (BOOSTED, False),
    ],
)
def test_a_plain_question_has_neither_rules_nor_reasons_nor_sizes(query: Query, is_plain: bool) -> None:
    assert (kind_of(query) is PLAIN) == is_plain


def test_before_it_was_measured_a_kind_has_a_guessed_weight() -> None:
    """Rules that look at all items, and many choices by diversity, are taken to be dear."""
    costs = Costs()
    assert costs.weight(Query(limit=10, user=1)) == 1
    assert costs.weight(BOOSTED) > DEAR_WEIGHT
    assert costs.weight(DIVERSE) > DEAR_WEIGHT
    assert not costs.is_dear(Query(limit=1000, user=1))
    assert not costs.is_measured(BOOSTED)


def test_measured_weights_replace_the_guessed_ones() -> None:
    """What turns out to be cheap is not dear any more; a size within the same two times is the same kind."""
    costs = Costs()
    for _ in range(5):
        costs.learn(PLAIN, 1, 1e-3)
        costs.learn(kind_of(BOOSTED), 2, 3e-3)
        costs.learn(kind_of(Query(limit=600, user=1)), 1, 40e-3)
    assert costs.weight(BOOSTED) == pytest.approx(1.5)
    assert costs.weight(Query(limit=1000, user=2)) == pytest.approx(40)
    assert costs.weight(Query(limit=500, user=2)) == 1


def test_the_median_is_found_soon_and_hardly_moved_later() -> None:
    """Also when the first measurement was of a cold machine."""
    median = Median()
    assert median.value == math.inf
    for measured in (50.0, *[1.0] * 60):
        median.learn(measured)
    assert 0.9 < median.value < 1.2
    median.learn(1000.0)
    assert median.value < 1.3


def test_the_kinds_that_are_kept_are_bounded() -> None:
    costs = Costs()
    kinds = [Kind(limit=6, profile=number) for number in range(MOST_KINDS + 1)]
    for kind in kinds:
        costs.learn(kind, 1, 1.0)
    assert len(costs._kinds) == MOST_KINDS
    assert kinds[0] not in costs._kinds
