"""The number of trials that run at once, in threads or processes."""

from __future__ import annotations

from dataclasses import dataclass

from svc.cores import usable_cores
from svc.training.search.processes.fork_server import ForkServer
from svc.training.search.processes.trial_task import Objective
from svc.training.search.processes.workers import ProcessWorkers, ThreadWorkers, Workers

_SMALL_INTERACTIONS, _SMALL_ITEMS = 20_000, 2_000
"""Up to these sizes a whole search costs about as much as starting one worker process, which must import irspack."""

_TRIALS_PER_WORKER = 4
"""With more workers than a quarter of the trials, most trials would be suggested before any result is known."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """`workers` trials at once with `threads` each, in threads of this process or in processes of their own."""

    workers: int
    threads: int
    in_processes: bool

    @classmethod
    def choose(cls, wanted: int | None, *, n_trials: int, n_interactions: int, n_items: int) -> Parallelism:
        """Return the recipe's `wanted` number of workers, or by default as many as cores and trials suggest.

        It does not depend on free memory or load, which change between runs.
        """
        cores = usable_cores()
        small = n_interactions <= _SMALL_INTERACTIONS and n_items <= _SMALL_ITEMS
        if wanted is None:
            wanted = 1 if small else max(1, min(cores, n_trials // _TRIALS_PER_WORKER))
        workers = min(wanted, n_trials)
        in_processes = workers > 1 or not small
        return cls(workers, max(1, cores // workers), in_processes)

    def open(self, objective: Objective, server: ForkServer | None = None) -> Workers:
        """Return workers that train with `objective`.

        The first trials fork processes from `server`, or from one that they start.
        """
        if self.in_processes:
            return ProcessWorkers(objective, self.workers, self.threads, server)
        return ThreadWorkers(objective, self.workers)
