"""One call of a scoring thread: each caller gets its own rankings, and an invalid query fails only its caller."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from svc.errors import RecipeUnavailable
from svc.model.ranking.query import Query, Ranking
from svc.serving.models import calls
from svc.serving.models.calls import Caller, fail, rank_groups, require_all
from svc.serving.models.costs import Cost

pytestmark = pytest.mark.anyio
FAULTY = 13


class Echo:
    """Answers each query with its own user. An invalid query fails the whole call, as in a scorer."""

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        if any(query.user == FAULTY for query in queries):
            raise MemoryError
        return [Ranking(np.array([query.user], np.int32), np.array([1.0])) for query in queries]


def ask(user: int, limit: int = 10) -> Query:
    return Query(limit=limit, user=user)


async def test_a_caller_gets_its_rankings_in_order_after_the_last_one() -> None:
    """The order holds if a taken query returns to the queue, too."""
    caller = Caller([ask(1), ask(2, 500), ask(3)])
    assert (caller.cost, caller.key, caller.has_begun) == (Cost.LONG, None, False)
    first = caller.take(2)
    assert [asked.cost for asked in first] == [Cost.PLAIN, Cost.LONG]
    caller.put_back(first.pop().position)
    for taken in (first, caller.take(5)):
        assert not caller.done.is_set()
        assert caller.has_begun
        ((outcomes, _),) = rank_groups(Echo(), [[asked.query for asked in taken]])
        for asked, outcome in zip(taken, outcomes, strict=True):
            caller.give(asked.position, outcome)
    assert caller.waiting == 0
    assert caller.done.is_set()
    assert [int(ranking.items[0]) for ranking in caller.rankings()] == [1, 2, 3]


async def test_a_caller_with_several_invalid_queries_gets_the_first_error() -> None:
    caller = Caller([ask(1), ask(2)])
    caller.give(0, ValueError("first"))
    assert caller.done.is_set()
    fail([caller])
    with pytest.raises(ValueError, match="first"):
        caller.rankings()
    stopped = Caller([ask(1)])
    fail([stopped])
    with pytest.raises(RecipeUnavailable):
        stopped.rankings()


def test_only_the_invalid_query_of_a_group_fails() -> None:
    ((outcomes, seconds), (others, _)) = rank_groups(Echo(), [[ask(1), ask(FAULTY), ask(2)], [ask(3)]])
    assert [type(outcome) for outcome in outcomes] == [Ranking, MemoryError, Ranking]
    assert isinstance(others[0], Ranking)
    assert seconds >= 0


def test_no_group_is_scored_after_the_time_limit_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group is always scored, however long it takes."""
    clock = iter(range(100))
    monkeypatch.setattr(calls.time, "thread_time", lambda: next(clock))
    groups = [[ask(user)] for user in range(9)]
    assert [seconds for _, seconds in rank_groups(Echo(), groups, 3.5)] == [1] * 4
    assert len(rank_groups(Echo(), groups, 0.0)) == 1


def test_a_model_that_returns_too_few_rankings_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 of 2"):
        require_all([Ranking(np.empty(0, np.int32), np.empty(0))], 2)
