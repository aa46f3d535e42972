"""One call of a scoring thread: each caller gets its own rankings, and a faulty question fails its caller alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from svc.errors import RecipeUnavailable
from svc.model.ranking.query import Query, Ranking
from svc.serving.models.calls import Share, Ticket, by_kind, checked, fail, give_all, rank_groups
from svc.serving.models.costs import PLAIN

pytestmark = pytest.mark.anyio
FAULTY = 13


class Echo:
    """Answers each query with its own user; a faulty one fails the whole call, as in a scorer."""

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        if any(query.user == FAULTY for query in queries):
            raise MemoryError
        return [Ranking(np.array([query.user], np.int32), np.array([1.0])) for query in queries]


def ask(user: int, limit: int = 10) -> Query:
    return Query(limit=limit, user=user)


async def test_a_caller_is_done_with_its_last_ranking_and_gets_them_in_order() -> None:
    ticket = Ticket([ask(1), ask(2), ask(3)])
    share = Share(ticket, range(3))
    assert share.next.user == 1
    for asked in (share.take(2), share.take(2)):
        assert not ticket.done.is_set()
        ((outcomes, _),) = rank_groups(Echo(), [[one.query for one in asked]])
        give_all(asked, outcomes)
    assert share.waiting == 0
    assert ticket.done.is_set()
    assert [int(ranking.items[0]) for ranking in ticket.rankings()] == [1, 2, 3]


async def test_the_first_error_is_that_of_the_caller() -> None:
    ticket = Ticket([ask(1), ask(2)])
    ticket.give(0, ValueError("first"))
    assert ticket.done.is_set()
    fail([ticket])
    with pytest.raises(ValueError, match="first"):
        ticket.rankings()
    stopped = Ticket([ask(1)])
    fail([stopped])
    with pytest.raises(RecipeUnavailable):
        stopped.rankings()


def test_kinds_are_scored_apart() -> None:
    """Each group holds the positions of its queries in the call."""
    groups = by_kind([ask(1), ask(2, 500), ask(3), ask(4, 400)])
    assert [group.positions for group in groups] == [[0, 2], [1, 3]]
    assert groups[0].kind is PLAIN


def test_only_the_faulty_question_of_a_group_fails() -> None:
    ((outcomes, seconds), (others, _)) = rank_groups(Echo(), [[ask(1), ask(FAULTY), ask(2)], [ask(3)]])
    assert [type(outcome) for outcome in outcomes] == [Ranking, MemoryError, Ranking]
    assert isinstance(others[0], Ranking)
    assert seconds >= 0


def test_a_model_that_answers_too_few_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 of 2"):
        checked([Ranking(np.empty(0, np.int32), np.empty(0))], 2)
