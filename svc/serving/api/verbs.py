"""The handler of the recommendation verbs: parse the body, prepare queries, score them in the model's queue, encode.

Short work runs on the event loop. Long work other than scoring runs in two threads, one for light and one for heavy
requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import trio

from svc.asking.costs import Cost, cost_of, costs_of
from svc.asking.filtering import compile_filters, plans_long
from svc.asking.page import PageAnswer, PageRequest, Steps, page_steps
from svc.asking.parsing import Rejected, parse, parse_query, refuse_unknown_parameters
from svc.asking.plan import plan
from svc.asking.requests import (
    AnyBatch,
    AnyQuestion,
    AnyRequest,
    PopularQuery,
    UsersRequest,
    elements,
    parse_batch,
)
from svc.asking.rerank import RerankRequest, rerank_steps
from svc.errors import ApiError, InternalError
from svc.lru_cache import LruCache
from svc.metrics import BATCH_ERRORS, BATCH_SIZE, UNKNOWN_RECIPE
from svc.model.ranking.query import NOTHING_MORE, NOTHING_RANKED, Prepared, Query, Ranking
from svc.serving.admission import SMALL_BYTES, Admission, Pace, WaitBudget
from svc.serving.api.bodies.reading import Body
from svc.serving.api.counts import AnswerFacts, cost_of_request, costs_of_rows, count_request
from svc.serving.api.endpoint import Endpoint, Route
from svc.serving.api.experiments import SHADOW_PATIENCE_S, Asker, choose, log_pages, numbers_of, shadow_of
from svc.serving.api.failures import log_failure, nothing_left
from svc.serving.api.key_policies import elements_in
from svc.serving.api.request import Request, ServerState
from svc.serving.models.fragments import (
    AnswerBody,
    AnswerHeader,
    batch_bytes,
    encode_elements,
    encode_fields,
    encode_page,
    encode_rerank,
    encode_users,
    fields_bytes,
    rerank_bytes,
    users_bytes,
)
from svc.serving.models.registry import Served
from svc.serving.models.threads import lower_priority
from svc.serving.transport.messages import ClientGone, Response

INLINE_BODY_BYTES = 4096
"""Longest body that is parsed and prepared on the event loop."""
INLINE_CHARACTERS = 256
"""Replaces INLINE_BODY_BYTES if the model splits texts into characters. Splitting 4,096 bytes takes 10 ms."""
INLINE_ITEMS = 100
"""Maximum number of items of an answer that is encoded on the event loop."""
LIGHT_BODY_BYTES = 16384
"""Longest body whose work goes to the thread for light requests, if the query is not expensive."""
CACHED_BYTES = 4096
"""Longest body, and longest answer, that is cached."""
ENTRY_BYTES = 512
"""Estimated memory of a cache entry besides the bytes of body and answer."""

AnySingle = AnyQuestion | PageRequest | RerankRequest
SHADOWED = ("recommend", "recommend-related")
"""Verbs whose requests a shadow arm ranks too."""

Result = tuple[Ranking, Prepared] | ApiError


class EncodedAnswer(NamedTuple):
    """The part of an answer that can be cached: the encoded items, without request id and recipe.

    `pages` has the ids of the items of each page, and is empty if nobody logs or compares them. Until `_find` returns,
    it may have columns instead of ids.
    """

    encoded: bytes
    facts: AnswerFacts
    pages: Sequence[Any]
    model_version: str = ""
    asker: Asker = Asker()


class Verbs:
    """The handler of the recommendation verbs. It holds the cache of answers and the two threads for long work."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._light, self._heavy = WorkThread(), WorkThread(state.precedence.give_way_in_thread)
        self._cached_answers: LruCache[tuple[object, str, bytes], EncodedAnswer] = LruCache(
            state.settings.cached_answers, state.settings.cached_answers_bytes
        )
        self._step: Callable[[str], AbstractContextManager[object]] = state.spans.step if state.spans else nullcontext

    async def answer(self, request: Request, route: Route, query: bytes) -> Response:
        """Answer a request, and count it in the request metrics. `query` is the raw query string.

        Raises an ApiError if the request is refused, and ClientGone if the client disconnects.
        """
        started = time.perf_counter()
        status = "error"
        try:
            response = await self._answer(request, route, query)
            status = "ok"
        except (ApiError, ClientGone) as error:
            status = error.metric_status
            raise
        except trio.Cancelled:  # the connection ended, which is no fault of the server
            status = ClientGone.metric_status
            raise
        finally:
            # Names that clients invent must not become labels, of which metrics keep each. A bool, because the
            # traceback of a refused request would keep an entry, and with it a replaced model.
            is_known = status == "ok" or self._state.registry.get(route.name) is not None
            recipe = route.name if is_known else UNKNOWN_RECIPE
            count_request(self._state.metrics, recipe, route.verb, status, time.perf_counter() - started)
        return response

    async def _answer(self, request: Request, route: Route, query: bytes) -> Response:
        endpoint = route.endpoint(request.method)
        await request.authenticate(endpoint, route.name)
        if query:
            refuse_unknown_parameters(query, endpoint.query, endpoint.request)
        self._state.shadows.present += 1
        try:
            return await self._answer_admitted(request, route, endpoint)
        finally:
            self._state.shadows.present -= 1

    async def _answer_admitted(self, request: Request, route: Route, endpoint: Endpoint) -> Response:
        entry, served = self._state.registry.require_served(route.name)
        entry.require_fresh()
        header = AnswerHeader(request.request_id, route.name, served.model_version)
        budget = request.budget()
        if endpoint.is_batch:
            answer = await self._batch(request, route, served, header, budget)
        else:
            answer_body = await self._single(request, route, served, budget)
            answer_body.facts.add_to(self._state.metrics, route.name, route.verb)
            header = header._replace(model_version=answer_body.model_version)
            answer = header.before(answer_body.encoded)
        return Response(200, answer, [(b"x-svc-model-version", header.model_version.encode())])

    async def popular(self, request: Request, served: Served, arguments: Mapping[str, str]) -> bytes:
        """Return the body of the answer with the most popular items. Raises an ApiError if the request is refused.

        `arguments` are the query parameters.
        """
        budget = request.budget()
        budget.require(served.lane)
        text = arguments.get("filter", "").encode()
        is_short, parse_arguments = _is_short(text, served), partial(parse_query, PopularQuery, arguments)
        question = parse_arguments() if is_short else await self._heavy.run(parse_arguments, budget.exclude)
        cost = cost_of_request(question)
        await request.charge(cost, 1)  # before the filter is compiled, because that takes most of the time
        answer = await self._find_ranking(question, self._thread(cost, text), served, budget, is_short=is_short)
        body = AnswerHeader(request.request_id, served.name, served.model_version).before(answer.encoded)
        return body if isinstance(body, bytes) else b"".join(body)

    async def _single(self, request: Request, route: Route, served: Served, budget: WaitBudget) -> EncodedAnswer:
        """Return the answer to a single request, from the cache if possible.

        An overloaded server still sends cached answers to requests whose body came with the head, because they do not
        wait in the queue of the model.
        """
        number, verb = numbers_of(served, self._state.registry), route.verb
        body: Body | None = request.incoming.whole_body
        answer = self._recall(number, verb, body)
        if answer is None:
            budget.require(served.lane)
            body = await _body(request, budget)
            if request.incoming.whole_body is None:
                answer = self._recall(number, verb, body)
            if answer is None:
                answer = await self._find(request, route, body, served, budget)
                # The list of an arm may have become too old meanwhile, so that another arm answered.
                if served.policy.experiment is None or numbers_of(served, self._state.registry) == number:
                    self._keep(number, verb, body, answer, served)
        if served.policy.experiment is not None or served.policy.served_log is not None:
            self._note(request.request_id, route, body, served, answer)
        return answer

    def _recall(self, number: object, verb: str, body: Body | None) -> EncodedAnswer | None:
        """Return the cached answer of these models to the same verb and body, or None. Large bodies have none."""
        return self._cached_answers.get((number, verb, body)) if isinstance(body, bytes) else None

    def _keep(self, number: object, verb: str, body: Body, answer: EncodedAnswer, served: Served) -> None:
        """Cache the answer if body and answer are short and the answer does not depend on the time."""
        if not isinstance(body, bytes) or max(len(body), len(answer.encoded)) > CACHED_BYTES:
            return
        # A boost or a pin may begin or end without a new `Served.number`, which is part of the cache's key.
        if not served.policy.timed:
            # The ids of the pages take about as much memory as the answer, which has them too.
            size = ENTRY_BYTES + len(body) + len(answer.encoded) * (2 if answer.pages else 1)
            self._cached_answers.put((number, verb, body), answer, size)

    def _note(self, request_id: str, route: Route, body: Body | None, served: Served, answer: EncodedAnswer) -> None:
        """Count and log the answer by its arm, and let the shadow arm rank the request too."""
        state, asker = self._state, answer.asker
        asker.add_to(state.metrics, served.name, "ok")
        log = partial(log_pages, state.served_logs, served, request_id=request_id, verb=route.verb)
        log(asker, answer.pages, model_version=answer.model_version)
        shadow = shadow_of(served, state.registry, asker.arm, request_id)
        if shadow is not None and route.verb in SHADOWED and isinstance(body, bytes) and len(body) <= LIGHT_BODY_BYTES:
            own, name = shadow
            log_shadow = partial(log, asker._replace(arm=name), model_version=own.model_version, is_shadow=True)
            state.shadows.put(served.name, answer.pages[0], partial(self._rank_shadow, route, body, own), log_shadow)

    async def _rank_shadow(self, route: Route, body: bytes, own: Served) -> tuple[str, ...]:
        """Return the ids of the items with which the shadow arm would have answered the request."""
        # An admission of its own, because a dropped shadow ranking must not count as a refused request.
        budget = WaitBudget(Admission(SHADOW_PATIENCE_S), None, trio.current_time())
        question, cost = await self._heavy.run(partial(_parse, route, body))
        assert not isinstance(question, PageRequest | RerankRequest), "their verbs are not in SHADOWED"
        prepared = await self._prepare(question, self._thread(cost, body), own, budget)
        ranking = (await self._rank(prepared.query, own, budget)).from_place(prepared.query.offset)
        (ids,) = _ids([ranking.items], own)
        return ids

    async def _find(
        self, request: Request, route: Route, body: Body, served: Served, budget: WaitBudget
    ) -> EncodedAnswer:
        """Return the answer of the model to a single request, without the cache. Raises an ApiError."""
        is_short = _is_short(body, served)
        question, cost = await self._parse(route, body, served, budget, is_short=is_short)
        # Charges before the filters are compiled, because a key without tokens must not cause that work.
        if isinstance(question, PageRequest):
            await request.charge(sum(costs_of_rows(question)), len(question.rows))
        else:
            await request.charge(cost, 1)
        own, asker = choose(question, served, self._state.registry)
        # The model of an arm may split texts into characters though the model of the recipe does not.
        is_short = is_short and (own is served or _is_short(body, own))
        thread = self._thread(cost, body)
        try:
            if isinstance(question, PageRequest | RerankRequest):
                parts = await self._find_in_steps(question, thread, own, budget, is_short=is_short)
            else:
                parts = await self._find_ranking(question, thread, own, budget, is_short=is_short)
        except (ApiError, ClientGone) as error:
            asker.add_to(self._state.metrics, served.name, error.metric_status)
            raise
        ids: Sequence[Sequence[str]] = ()
        if served.policy.served_log is not None or (served.policy.experiment and served.policy.experiment.shadow):
            get_ids = partial(_ids, parts.pages, own)
            n_items = sum(map(len, parts.pages))
            ids = get_ids() if n_items <= INLINE_ITEMS else await thread.run(get_ids)
        encoded = asker.fields(served.policy.experiment) + parts.encoded
        return EncodedAnswer(encoded, parts.facts, ids, own.model_version, asker)

    async def _find_ranking(
        self,
        question: AnyQuestion | PopularQuery,
        thread: WorkThread,
        served: Served,
        budget: WaitBudget,
        *,
        is_short: bool,
    ) -> EncodedAnswer:
        """Return the answer to a request for one ranking. Long work runs in `thread`. Raises an ApiError."""
        # Only for cheap requests: beside an expensive one, batches would run at a quarter of their speed until it ends.
        with self._state.precedence if thread is self._light else nullcontext():
            if is_short and not plans_long(question, served):
                prepared = plan(question, served)
            else:
                prepared = await self._prepare(question, thread, served, budget)
            ranking = await self._rank(prepared.query, served, budget)
        if not len(ranking.items) and not isinstance(question, UsersRequest):
            # In a thread, because finding the reason for the empty ranking may sort 60,000 labels (0.25 s).
            raise await thread.run(partial(nothing_left, question.filter, served.filters, prepared.query))
        page = ranking.from_place(prepared.query.offset)
        pages = [page.items]
        if isinstance(question, UsersRequest):
            pages = []
            size = users_bytes(page, served.model.user_ids, prepared)
            encode = partial(encode_users, page, served.model.user_ids, prepared)
        else:
            # Most pages are small whatever their items, so counting their bytes would only take time.
            is_small = not page.because and len(page.items) * served.fragments.longest <= SMALL_BYTES
            size = 0 if is_small else fields_bytes(page, served.fragments, prepared)
            encode = partial(encode_fields, page, served.fragments, prepared)
        # Small answers need no `hold` either (`Admission.hold`).
        if len(page.items) <= INLINE_ITEMS and size <= SMALL_BYTES:
            encoded = encode()
        else:
            with self._state.admission.hold(size):
                # In the thread of its class: 1,000 items with reasons take 0.1 s. Beside three clients of such answers,
                # the median of light requests in the same thread was 75 instead of 30 ms.
                encoded = await thread.run(encode)
        return EncodedAnswer(encoded, AnswerFacts.of(ranking, prepared), pages)

    async def _rank(self, query: Query, served: Served, budget: WaitBudget) -> Ranking:
        """Return the ranking of a query. Raises the errors of `Lane.rank`, and Overloaded if it would wait too long."""
        costs = (cost_of(query),)
        budget.require(served.lane, costs)
        alone = self._state.shadows.present == 1
        with self._step("rank"):
            (ranking,) = await served.lane.rank((query,), costs, alone=alone, patience=budget)
        return ranking

    async def _find_in_steps(
        self,
        question: PageRequest | RerankRequest,
        thread: WorkThread,
        served: Served,
        budget: WaitBudget,
        *,
        is_short: bool,
    ) -> EncodedAnswer:
        """Return the answer to a request that is planned anew after each ranking. Raises an ApiError."""
        is_here = is_short and thread is self._light and not plans_long(question, served)
        steps: Steps = (
            page_steps(question, served) if isinstance(question, PageRequest) else rerank_steps(question, served)
        )
        ranking: Ranking | None = None
        facts = AnswerFacts.of(NOTHING_RANKED, NOTHING_MORE)
        while True:
            advance = partial(_advance, steps, ranking)
            prepared, answer = advance() if is_here else await thread.run(advance, budget.exclude)
            if prepared is None:
                break
            ranking = await self._rank(prepared.query, served, budget)
            facts = AnswerFacts.of(ranking, prepared)
        if isinstance(answer, PageAnswer):
            size = sum(fields_bytes(row.ranking, served.fragments, row.prepared) for row in answer.rows)
            encode = partial(encode_page, answer, served.fragments)
            pages: list[Any] = [row.ranking.items for row in answer.rows]
        else:
            size = rerank_bytes(answer, served.fragments)
            encode = partial(encode_rerank, answer, served.fragments)
            pages = [[answer.ids[origin] for origin in answer.order.tolist()]]
        with self._state.admission.hold(size):
            encoded = encode() if is_here and size <= SMALL_BYTES else await thread.run(encode)
        return EncodedAnswer(encoded, facts, pages)

    def _thread(self, cost: Cost, body: Body) -> WorkThread:
        """Return the thread for the work on a single request, by the request's cost and the length of its body."""
        # Long bodies are heavy work whatever they ask, because validating them takes long.
        is_light = not cost.is_expensive and isinstance(body, bytes) and len(body) <= LIGHT_BODY_BYTES
        return self._light if is_light else self._heavy

    async def _parse(
        self, route: Route, body: Body, served: Served, budget: WaitBudget, *, is_short: bool
    ) -> tuple[AnySingle, Cost]:
        """Return the parsed request and its cost class. Parses a long body in a thread.

        Raises ValidationFailed. For a long body, also raises Overloaded if the expected waits for the thread and for
        the model's queue are too long together.
        """
        if is_short:
            return _parse(route, body)
        thread = self._thread(Cost.LONG, body)
        budget.require(served.lane, threads_s=thread.wait_s)
        return await thread.run(partial(_parse, route, body), budget.exclude)

    async def _prepare(
        self, question: AnyQuestion | PopularQuery, thread: WorkThread, served: Served, budget: WaitBudget
    ) -> Prepared:
        """Return the query of a request, prepared in `thread`.

        Raises the errors of `plan`, and Overloaded if the expected wait is too long.
        """
        budget.require(served.lane, threads_s=thread.wait_s)
        (prepared,) = await thread.run_steps(_preparation(question, served), budget.exclude)
        return prepared

    async def _batch(
        self, request: Request, route: Route, served: Served, header: AnswerHeader, budget: WaitBudget
    ) -> AnswerBody:
        """Return the body of the answer to a batch."""
        budget.require(served.lane, is_batch=True)
        body = await _body(request, budget)
        if request.permit is not None:  # a first charge by the number of elements, before the slow validation
            await request.charge(elements_in(body))
        budget.require(served.lane, is_batch=True, threads_s=self._heavy.wait_s)
        ((batch, cost),) = await self._heavy.run_steps(_parse_batch(route, body), budget.exclude)
        await request.charge(cost, len(elements(batch)))
        metrics, verb = self._state.metrics, route.verb
        metrics.of(BATCH_SIZE, recipe=header.recipe, verb=verb).observe(len(elements(batch)))
        asked = [Element(each, *choose(each, served, self._state.registry)) for each in elements(batch)]
        await self._heavy.run_steps(_prepare_all(asked), budget.exclude)
        with self._step("rank"):
            await self._rank_all(request, asked, budget)

        results: list[Result] = await self._heavy.run_steps(_results(asked))
        fragments = [element.own.fragments for element in asked]
        measure = partial(batch_bytes, results, fragments, with_metadata=batch.include_metadata)
        # Measured before it is encoded, because a batch of 9 KB has made an answer of 815 MB.
        with self._state.admission.hold(await self._heavy.run(measure)):
            named = [_named(element, served) for element in asked]
            # In slices: 64 answers with 57 MB held the thread for 3.1 s, and batches of all recipes waited.
            parts = await self._heavy.run_steps(
                encode_elements(results, fragments, named, with_metadata=batch.include_metadata)
            )
            answer = header.before_all(parts)
        for result, element in zip(results, asked, strict=True):
            status = result.metric_status if isinstance(result, ApiError) else "ok"
            element.asker.add_to(metrics, header.recipe, status)
            if isinstance(result, ApiError):
                metrics.of(BATCH_ERRORS, code=result.code).inc()
            else:
                AnswerFacts.of(*result).add_to(metrics, header.recipe, verb)
        if served.policy.served_log is not None:
            log = partial(log_pages, self._state.served_logs, served, request_id=header.request_id, verb=verb)
            await self._heavy.run(partial(_log_batch, log, asked, results))
        return answer

    @staticmethod
    async def _rank_all(request: Request, asked: Sequence[Element], budget: WaitBudget) -> None:
        """Rank each element that has a query. The elements of each arm wait in the queue of its model."""
        for own in dict.fromkeys(element.own for element in asked):
            ranked = [element for element in asked if element.own is own and isinstance(element.prepared, Prepared)]
            queries = [cast(Prepared, element.prepared).query for element in ranked]
            costs = costs_of(queries)
            budget.require(own.lane, costs, is_batch=True)
            if queries:  # `unless_gone` saves the scoring of a long batch if the client disconnects
                rank = partial(own.lane.rank, queries, costs, patience=budget)
                for element, ranking in zip(ranked, await request.unless_gone(rank), strict=True):
                    element.ranking = ranking


async def _body(request: Request, budget: WaitBudget) -> Body:
    """Return the body of a request. The time in which the client sends it is no wait."""
    if request.incoming.whole_body is not None:
        return await request.body()
    began_s = trio.current_time()
    body = await request.body()
    budget.exclude(trio.current_time() - began_s)
    return body


def _is_short(body: Body, served: Served) -> bool:
    """Return True if the body is short enough to be parsed and prepared on the event loop.

    The limit is lower for a model that splits texts into characters.
    """
    longest = INLINE_CHARACTERS if served.model.reads_characters else INLINE_BODY_BYTES
    return isinstance(body, bytes) and len(body) <= longest


def _parse(route: Route, body: Body) -> tuple[AnySingle, Cost]:
    """Return the parsed request and its cost class. Raises ValidationFailed."""
    question = parse(cast("type[AnySingle]", route.row.request), body)
    return question, cost_of_request(question)


def _advance(steps: Steps, ranking: Ranking | None) -> tuple[Prepared | None, Any]:
    """Return the next query of the steps, or None and their result. `ranking` is that of the query before, if any."""
    try:
        return (next(steps) if ranking is None else steps.send(ranking)), None
    except StopIteration as end:
        return None, end.value


def _parse_batch(route: Route, body: Body) -> Iterator[tuple[AnyBatch, int] | None]:
    """Yield the batch and its cost. Raises ValidationFailed.

    For a large body, first yields None after each parsed element. A time slice can end at each yield.
    """
    for batch in parse_batch(cast("type[AnyBatch]", route.row.request), body):
        yield None if batch is None else (batch, sum(map(cost_of_request, elements(batch))))


def _preparation(question: AnyQuestion | PopularQuery, served: Served) -> Iterator[Prepared | None]:
    """Yield None after each compiled condition of the filters, then the query. A time slice can end at each yield."""
    yield from compile_filters(question, served)
    yield plan(question, served)


def _ids(pages: Sequence[Any], served: Served) -> list[tuple[str, ...]]:
    """Return the ids of the items of each page, which has their columns, or their ids already."""
    return [tuple(page if isinstance(page, list) else map(served.names.at, page.tolist())) for page in pages]


@dataclass(slots=True, eq=False)
class Element:
    """An element of a batch, with the model and the arm that answer it."""

    request: AnyRequest | Rejected
    own: Served
    asker: Asker
    prepared: Prepared | ApiError = NOTHING_MORE
    ranking: Ranking = NOTHING_RANKED


def _log_batch(log: Callable[..., None], asked: Sequence[Element], results: Sequence[Result]) -> None:
    for element, result in zip(asked, results, strict=True):
        if not isinstance(result, ApiError):
            log(element.asker, _ids([result[0].items], element.own), model_version=element.own.model_version)


def _named(element: Element, served: Served) -> bytes:
    """Return the JSON fields of an element of a batch that name its arm and its model."""
    fields = element.asker.fields(served.policy.experiment)
    return fields and b'%b"model_version":"%b",' % (fields, element.own.model_version.encode())


def _prepare_all(asked: Sequence[Element]) -> Iterator[None]:
    """Find the query or the error of each element. Yields after each compiled condition, and after each element."""
    for element in asked:
        try:
            if isinstance(element.request, Rejected):
                element.prepared = element.request.error
            else:
                yield from compile_filters(element.request, element.own)
                element.prepared = plan(element.request, element.own)
        except ApiError as error:
            element.prepared = error
        except Exception as error:
            log_failure(error)
            element.prepared = InternalError("the server failed to answer this element; its log has the request id")
        yield


def _results(asked: Sequence[Element]) -> Iterator[Result]:
    """Yield the result of each element, in their order: a ranking with its query, or an error.

    An empty ranking becomes an error. Finding the reason for this error may take a pass over all items.
    """
    for element in asked:
        request, prepared = element.request, element.prepared
        if isinstance(prepared, ApiError):
            yield prepared
        elif len(element.ranking.items):
            yield element.ranking.from_place(prepared.query.offset), prepared
        else:
            tree = None if isinstance(request, Rejected) else request.filter
            yield nothing_left(tree, element.own.filters, prepared.query)


T = TypeVar("T")
SLICE_S = 0.02
"""Processor time in seconds after which a long piece of work lets other waiting work go first."""


class WorkThread:
    """A thread that executes work in the order of arrival, and can divide long work into time slices."""

    def __init__(self, give_way: Callable[[float], None] = lambda _: None) -> None:
        self._give_way = give_way
        self._limiter = trio.CapacityLimiter(1)
        self._pace = Pace()

    @property
    def wait_s(self) -> float:
        """Expected seconds until new work begins, without the work that runs now.

        Assumes SLICE_S for each waiting piece of work until enough pieces have been measured.
        """
        return self._limiter.statistics().tasks_waiting * (self._pace.each_s or SLICE_S)

    async def run(self, work: Callable[[], T], note: Callable[[float], None] = lambda _: None) -> T:
        """Return the result of `work`, called in the thread. Pass the seconds that it took to `note`.

        Cancellation does not wait until `work` ends.
        """
        return await trio.to_thread.run_sync(self._measure, work, note, limiter=self._limiter, abandon_on_cancel=True)

    async def run_steps(self, steps: Iterator[T | None], note: Callable[[float], None] = lambda _: None) -> list[T]:
        """Return the results of `steps` other than None, advanced in the thread. `note` gets the seconds they took.

        After each SLICE_S of processor time, other work that waits for the thread goes first.
        """
        results: list[T] = []
        while await self.run(partial(_take_some, steps, results, self._give_way), note):
            pass
        return results

    def _measure(self, work: Callable[[], T], note: Callable[[float], None]) -> T:
        lower_priority()  # trio reuses threads, and a thread that has scored keeps its low priority anyway
        started = time.perf_counter()
        try:
            return work()
        finally:
            taken_s = time.perf_counter() - started
            self._pace.learn(taken_s, 1)
            note(taken_s)


def _take_some(steps: Iterator[T | None], results: list[T], give_way: Callable[[float], None]) -> bool:
    """Advance `steps` for SLICE_S of processor time, at least once. Returns True if it may have further results.

    Results other than None are appended to `results`.
    """
    # Processor time, because a thread of low priority may stand still for most of a slice.
    ends_at = time.thread_time() + SLICE_S
    began_at = time.perf_counter()
    for step in steps:
        if step is not None:
            results.append(step)
        give_way(time.perf_counter() - began_at)
        began_at = time.perf_counter()
        if time.thread_time() >= ends_at:
            return True
    return False
