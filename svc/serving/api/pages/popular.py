"""`GET /v1/recipes/{name}/popular`: the most chosen items, all or those that satisfy a filter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from svc.model.ranking.query import Prepared
from svc.recipe.filter_tree import count_conditions
from svc.serving.admission import WaitBudget
from svc.serving.api.bodies.parsing import parse_query
from svc.serving.api.bodies.requests import PopularQuery
from svc.serving.api.request.nothing_left import nothing_left
from svc.serving.models.costs import RULED_CONDITIONS, cost_class
from svc.serving.models.fragments import AnswerHeader, encode_answer
from svc.serving.models.registry import Served

BUDGET = "svc.budget"
"""The key of the ASGI scope for the `WaitBudget` of a request that needs a model."""
CHARGE = "svc.charge"
"""The key of the ASGI scope for the function that counts the request against the rate of its key."""
INLINE_FILTER_CHARACTERS = 4096

Charge = Callable[[int, int], Awaitable[None]]


async def popular_items(
    served: Served,
    request_id: str,
    arguments: Mapping[str, str],
    limiter: trio.CapacityLimiter,
    *,
    budget: WaitBudget,
    charge: Charge,
) -> bytes:
    """Return the body of the answer. Raises the ApiError for the client."""
    served.require_fresh()
    budget.require(served.lane)
    in_thread = partial(trio.to_thread.run_sync, limiter=limiter, abandon_on_cancel=True)
    if len(arguments.get("filter", "")) <= INLINE_FILTER_CHARACTERS:
        parameters = parse_query(PopularQuery, arguments)
    else:
        parameters = await in_thread(parse_query, PopularQuery, arguments)
    if parameters.filter is not None:  # charged before its filter is compiled, which takes most of the time
        conditions = count_conditions([parameters.filter], RULED_CONDITIONS)
        await charge(
            cost_class(limit=1, profile=0, described=0, is_ruled=False, is_other=True, conditions=conditions), 1
        )
    prepared: Prepared
    if parameters.prepares_long(served):
        prepared = await in_thread(parameters.prepare, served)
    else:
        prepared = parameters.prepare(served)
    ranking = (await served.lane.rank((prepared.query,), patience=budget))[0]
    if not len(ranking.items):
        raise await in_thread(nothing_left, parameters.filter, served.filters, prepared.query)
    header = AnswerHeader(request_id, served.name, served.model_version)
    return await in_thread(encode_answer, header, ranking.from_place(prepared.offset), served.fragments)
