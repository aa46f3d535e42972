"""A queue of queries to one model. Each model has two, one for cheap and one for expensive queries."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator

import trio

from svc.serving.admission import Pace
from svc.serving.models.calls import Caller, Outcome, PendingQuery, fail

ANSWERED_A_TURN, ANSWERED_WHILE_OTHERS_WAIT = 16, 2
"""Callers woken in one turn of the event loop.

They encode and send their answers in the next turn, and a health probe waits for all of them. The smaller number
applies while more requests are queued."""
Take = Callable[[], list[PendingQuery]]
Score = Callable[[list[PendingQuery]], Awaitable[list[Outcome]]]


class Turns:
    """Waiting callers. API keys take turns, and callers of one key are served in the order of arrival."""

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
        """Remove and return the caller with the next turn."""
        key, callers = next(iter(self._keys.items()))
        caller = callers.popleft()
        self._keys.move_to_end(key)
        if not callers:
            del self._keys[key]
        return caller

    def remove(self, caller: Caller) -> None:
        """Remove the caller if it is waiting."""
        callers = self._keys.get(caller.key, ())
        if caller in callers:
            callers.remove(caller)  # type: ignore[union-attr]  # the empty tuple holds no caller
            if not callers:
                del self._keys[caller.key]

    def clear(self) -> None:
        self._keys.clear()

    def weight_ahead(self, key: Hashable, count: int) -> int:
        """Return the weight that is scored before `count` new queries of a key.

        The callers of one key take turns too. While a key has n turns, every other key has at most n.
        """
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
    """A queue that scores call after call. The `take` of its `run` chooses between single queries and batches."""

    def __init__(self) -> None:
        self.singles, self.batches = Turns(), Turns()
        self.pace = Pace()
        """Seconds for one unit of weight, from one call to the next, including all other work of the process."""
        self.running = 0
        """Weight of the running call."""
        self._began_at = 0.0
        self._wake = trio.Event()
        self.closing = False

    def __bool__(self) -> bool:
        return bool(self.singles or self.batches)

    def add(self, caller: Caller, turns: Turns) -> None:
        turns.append(caller)
        self._wake.set()

    def remove(self, caller: Caller) -> None:
        """Remove a caller that was cancelled or has all answers, with its waiting queries."""
        caller.done.set()
        self.singles.remove(caller)
        self.batches.remove(caller)

    def running_s(self, each_s: float) -> float:
        """Return the expected seconds until the running call ends."""
        return max(self.running * each_s - (trio.current_time() - self._began_at), 0.0) if self.running else 0.0

    def close(self) -> None:
        """Let `run()` return once the queue is empty."""
        self.closing = True
        self._wake.set()

    async def run(self, take: Take, score: Score) -> None:
        """Score until closed. Cancellation waits for a call that has started.

        `take` returns the queries of the next call, or none if the queue is empty. The queue stores neither function:
        that cycle of references would keep the model after a swap until a garbage collection, and for ever after
        `gc.freeze()`.
        """
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
        self.running, self._began_at = sum(question.cost for question in pending), trio.current_time()
        leaves_some = bool(self)
        try:
            outcomes = await score(pending)
            for caller, position in reversed(pending[len(outcomes) :]):  # the first one goes back last, to the front
                self._put_back(caller, position)
            await self._give_out(pending, outcomes)
        finally:
            self.running = 0
        if leaves_some:  # a call that empties the queue is small, so slower for each query, and delays no caller
            weight = sum(question.cost for question in pending[: len(outcomes)])
            self.pace.learn(trio.current_time() - self._began_at, weight)

    def _put_back(self, caller: Caller, position: int) -> None:
        """Put a query back in front if the call had no time for it. Skip it if its caller is done already."""
        if not caller.done.is_set():
            self.batches.remove(caller)
            self.batches.append_first(caller)
            caller.put_back(position)

    async def _give_out(self, pending: list[PendingQuery], outcomes: list[Outcome]) -> None:
        """Wake a few callers in each turn of the event loop."""
        woken = 0
        for (caller, position), outcome in zip(pending, outcomes, strict=False):
            was_done = caller.done.is_set()
            caller.give(position, outcome)
            woken += not was_done and caller.done.is_set()
            if woken >= (ANSWERED_WHILE_OTHERS_WAIT if self else ANSWERED_A_TURN):
                woken = 0
                await trio.lowlevel.cancel_shielded_checkpoint()
