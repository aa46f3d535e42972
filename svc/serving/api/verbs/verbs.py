"""The recommendation verbs.

No web framework stands between the socket and the lane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from svc.errors import (
    ApiError,
    InternalError,
    RecipeUnavailable,
)
from svc.lru_cache import LruCache
from svc.metrics import BATCH_ERRORS, BATCH_SIZE, UNKNOWN_RECIPE
from svc.model.ranking.query import Prepared, Ranking
from svc.serving.admission import WaitBudget
from svc.serving.api.access.key_policies import elements_in
from svc.serving.api.bodies.parsing import Rejected, parse, refuse_unknown_parameters
from svc.serving.api.bodies.reading import Body
from svc.serving.api.bodies.requests import (
    AnyBatch,
    AnyQuestion,
    AnyRequest,
    RecommendBatch,
    RecommendRequest,
    RelatedBatch,
    RelatedRequest,
    UsersRequest,
    elements,
)
from svc.serving.api.request.failures import log_failure
from svc.serving.api.request.nothing_left import nothing_left
from svc.serving.api.request.request import Request
from svc.serving.api.request.state import ServerState
from svc.serving.api.routing.endpoint import Endpoint, Route
from svc.serving.api.verbs.counts import Facts, count_request
from svc.serving.models.costs import Cost, cost_class
from svc.serving.models.fragments import AnswerHeader, encode_batch, encode_fields, encode_users
from svc.serving.models.registry import Served
from svc.serving.transport.messages import Response

T = TypeVar("T")
INLINE_BODY_BYTES = 4096
INLINE_CHARACTERS = 256
"""Longest body that the event loop prepares for a model that reads runs of characters.

A body of 4,096 took 10 ms.
"""
INLINE_ITEMS = 100
WORK_THREADS = 2
SLICE_S = 0.02
"""Processor time after which the preparation of a batch goes to the end of the queue for a thread."""
CACHED_BYTES = 4096
"""Longest question or answer that the cache keeps."""
ENTRY_BYTES = 512
"""Memory of a cached answer beside the bytes of the question and the answer.

It covers the objects and the entry in the mapping.
"""

SINGLE: dict[str, type[RecommendRequest] | type[RelatedRequest] | type[UsersRequest]] = {
    "recommend": RecommendRequest,
    "recommend-related": RelatedRequest,
    "recommend-users": UsersRequest,
}
BATCH: dict[str, type[RecommendBatch] | type[RelatedBatch]] = {
    "batch-recommend": RecommendBatch,
    "batch-recommend-related": RelatedBatch,
}

Result = tuple[Ranking, Prepared] | ApiError


def cost_of_request(asked: AnyQuestion | Rejected) -> Cost:
    """Return the cost class of a question.

    Rules that the recipe adds are not counted, because the client did not ask for them.
    """
    if isinstance(asked, Rejected):
        return Cost.PLAIN
    if isinstance(asked, UsersRequest):
        return cost_class(limit=asked.offset + asked.limit, profile=0, described=0, is_ruled=True, is_other=False)
    if isinstance(asked, RelatedRequest):
        features = asked.item_features or {}
        profile = len(asked.seed_items or ())
        described = sum(isinstance(item, dict) for item in features.values()) or bool(features)
        is_known, varies = profile > 0, False
    else:
        chosen = len(asked.history or ())
        profile, described = chosen + len(asked.dislikes or ()), 0
        is_known, varies = asked.user_id is not None or chosen > 0, asked.varies
    return cost_class(
        limit=asked.offset + asked.limit,
        profile=profile,
        described=described,
        is_ruled=bool(asked.explain or asked.diversity or asked.limits or asked.boosts or varies),
        is_other=bool(asked.pins) or not is_known,
    )


class EncodedAnswer(NamedTuple):
    """The answer of a model to a question.

    Its bytes are the same each time that the question comes.
    """

    encoded: bytes
    facts: Facts


class Verbs:
    """Handler of the verbs.

    There is one instance per server. Apart from it, requests share only the lanes.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._work = trio.CapacityLimiter(WORK_THREADS)
        self._present = 0
        self._cached_answers: LruCache[tuple[int, str, bytes], EncodedAnswer] = LruCache(
            state.settings.cached_answers, state.settings.cached_answers_bytes
        )
        self._step: Callable[[str], AbstractContextManager[object]] = state.spans.step if state.spans else nullcontext

    async def answer(self, request: Request, route: Route, query: bytes) -> Response:
        """Return the response, and count it in the request metrics.

        Raises the error that the client must get.
        """
        started = time.perf_counter()
        status = "error"
        try:
            response = await self._answer(request, route, query)
            status = "ok"
        except ApiError as error:
            status = error.metric_status
            raise
        finally:
            recipe = route.name if self._state.registry.get(route.name) else UNKNOWN_RECIPE
            count_request(self._state.metrics, recipe, route.verb, status, time.perf_counter() - started)
        return response

    async def _answer(self, request: Request, route: Route, query: bytes) -> Response:
        endpoint = route.endpoint(request.method)
        await request.authenticate(endpoint, route.name)
        if query:
            refuse_unknown_parameters(query, endpoint.query, endpoint.request)
        self._present += 1
        try:
            return await self._admitted(request, route, endpoint)
        finally:
            self._present -= 1

    async def _admitted(self, request: Request, route: Route, endpoint: Endpoint) -> Response:
        served = self._served(route.name)
        header = AnswerHeader(request.request_id, route.name, served.model_version)
        budget = request.budget(self._state.admission)
        if endpoint.is_batch:
            answer = await self._batch(request, route.verb, served, header, budget)
        else:
            answer_body = await self._single(request, route.verb, served, budget)
            answer_body.facts.add_to(self._state.metrics, route.name, route.verb)
            answer = header.before(answer_body.encoded)
        return Response(200, answer, [(b"x-svc-model-version", served.model_version.encode())])

    def _served(self, name: str) -> Served:
        """Return the current model of a recipe.

        The request keeps this model, even if another one is published meanwhile.
        """
        entry = self._state.registry.require(name)
        if entry.served is None:
            raise RecipeUnavailable
        entry.served.require_fresh()
        return entry.served

    async def _single(self, request: Request, verb: str, served: Served, budget: WaitBudget) -> EncodedAnswer:
        """Return the answer to one question.

        A cached answer is neither ranked again nor ever refused.
        """
        answer = self._recall(served, verb, request.whole_body)
        if answer is not None:
            return answer
        budget.require(served.lane)
        body = await request.body()
        if request.whole_body is None:
            answer = self._recall(served, verb, body)
        if answer is None:
            answer = await self._find(request, verb, body, served, budget)
            self._keep(served, verb, body, answer)
        return answer

    def _recall(self, served: Served, verb: str, body: Body | None) -> EncodedAnswer | None:
        """Return the cached answer to the question in the body, or None."""
        return self._cached_answers.get((served.number, verb, body)) if isinstance(body, bytes) else None

    def _keep(self, served: Served, verb: str, body: Body, answer: EncodedAnswer) -> None:
        if not isinstance(body, bytes) or max(len(body), len(answer.encoded)) > CACHED_BYTES:
            return
        if not served.policy.timed:  # a rule may begin or end at any moment
            self._cached_answers.put((served.number, verb, body), answer, ENTRY_BYTES + len(body) + len(answer.encoded))

    async def _find(self, request: Request, verb: str, body: Body, served: Served, budget: WaitBudget) -> EncodedAnswer:
        asked = await self._parsed(SINGLE[verb], body, served, budget)
        if request.permit is not None:
            await request.charge(cost_of_request(asked), 1)
        prepared = await self._prepared(asked, body, served, budget)
        queries = (prepared.query,)
        budget.require(served.lane, queries)
        with self._step("rank"):
            (ranking,) = await served.lane.rank(queries, alone=self._present == 1, patience=budget)
        if not len(ranking.items) and not isinstance(asked, UsersRequest):
            raise await trio.to_thread.run_sync(  # sorting 60,000 labels takes 0.25 s
                nothing_left, asked.filter, served.filters, limiter=self._work, abandon_on_cancel=True
            )
        page = ranking.from_place(prepared.offset)
        if isinstance(asked, UsersRequest):
            encode = partial(encode_users, page, served.model.user_ids, prepared)
        else:
            encode = partial(encode_fields, page, served.fragments, prepared)
        if len(page.items) <= INLINE_ITEMS:
            encoded = encode()
        else:
            encoded = await trio.to_thread.run_sync(encode, limiter=self._work, abandon_on_cancel=True)
        return EncodedAnswer(encoded, Facts.of(ranking, prepared))

    async def _parsed(self, schema: type[AnyQuestion], body: Body, served: Served, budget: WaitBudget) -> AnyQuestion:
        """Parse on the event loop, or in a thread if the body is long."""
        if _is_short(body, served):
            return parse(schema, body)
        return await self._beside(partial(parse, schema, body), served, budget)

    async def _prepared(self, asked: AnyQuestion, body: Body, served: Served, budget: WaitBudget) -> Prepared:
        """Prepare the query of a request.

        This runs in a thread if the body is long or a filter must be compiled first, and on the event loop otherwise.
        """
        if _is_short(body, served) and not asked.has_new_filter(served):
            return asked.prepare(served)
        return await self._beside(partial(asked.prepare, served), served, budget)

    async def _beside(self, work: Callable[[], T], served: Served, budget: WaitBudget, *, is_batch: bool = False) -> T:
        """Run `work` in a thread and return its result.

        Raises Overloaded when the wait for a thread would be too long.
        """
        threads_s = self._work.statistics().tasks_waiting * SLICE_S / WORK_THREADS
        budget.require(served.lane, is_batch=is_batch, threads_s=threads_s)
        return await trio.to_thread.run_sync(work, limiter=self._work, abandon_on_cancel=True)

    async def _batch(
        self, request: Request, verb: str, served: Served, header: AnswerHeader, budget: WaitBudget
    ) -> bytes:
        budget.require(served.lane, is_batch=True)
        body = await request.body()
        if request.permit is not None:
            await request.charge(elements_in(body))
        batch = await self._beside(partial(_parse_batch, BATCH[verb], body), served, budget, is_batch=True)
        if request.permit is not None:
            await request.charge(sum(map(cost_of_request, elements(batch))), len(elements(batch)))
        metrics = self._state.metrics
        metrics.of(BATCH_SIZE, recipe=header.recipe, verb=verb).observe(len(elements(batch)))
        prepared: list[Prepared | ApiError] = []
        while len(prepared) < len(elements(batch)):
            rest = elements(batch)[len(prepared) :]
            prepared += await trio.to_thread.run_sync(
                _prepare_some, rest, served, limiter=self._work, abandon_on_cancel=True
            )
        queries = [element.query for element in prepared if isinstance(element, Prepared)]
        budget.require(served.lane, queries, is_batch=True)
        with self._step("rank"):
            rankings: list[Ranking] = []
            if queries:  # a batch whose client has left is not scored to its end
                rankings = await request.unless_gone(partial(served.lane.rank, queries, patience=budget))

        def merge_and_encode() -> tuple[list[Result], bytes]:
            """Merge the results and encode the answer.

            This runs in a thread, because naming a condition that no item satisfies takes a pass over all items.
            """
            results = _merge(elements(batch), prepared, rankings, served)
            return results, encode_batch(header, results, served.fragments, with_metadata=batch.include_metadata)

        results, answer = await trio.to_thread.run_sync(merge_and_encode, limiter=self._work, abandon_on_cancel=True)
        for result in results:
            if isinstance(result, ApiError):
                metrics.of(BATCH_ERRORS, code=result.code).inc()
            else:
                Facts.of(*result).add_to(metrics, header.recipe, verb)
        return answer


def _is_short(body: Body, served: Served) -> bool:
    """Return whether the event loop may parse and prepare the body."""
    longest = INLINE_CHARACTERS if served.model.reads_characters else INLINE_BODY_BYTES
    return isinstance(body, bytes) and len(body) <= longest


def _parse_batch(schema: type[RecommendBatch] | type[RelatedBatch], body: Body) -> AnyBatch:
    return parse(schema, body)


def _prepare_some(asked: Sequence[AnyRequest | Rejected], served: Served) -> list[Prepared | ApiError]:
    """Prepare the first elements, until SLICE_S of processor time has passed.

    At least one element is prepared.
    """
    ends_at = time.thread_time() + SLICE_S
    prepared: list[Prepared | ApiError] = []
    for element in asked:
        prepared.append(_prepare(element, served))
        if time.thread_time() >= ends_at:
            break
    return prepared


def _prepare(element: AnyRequest | Rejected, served: Served) -> Prepared | ApiError:
    """Return the query of one element of a batch, or its error.

    An element never makes another one fail.
    """
    if isinstance(element, Rejected):
        return element.error
    try:
        return element.prepare(served)
    except ApiError as error:
        return error
    except Exception as error:
        log_failure(error)
        return InternalError("the server failed to answer this element; its log has the request id")


def _merge(
    asked: Sequence[AnyRequest | Rejected],
    prepared: Sequence[Prepared | ApiError],
    rankings: Sequence[Ranking],
    served: Served,
) -> list[Result]:
    """Return rankings and errors in the order of the requests.

    An empty ranking becomes an error too.
    """
    results: list[Result] = []
    answers = iter(rankings)
    for request, element in zip(asked, prepared, strict=True):
        if isinstance(element, ApiError):
            results.append(element)
            continue
        ranking = next(answers)
        if len(ranking.items):
            results.append((ranking.from_place(element.offset), element))
        else:
            tree = None if isinstance(request, Rejected) else request.filter
            results.append(nothing_left(tree, served.filters))
    return results
