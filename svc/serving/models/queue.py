"""The queue of a model: requests wait for their turn, and calls of the model score many queries together.

Each model has two queues, one for cheap and one for expensive queries (`lanes.Lane`). `calls` defines
callers and weights.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator

import trio

from svc.serving.admission import Pace
from svc.serving.models.calls import Caller, Outcome, PendingQuery, fail

ANSWERED_A_TURN, ANSWERED_WHILE_OTHERS_WAIT = 16, 2
"""Most requests that are woken in one turn of the event loop after a call.

They encode and send their answers in the next turn, and a health probe waits for all of them. The second number applies
while more requests wait in the queue."""
Take = Callable[[], list[PendingQuery]]
"""A function that removes and returns the queries of the next call. Returns none if the queue is empty."""
Score = Callable[[list[PendingQuery]], Awaitable[list[Outcome]]]
"""A function that returns the outcomes of queries. If its time runs out, it returns only the first outcomes."""


class Turns:
    """Waiting requests (callers). API keys take turns, and the requests of one key are in the order of arrival."""

    def __init__(self) -> None:
        self._keys: OrderedDict[Hashable, deque[Caller]] = OrderedDict()

    def __iter__(self) -> Iterator[Caller]:
        return (caller for callers in self._keys.values() for caller in callers)

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def weight(self) -> int:
        """Weight of all waiting queries."""
        return sum(caller.waiting * caller.cost for caller in self)

    def append(self, caller: Caller) -> None:
        self._keys.setdefault(caller.key, deque()).append(caller)

    def append_first(self, caller: Caller) -> None:
        self._keys.setdefault(caller.key, deque()).appendleft(caller)
        self._keys.move_to_end(caller.key, last=False)

    def pop(self) -> Caller:
        """Remove and return the first request of the key whose turn is next. The key moves behind all other keys."""
        key, callers = next(iter(self._keys.items()))
        caller = callers.popleft()
        self._keys.move_to_end(key)
        if not callers:
            del self._keys[key]
        return caller

    def remove(self, caller: Caller) -> None:
        """Remove the request if it is waiting."""
        callers = self._keys.get(caller.key, ())
        if caller in callers:
            callers.remove(caller)  # type: ignore[union-attr]  # the empty tuple holds no caller
            if not callers:
                del self._keys[caller.key]

    def clear(self) -> None:
        self._keys.clear()

    def weight_ahead(self, key: Hashable, count: int) -> int:
        """Return the weight of waiting queries that are scored before the last of `count` new queries of a key.

        Assumes that a turn scores one query and moves its request behind the other requests of its key.
        """
        # The requests of one key alternate. So until the new request has had `count` turns, each other request of its
        # key gets at most `count`. `turns` adds up all these turns. The keys alternate too. So every other key gets at
        # most `turns` turns meanwhile.
        turns, weight = count, 0
        for caller in self._keys.get(key, ()):
            turns += min(caller.waiting, count)
            weight += min(caller.waiting, count) * caller.cost
        for other, callers in self._keys.items():
            if other != key:
                waiting = sum(caller.waiting * caller.cost for caller in callers)
                weight += min(waiting, turns * max(caller.cost for caller in callers))
        return weight


class Queue:
    """A queue whose `run` scores waiting queries in one call after the other, until it is closed."""

    def __init__(self) -> None:
        self.singles, self.batches = Turns(), Turns()
        self.pace = Pace()
        """Seconds for one unit of weight, including all other work that the process does meanwhile."""
        self.running = 0
        """Weight of the call that is being scored, else 0."""
        self._began_at = 0.0
        self._wake = trio.Event()
        self.closing = False

    def __bool__(self) -> bool:
        return bool(self.singles or self.batches)

    def add(self, caller: Caller, turns: Turns) -> None:
        turns.append(caller)
        self._wake.set()

    def remove(self, caller: Caller) -> None:
        """Remove a request that was cancelled or is done, and set its `done`."""
        caller.done.set()
        self.singles.remove(caller)
        self.batches.remove(caller)

    def running_s(self, each_s: float) -> float:
        """Return the expected seconds until the running call ends, if one unit of weight takes `each_s`."""
        return max(self.running * each_s - (trio.current_time() - self._began_at), 0.0) if self.running else 0.0

    def close(self) -> None:
        """Let `run()` return once the queue is empty."""
        self.closing = True
        self._wake.set()

    async def run(self, take: Take, score: Score) -> None:
        """Pass the queries that `take` returns to `score`, until the queue is closed and empty.

        Cancellation waits for a call that has started.
        """
        # `take` and `score` are arguments and not attributes, because a cycle of references would keep a replaced model
        # in memory until the next garbage collection, or for ever after `gc.freeze()`.
        try:
            while True:
                pending = take()
                if pending:
                    await self._score(score, pending)
                elif self.closing:
                    return
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        finally:
            self.closing = True
            fail([*self.singles, *self.batches])
            self.singles.clear()
            self.batches.clear()

    async def _score(self, score: Score, pending: list[PendingQuery]) -> None:
        """Score queries, wake their requests, and learn the pace of the queue."""
        self.running, self._began_at = sum(question.cost for question in pending), trio.current_time()
        leaves_some = bool(self)
        try:
            outcomes = await score(pending)
            for caller, position in reversed(pending[len(outcomes) :]):  # reversed, because each is put back in front
                self._put_back(caller, position)
            await self._give_out(pending, outcomes)
        finally:
            self.running = 0
        # A call that empties the queue is not measured. It has few queries, so each takes longer than in a large call,
        # and no request waits for the end of the call.
        if leaves_some:
            weight = sum(question.cost for question in pending[: len(outcomes)])
            self.pace.learn(trio.current_time() - self._began_at, weight)

    def _put_back(self, caller: Caller, position: int) -> None:
        """Put a query that the call had no time for back in front. Does nothing if its request is already done."""
        if not caller.done.is_set():
            self.batches.remove(caller)
            self.batches.append_first(caller)
            caller.put_back(position)

    async def _give_out(self, pending: list[PendingQuery], outcomes: list[Outcome]) -> None:
        """Store the outcomes, and wake a few requests in each turn of the event loop."""
        woken = 0
        for (caller, position), outcome in zip(pending, outcomes, strict=False):
            was_done = caller.done.is_set()
            caller.give(position, outcome)
            woken += not was_done and caller.done.is_set()
            if woken >= (ANSWERED_WHILE_OTHERS_WAIT if self else ANSWERED_A_TURN):
                woken = 0
                await trio.lowlevel.cancel_shielded_checkpoint()
