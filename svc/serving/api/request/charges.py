"""What a request counts against the rate of its key: 1 for a plain question, more for what takes longer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from svc.errors import ApiError
from svc.model.ranking.query import Prepared, Query
from svc.serving.api.bodies.parsing import Rejected
from svc.serving.api.bodies.requests import AnyRequest, PopularQuery
from svc.serving.api.bodies.rules import RULES
from svc.serving.models.lanes import Lane


class Charge(NamedTuple):
    """How many plain questions a request counts. `least` leaves out what is only guessed.

    A request is not refused for good because of a guess: it would never be measured.
    """

    total: int
    least: int


def charge_of(
    lane: Lane, questions: Iterable[tuple[AnyRequest | PopularQuery | Rejected, Prepared | ApiError]]
) -> Charge:
    """The sum of what these questions count; one that has no query counts 1."""
    total = least = 0
    for request, prepared in questions:
        charge = Charge(1, 1)
        if not isinstance(request, Rejected) and not isinstance(prepared, ApiError):
            charge = _charge_of_one(lane, _own(request, prepared.query))
        total, least = total + charge.total, least + charge.least
    return Charge(total, least)


def _charge_of_one(lane: Lane, query: Query) -> Charge:
    """What one query counts: the power of two nearest to its weight, as measured weights vary."""
    count = 1 << max(round(math.log2(lane.weight(query))), 0)
    return Charge(count, count if lane.is_measured(query) else 1)


def _own(request: AnyRequest | PopularQuery, query: Query) -> Query:
    """The query without rules that the recipe adds: a key is charged for what it asks, not for what is configured."""
    if query.rules is None or not request.model_fields_set.isdisjoint(RULES):
        return query
    return query._replace(rules=None)
