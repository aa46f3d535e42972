"""Sums the metrics of all workers, and answers queries that workers send to their parent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trio

from svc import logs
from svc.errors import SvcError
from svc.serving.api.request.failures import log_failure
from svc.serving.api.request.state import ServerState
from svc.serving.workers import counters
from svc.serving.workers.fleet import Fleet

OF_THIS_PROCESS = ("process_start_time_seconds", "process_max_fds")
"""Metrics of the parent only. All other `process_*` metrics are sums over the parent and its workers."""


class Collector:
    """A collector of prometheus-client for the workers' counts and the resources of all processes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Any]:
        """Yield the metric families. Called in a worker thread."""
        counts, pids = trio.from_thread.run_sync(lambda: (self._fleet.counts(), self._fleet.pids()))
        yield from counters.as_prometheus(counts)
        yield from _processes(pids)


def _processes(pids: list[int]) -> Iterator[Any]:
    """Yield the families of the process collector, summed over all processes that still run."""
    from prometheus_client import ProcessCollector
    from prometheus_client.core import Metric

    summed: dict[str, Metric] = {family.name: family for family in ProcessCollector(registry=None).collect()}
    for pid in pids:
        for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
            total = summed[family.name]
            if family.samples and family.samples[0].name not in OF_THIS_PROCESS:
                value = total.samples[0].value + family.samples[0].value
                total.samples = [total.samples[0]._replace(value=value)]
    yield from summed.values()


async def answer(state: ServerState, what: str, name: str) -> Any:
    """Return the metrics as bytes or the versions of a recipe, or a text if that fails.

    Raises nothing, so that an error fails one request of one worker only.
    """
    try:
        if what == "metrics":
            return await trio.to_thread.run_sync(state.metrics.render)
        if what == "versions" and state.versions is not None:
            return await trio.to_thread.run_sync(state.versions, name, abandon_on_cancel=True)
    except LookupError:
        return "unknown"
    except SvcError as error:
        return logs.redact_text(error.message)
    except Exception as error:
        log_failure(error)
        return "failed"
    return "unknown"
