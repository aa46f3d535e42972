"""Refusals at three times the load that the server can answer, in virtual time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from svc.asking.costs import Cost, costs_of
from svc.errors import Overloaded, ValidationFailed
from svc.model.ranking.query import Query, Ranking
from svc.serving.admission import (
    FEWEST_SLICES,
    SLICE_S,
    SLICES,
    TIMEOUT_HEADER,
    Admission,
    Pace,
    UnsentBytes,
    WaitBudget,
    parse_timeout,
)
from svc.serving.api.authentication import hash_api_key, new_api_key, parse_api_keys
from svc.serving.models.lanes import MAX_BATCH, Lane
from svc.serving.models.threads import ScoringThreads
from svc.settings import Settings
from tests.serving.client import RECOMMEND, Answer, Client, answer_of, serving
from tests.serving.sent import Sent

pytestmark = pytest.mark.anyio
CALL_S, EACH_S = 0.002, 0.004
CAPACITY = MAX_BATCH / (CALL_S + MAX_BATCH * EACH_S)
LIMIT_S = 4.0
LONG = 100
"""A length of answers that are never made on the event loop."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Use a clock that jumps at once, because no socket or real thread takes part."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


class Threads:
    """A scoring thread whose calls take virtual time. The next call takes `pause_s` longer."""

    def __init__(self, call_s: float, each_s: float) -> None:
        self._call_s, self._each_s = call_s, each_s
        self.pause_s = 0.0

    async def run(self, function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        pause_s, self.pause_s = self.pause_s, 0.0
        await trio.sleep(self._call_s + self._each_s * sum(map(len, arguments[1])) + pause_s)
        return function(*arguments)


class Echo:
    """Answers each query with its own user."""

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        return [Ranking(np.array([query.user], np.int32), np.array([1.0])) for query in queries]


class Clients:
    """Queries a lane as the verbs do: checks the expected wait, then ranks."""

    def __init__(self, limit_s: float = LIMIT_S, call_s: float = CALL_S, each_s: float = EACH_S) -> None:
        self.threads = Threads(call_s, each_s)
        self.lane = Lane(Echo(), cast(ScoringThreads, self.threads))
        for size in (1 << bits for bits in range(MAX_BATCH.bit_length())):
            self.lane._costs.learn(size, size * each_s / Cost.LONG)
        self.admission = Admission(limit_s)
        self.answered: dict[str, list[float]] = defaultdict(list)
        self.refused: dict[str, list[float]] = defaultdict(list)

    async def ask(self, kind: str, count: int = 1, headers: dict[bytes, bytes] | None = None) -> bool:
        """Return True if the request was answered. Appends the seconds that its answer or refusal took."""
        began = trio.current_time()
        queries = [Query(limit=LONG, user=1)] * count
        try:
            budget = WaitBudget(self.admission, (headers or {}).get(TIMEOUT_HEADER), began)
            budget.require(self.lane, costs_of(queries) if count > 1 else None, is_batch=count > 1)
        except Overloaded as refusal:
            assert refusal.fields["retry_after"] >= 1
            self.refused[kind].append(trio.current_time() - began)
            return False
        await self.lane.rank(queries)
        self.answered[kind].append(trio.current_time() - began)
        return True

    async def open_loop(self, kind: str, rate: float, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            ends, step = trio.current_time() + seconds, 0.05
            sent = 0.0
            while trio.current_time() < ends:
                sent += rate * step
                for _ in range(int(sent)):
                    nursery.start_soon(self.ask, kind)
                sent -= int(sent)
                await trio.sleep(step)

    async def closed_loop(self, kind: str, clients: int, seconds: float, count: int = 1) -> None:
        ends = trio.current_time() + seconds

        async def client() -> None:
            while trio.current_time() < ends:
                if not await self.ask(kind, count):
                    await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(client)
                if number % (clients // 10 + 1) == 0:  # in groups, because each moment of virtual time takes real time
                    await trio.sleep(0.05)

    async def during(self, *loads: Callable[[], Any]) -> None:
        """Run the loads at the same time, on a lane that has measured the calls of one batch."""
        async with trio.open_nursery() as lanes:
            await lanes.start(self.lane.run)
            await self.ask("first", MAX_BATCH)
            async with trio.open_nursery() as nursery:
                for load in loads:
                    nursery.start_soon(load)
            lanes.cancel_scope.cancel()


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))]


@pytest.mark.parametrize("kind", ["open", "closed"])
async def test_at_three_times_the_capacity_accepted_requests_stay_in_time(kind: str) -> None:
    """At least 95% of the capacity is answered. The 99th percentile of their times stays below the limit.

    A refusal takes no time.
    """
    clients, seconds = Clients(), 4.0
    if kind == "open":
        load = lambda: clients.open_loop("single", 3 * CAPACITY, seconds)  # noqa: E731
    else:
        load = lambda: clients.closed_loop("single", round(3 * CAPACITY * LIMIT_S), seconds)  # noqa: E731
    await clients.during(load)
    answered, refused = clients.answered["single"], clients.refused["single"]
    assert len(answered) >= 0.95 * CAPACITY * seconds
    assert p99(answered) < LIMIT_S
    assert refused
    assert max(refused) == 0


async def test_without_the_limit_the_same_load_waits_longer_and_longer() -> None:
    """Without a limit, no request is refused. The 99th percentile of their times exceeds 1.5 times the limit."""
    clients = Clients(limit_s=0)
    await clients.during(lambda: clients.open_loop("single", 3 * CAPACITY, 4))
    assert not clients.refused["single"]
    assert p99(clients.answered["single"]) > 1.5 * LIMIT_S


async def test_after_the_load_no_request_is_refused() -> None:
    """The first request after an overload is answered within the time of two calls."""
    clients = Clients()

    async def load() -> None:
        await clients.open_loop("single", 3 * CAPACITY, 5)  # returns when all have been answered
        began = trio.current_time()
        assert await clients.ask("after")
        assert trio.current_time() - began <= 2 * (CALL_S + EACH_S)

    await clients.during(load)
    assert not clients.refused["after"]


async def test_clients_of_batches_never_starve_single_requests() -> None:
    """Twelve clients send batches without pause. No single request is refused. 99% take less than half the limit."""
    clients = Clients()
    await clients.during(
        lambda: clients.closed_loop("batch", 12, 20, MAX_BATCH), lambda: clients.open_loop("single", CAPACITY / 4, 20)
    )
    assert not clients.refused["single"]
    assert p99(clients.answered["single"]) < LIMIT_S / 2
    assert p99(clients.answered["batch"]) < 2 * LIMIT_S
    assert MAX_BATCH * len(clients.answered["batch"]) > 0.5 * CAPACITY * 20


async def test_batches_are_refused_before_single_requests() -> None:
    """Under too many single requests, the answered share of batches is less than half that of single requests."""
    clients = Clients()
    await clients.during(
        lambda: clients.open_loop("single", 1.5 * CAPACITY, 12), lambda: clients.closed_loop("batch", 4, 12, MAX_BATCH)
    )
    singles = len(clients.answered["single"]) / (len(clients.answered["single"]) + len(clients.refused["single"]))
    batches = len(clients.answered["batch"]) / (len(clients.answered["batch"]) + len(clients.refused["batch"]))
    assert batches < singles / 2
    assert p99(clients.answered["single"]) < LIMIT_S


@pytest.mark.parametrize("kind", ["call", "machine"])
@pytest.mark.parametrize("seed", range(8))
async def test_one_slow_call_or_one_pause_of_the_machine_causes_no_refusal(kind: str, seed: int) -> None:
    """A server with few clients refuses nothing, although one call or the whole machine pauses for up to 10 seconds."""
    pick = random.Random(seed)
    clients = Clients(limit_s=2, call_s=0.02, each_s=1e-4)
    pause_s = pick.choice((0.5, 3.0, 10.0))

    async def pause() -> None:
        await trio.sleep(pick.uniform(0, 1))
        if kind == "call":
            clients.threads.pause_s = pause_s
        else:
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(pause_s)

    async def lightly_used() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pause)
            nursery.start_soon(clients.closed_loop, "batch", 4, 2 + pause_s, 64)
            nursery.start_soon(clients.closed_loop, "single", 4, 2 + pause_s)
            nursery.start_soon(clients.open_loop, "single", 50, 2 + pause_s)

    await clients.during(lightly_used)
    assert not any(clients.refused.values())
    assert max(clients.answered["single"] + clients.answered["batch"]) >= pause_s


async def test_an_accepted_batch_is_not_starved_by_single_requests() -> None:
    """Each call reserves places for batches, however many single requests wait."""
    clients = Clients(limit_s=0)
    ended = []

    async def batch() -> None:
        await trio.sleep(1)
        began = trio.current_time()
        await clients.ask("batch", MAX_BATCH)
        ended.append(trio.current_time() - began)

    await clients.during(lambda: clients.open_loop("single", 3 * CAPACITY, 4), batch)
    assert ended[0] < 8 * MAX_BATCH * EACH_S


async def test_a_request_with_a_shorter_timeout_is_refused_sooner() -> None:
    """X-Request-Timeout-Ms also applies if the server has no limit. An idle server accepts any timeout."""
    clients = Clients(limit_s=0)
    short = {b"x-request-timeout-ms": b"800"}

    async def load() -> None:
        assert await clients.ask("alone", headers={b"x-request-timeout-ms": b"1"})
        async with trio.open_nursery() as nursery:
            for _ in range(3 * MAX_BATCH):
                nursery.start_soon(clients.ask, "other")
            await trio.testing.wait_all_tasks_blocked()
            assert not await clients.ask("short", headers=short)
            nursery.start_soon(clients.ask, "long", 1, {b"x-request-timeout-ms": b"60000"})

    await clients.during(load)
    assert clients.answered["long"]


@pytest.mark.parametrize("value", [b"0", b"-1", b"1.5", b"", b"soon", b"1" * 10, "\u0661".encode()])
def test_an_invalid_timeout_is_refused_by_name(value: bytes) -> None:
    """The answer is 422 with the header, but without its value."""
    with pytest.raises(ValidationFailed) as caught:
        parse_timeout(value)
    assert caught.value.errors[0]["loc"] == ["header", "X-Request-Timeout-Ms"]


async def late(client: Client, method: str, target: str, late_s: float = 2.5, **more: Any) -> Answer:
    """Return the answer to a request that is late."""
    headers = [(b"host", b"localhost"), (b"x-request-id", b"r1")]
    response = await client.app(Sent(method, target.encode(), headers, late_s=late_s, **more))
    assert response is not None
    return answer_of(response)


async def test_a_late_request_is_refused_before_its_work() -> None:
    """The answer is 503 with Retry-After and the request id. Paths without a queue are answered."""
    async with serving(Settings()) as (client, _):
        answer = await late(client, "POST", RECOMMEND, parts=[b"no JSON"])
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "OVERLOADED", "3")
        assert answer.json["request_id"] == answer.headers["x-request-id"] == "r1"
        for path in ("/v1/health/live", "/v1/recipes"):
            assert (await late(client, "GET", path)).status == 200


async def test_retry_after_of_a_late_refusal_includes_its_own_delay() -> None:
    """Retry-After is the expected wait plus the delay of the refusal."""
    async with serving(Settings()) as (client, _):
        for waited_s, retry_after in ((0.0, "3"), (10.0, "13")):
            answer = await late(client, "POST", RECOMMEND, arrived_s=trio.current_time() - waited_s)
            assert answer.headers["retry-after"] == retry_after


async def test_a_late_request_without_a_key_gets_401_before_503() -> None:
    """A 503 because of a model's queue would reveal that the recipe exists."""
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(new_api_key())}")) as (client, _):
        for recipe in ("movies", "nothing"):
            assert (await late(client, "POST", f"/v1/recipes/{recipe}:recommend")).status == 401


async def test_a_late_request_is_answered_from_the_cache() -> None:
    async with serving() as (client, _):
        for late_s in (0.0, 2.5):
            body = {"whole_body": b'{"user_id":"u3"}', "arrived_s": trio.current_time()}
            assert (await late(client, "POST", RECOMMEND, late_s, **body)).status == 200


class Opened:
    """A stub of an unparsed request, with its method, target and timeout header."""

    def __init__(self, line: str, timeout: bytes | None = None) -> None:
        self._method, _, self._target = line.encode("latin-1").partition(b" ")
        self._timeout = timeout

    def method_and_target(self) -> tuple[bytes, bytes]:
        return self._method, self._target

    def timeout(self) -> bytes | None:
        return self._timeout


ASKS_MODEL = [
    "POST /v1/recipes/movies:recommend",
    "POST /v1/recipes/movies:recommend-related",
    "POST /v1/recipes/%6dovies:recommend",
    "POST /v1/recipes/movies%3Arecommend",
    "POST http://localhost/v1/recipes/movies:recommend?a=b",
    "GET /v1/recipes/movies/popular?limit=3",
    "HEAD /v1/recipes/movies/popular",
]


@pytest.mark.parametrize("line", ASKS_MODEL)
async def test_the_queue_of_a_model_counts_before_a_request_is_parsed(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long queue refuses requests to every endpoint with a queue, under any spelling of its path.

    Requests are refused before parsing only after a first refusal, and only while single requests wait.
    """
    async with serving(Settings(max_queue_s=2)) as (client, state):
        monkeypatch.setattr(Lane, "expected_wait_s", lambda lane, batch=0: 3.0)
        monkeypatch.setattr(Lane, "is_free_of_singles", False)
        assert client.app.late_s(Opened(line), 0.0) == 0
        state.admission.refuse(1.0)
        assert client.app.late_s(Opened(line), 0.0) == 3
        monkeypatch.setattr(Lane, "is_free_of_singles", True)
        assert client.app.late_s(Opened(line), 0.0) == 0


@pytest.mark.parametrize(
    ("line", "turn_s", "allowed", "late"),
    [
        ("POST /v1/recipes/movies:recommend", 0.9, None, True),
        ("POST /v1/recipes/movies:recommend", 0.7, None, False),
        ("POST /v1/recipes/movies:recommend", 0.7, b"1000", True),
        ("POST /v1/recipes/movies:recommend", 0.9, b"soon", False),
        ("POST /v1/recipes/movies:batch-recommend", 0.0, None, True),
        ("POST /v1/recipes/nothing:recommend", 0.9, None, True),
        ("POST /v1/recipes/stub:recommend", 0.0, None, False),
        ("GET /v1/recipes/movies", 9.0, None, False),
        ("GET /v1/health", 9.0, None, False),
        ("POST /v1/recipes/m%F6vies:recommend", 9.0, None, False),
        ("", 9.0, None, False),
    ],
)
async def test_a_request_that_would_wait_too_long_is_late(
    line: str, turn_s: float, allowed: bytes | None, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the server's 2 s or the request's own.

    Malformed requests and requests without a model are not late.
    """
    async with serving(Settings(max_queue_s=2)) as (client, state):
        monkeypatch.setattr(Lane, "expected_wait_s", lambda lane, batch=0: 1.0 if batch else 0.0)
        state.admission.refuse(1.0)
        assert bool(client.app.late_s(Opened(line, allowed), turn_s)) == late


async def test_popular_items_are_refused_like_single_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Popular items wait in the queue of single requests."""
    async with serving(Settings(max_queue_s=2)) as (client, _):
        assert (await client.get("/v1/recipes/movies/popular")).status == 200
        assert (await late(client, "GET", "/v1/recipes/movies/popular")).status == 503
        monkeypatch.setattr(Lane, "expected_wait_s", lambda lane, batch=0: 60.0)
        monkeypatch.setattr(Lane, "is_free_of_singles", False)
        answer = await client.get("/v1/recipes/movies/popular")
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "OVERLOADED", "60")


async def test_an_expensive_query_that_would_wait_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain queries are still answered while expensive ones wait."""
    async with serving(Settings(max_queue_s=2)) as (client, _):
        monkeypatch.setattr(Lane, "wait_s", lambda _lane, costs, _key: 60.0 * max(costs).is_expensive)
        for diversity, status in ((0.0, 200), (0.5, 503)):
            body: dict[str, object] = {"user_id": "u3", "diversity": diversity}
            assert (await client.post(RECOMMEND, body)).status == status
            batch = await client.post(RECOMMEND.replace(":", ":batch-"), {"requests": [body]})
            assert batch.status == status


async def test_a_server_counts_as_crowded_for_a_second_after_a_refusal() -> None:
    async with serving() as (client, state):
        assert not state.admission.is_crowded
        assert (await late(client, "POST", RECOMMEND)).status == 503
        assert state.admission.is_crowded
        await trio.sleep(1.1)
        assert not state.admission.is_crowded


STEP_S = 1e-3


def learn(pace: Pace, each_s: float, seconds: float, pick: random.Random) -> None:
    """Learn steps of 1 to 8 entries of about `each_s` each.

    Some steps take three times as long, and most take half as long.
    """
    while seconds > 0:
        count = pick.randint(1, 8)
        step_s = count * each_s * pick.choice((0.5, 0.5, 0.5, 0.5, 3.0))
        pace.learn(step_s, count)
        seconds -= step_s


def test_the_estimate_is_0_until_enough_slices_are_measured() -> None:
    """The first measured slices of work may be untypically long."""
    pace = Pace()
    for _ in range(FEWEST_SLICES - 1):
        pace.learn(10.0, 1)
        assert pace.each_s == 0
    pace.learn(10.0, 1)
    assert pace.each_s == 10


def test_short_steps_are_averaged() -> None:
    """For steps of 1 ms and 9 ms the estimate is 5 ms, although no step takes that long."""
    pace = Pace()
    for step in range(1000):
        pace.learn(0.001 if step % 2 else 0.009, 1)
    assert pace.each_s == pytest.approx(0.005)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slow_s", [0.06, 1.0, 10.0])
def test_one_slow_step_of_any_length_hardly_moves_the_estimate(seed: int, slow_s: float) -> None:
    """After one slow step, the estimate stays below three times the usual duration of a step."""
    pick, pace = random.Random(seed), Pace()
    learn(pace, STEP_S, pick.uniform(0, 4), pick)
    pace.learn(slow_s, 1)
    for _ in range(50):
        learn(pace, STEP_S, 0.05, pick)
        assert pace.each_s < 3 * STEP_S


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_the_estimate_follows_a_lasting_change(factor: float) -> None:
    """After the steps become slower or faster, the estimate is soon within 50% of their new duration."""
    pick, pace = random.Random(1), Pace()
    learn(pace, STEP_S, 10, pick)
    learn(pace, factor * STEP_S, SLICES * SLICE_S * 2, pick)
    assert pace.each_s == pytest.approx(factor * STEP_S, rel=0.5)


def test_bytes_count_until_the_block_ends() -> None:
    """An error in the block ends the count too."""
    unsent = UnsentBytes(100)
    with pytest.raises(KeyError), unsent.hold(60), unsent.hold(30):
        assert unsent.count == 90
        raise KeyError
    assert unsent.count == 0


def test_a_large_answer_passes_alone() -> None:
    """Otherwise an answer above the bound could never be sent."""
    unsent = UnsentBytes(100)
    assert unsent.has_room(500)
    with unsent.hold(1):
        assert unsent.has_room(99)
        assert not unsent.has_room(100)
