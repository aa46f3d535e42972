"""The four recommendation verbs, answered without a web framework between the socket and the lane."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import trio

from svc import events, logs
from svc.errors import (
    ApiError,
    InternalError,
    MethodNotAllowed,
    NoCandidates,
    RecipeNotFound,
    RecipeUnavailable,
)
from svc.metrics import BATCH_ERRORS, LATENCY, REQUESTS, UNKNOWN_RECIPE
from svc.model.query import Prepared, Ranking
from svc.serving.bodies import Body
from svc.serving.fragments import Origin, encode_answer, encode_batch
from svc.serving.gate import Call, Gate, Reply
from svc.serving.registry import Served
from svc.serving.schemas import (
    AnyBatch,
    AnyRequest,
    RecommendBatch,
    RecommendRequest,
    Rejected,
    RelatedBatch,
    RelatedRequest,
    elements,
    parse,
)
from svc.serving.state import ServerState

PREFIX = "/v1/recipes/"
INLINE_BODY_BYTES = 4096
INLINE_ITEMS = 100
WORK_THREADS = 2

SINGLE: dict[str, type[RecommendRequest] | type[RelatedRequest]] = {
    "recommend": RecommendRequest,
    "recommend-related": RelatedRequest,
}
BATCH: dict[str, type[RecommendBatch] | type[RelatedBatch]] = {
    "batch-recommend": RecommendBatch,
    "batch-recommend-related": RelatedBatch,
}
_PATH = re.compile(
    r"/v1/recipes/([A-Za-z0-9_-]{1,64}):(recommend|recommend-related|batch-recommend|batch-recommend-related)"
)

Result = tuple[Ranking, Sequence[str]] | ApiError


class Target(NamedTuple):
    """The recipe and the verb that a path names."""

    name: str
    verb: str


def target(path: str) -> Target | None:
    """What a path asks for, or None when it is not one of the verbs."""
    match = _PATH.fullmatch(path)
    return Target(match[1], match[2]) if match else None


class Verbs:
    """Answers the verbs. One instance a server; requests share nothing else but the lanes."""

    def __init__(self, state: ServerState, gate: Gate) -> None:
        self._state = state
        self._gate = gate
        self._work = trio.CapacityLimiter(WORK_THREADS)
        self._present = 0

    async def answer(self, call: Call, target: Target) -> Reply:
        """The reply, counted in the request metrics. Raises what the error body is then made of."""
        started = time.perf_counter()
        status = "error"
        self._present += 1
        try:
            reply = await self._answer(call, target)
            status = "ok"
        except ApiError as error:
            status = error.metric_status()
            raise
        finally:
            self._present -= 1
            metrics = self._state.metrics
            recipe = target.name if self._state.registry.get(target.name) else UNKNOWN_RECIPE
            metrics.of(REQUESTS, recipe=recipe, status=status).inc()
            metrics.of(LATENCY, recipe=recipe).observe(time.perf_counter() - started)
        return reply

    async def _answer(self, call: Call, target: Target) -> Reply:
        if call.scope["method"] != "POST":
            raise MethodNotAllowed("this endpoint takes POST", fields={"allow": ["POST"]})
        await self._gate.authenticate(call)
        served = self._served(target.name)
        body = await self._gate.body(call)
        origin = Origin(call.request_id, target.name, served.model_version)
        if target.verb in SINGLE:
            answer = await self._single(SINGLE[target.verb], body, served, origin)
        else:
            answer = await self._batch(BATCH[target.verb], body, served, origin)
        return Reply(200, answer, [(b"x-svc-model-version", served.model_version.encode())])

    def _served(self, name: str) -> Served:
        """The model of now: the request keeps it, whatever is published meanwhile."""
        entry = self._state.registry.get(name)
        if entry is None:
            logs.emit(events.RECIPE_NOT_FOUND, name=name)
            raise RecipeNotFound("no recipe of this name is served here")
        if entry.served is None:
            raise RecipeUnavailable("the recipe has no model now; /v1/health/details says why")
        return entry.served

    async def _single(
        self,
        schema: type[RecommendRequest] | type[RelatedRequest],
        body: Body,
        served: Served,
        origin: Origin,
    ) -> bytes:
        if isinstance(body, bytes) and len(body) <= INLINE_BODY_BYTES:
            query, ignored = parse(schema, body).prepare(served.model)
        else:
            query, ignored = await trio.to_thread.run_sync(
                lambda: parse(schema, body).prepare(served.model), limiter=self._work, abandon_on_cancel=True
            )
        ranking = (await served.lane.rank((query,), alone=self._present == 1))[0]
        if not len(ranking.items):
            raise NoCandidates("no item is left to recommend after exclusions")
        if len(ranking.items) <= INLINE_ITEMS:
            return encode_answer(origin, ranking, served.fragments, ignored=ignored)
        return await trio.to_thread.run_sync(
            lambda: encode_answer(origin, ranking, served.fragments, ignored=ignored),
            limiter=self._work,
            abandon_on_cancel=True,
        )

    async def _batch(
        self, schema: type[RecommendBatch] | type[RelatedBatch], body: Body, served: Served, origin: Origin
    ) -> bytes:
        batch, prepared = await trio.to_thread.run_sync(
            _prepare_all, schema, body, served, limiter=self._work, abandon_on_cancel=True
        )
        queries = [element.query for element in prepared if isinstance(element, Prepared)]
        rankings = await served.lane.rank(queries) if queries else []
        results = _merge(prepared, rankings)
        for result in results:
            if isinstance(result, ApiError):
                self._state.metrics.of(BATCH_ERRORS, code=result.code).inc()
        return await trio.to_thread.run_sync(
            lambda: encode_batch(origin, results, served.fragments, with_metadata=batch.include_metadata),
            limiter=self._work,
            abandon_on_cancel=True,
        )


def _prepare_all(
    schema: type[RecommendBatch] | type[RelatedBatch], body: Body, served: Served
) -> tuple[AnyBatch, list[Prepared | ApiError]]:
    batch: AnyBatch = parse(schema, body)
    return batch, [_prepare(element, served) for element in elements(batch)]


def _prepare(element: AnyRequest | Rejected, served: Served) -> Prepared | ApiError:
    """The query of one element of a batch, or why there is none: no element can fail another."""
    if isinstance(element, Rejected):
        return element.error
    try:
        return element.prepare(served.model)
    except ApiError as error:
        return error
    except Exception as error:
        logs.emit(events.REQUEST_FAILED, error=f"{type(error).__name__}: {error}", exc_info=error)
        return InternalError("the server failed to answer this element; its log has the request id")


def _merge(prepared: Sequence[Prepared | ApiError], rankings: Sequence[Ranking]) -> list[Result]:
    """Rankings and errors in the order of the requests; an empty ranking is an error too."""
    results: list[Result] = []
    answers = iter(rankings)
    for element in prepared:
        if isinstance(element, ApiError):
            results.append(element)
            continue
        ranking = next(answers)
        if len(ranking.items):
            results.append((ranking, element.ignored_features))
        else:
            results.append(NoCandidates("no item is left to recommend after exclusions"))
    return results
