"""Metrics and heartbeats of workers in shared memory.

Each worker has a page. The worker writes to it, and the parent reads it, even after the worker has ended.

A page begins with two integers, the number of heartbeats and the number of used bytes. Entries follow, one for each
series of a metric. An entry has four parts: the length of its key, the number of its values, the key, and the values as
8-byte floats. The key is a JSON list of the metric's name and the label values. A counter has one value. A histogram
has its sum and then one count for each bucket. The number of used bytes grows only after an entry is complete, so the
parent never reads half an entry. The parent checks all lengths, so a damaged page affects only its worker's metrics.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from svc.late_imports import LateModule
from svc.metrics import COUNTED_BY_REQUESTS, Instrument, Metric
from svc.processes import SharedPage

if TYPE_CHECKING:
    import prometheus_client
    from prometheus_client import core
else:
    prometheus_client = LateModule("prometheus_client")
    core = LateModule("prometheus_client.core")

PAGE_BYTES = 16 << 20
LONGEST_KEY_BYTES = 1024
_BEATS, _USED, _FIRST_ENTRY = 0, 8, 16
_LENGTHS = struct.Struct("=II")
_NUMBER = struct.Struct("=Q")
_SIZES = {metric.name: 1 if metric.kind == "counter" else 2 + len(metric.buckets) for metric in COUNTED_BY_REQUESTS}
BEAT_S = 0.25
"""Seconds between two heartbeats of a worker, and between two checks by the parent."""
SILENT_CHECKS = 20
"""The parent kills a worker after this many checks in a row without a new heartbeat.

Checks are counted instead of seconds, because no worker hangs if the whole machine was suspended for seconds."""
OF_THIS_PROCESS = ("process_start_time_seconds", "process_max_fds")
"""`process_*` metrics that show only the parent. All others are sums over the parent and its workers."""
Key = tuple[str, ...]
Counts = dict[Key, tuple[float, ...]]


class WorkerPage:
    """The shared page of one worker. The worker writes to it, and the parent only reads."""

    def __init__(self, memory: SharedPage) -> None:
        self.memory = memory

    @property
    def beats(self) -> int:
        """Number of heartbeats so far."""
        return self._number(_BEATS)

    def beat(self) -> None:
        _NUMBER.pack_into(self.memory, _BEATS, self.beats + 1)

    def _number(self, position: int) -> int:
        return int(_NUMBER.unpack_from(self.memory, position)[0])

    def new_values(self, key: Key, size: int) -> memoryview[float]:
        """Add an entry with `size` values for a new key, and return a view of the values, which are 0.

        Raises MemoryError if the page is full, or if the key is longer than LONGEST_KEY_BYTES.
        """
        name = json.dumps(key).encode()
        name += b" " * (-len(name) % 8)  # aligns the floats behind the key
        # A new page has zeros only, so its number of used bytes is 0.
        start = max(self._number(_USED), _FIRST_ENTRY)
        values = start + _LENGTHS.size + len(name)
        end = values + 8 * size
        if end > len(self.memory) or len(name) > LONGEST_KEY_BYTES:
            raise MemoryError("there are too many series to count")
        _LENGTHS.pack_into(self.memory, start, len(name), size)
        self.memory[start + _LENGTHS.size : values] = name
        _NUMBER.pack_into(self.memory, _USED, end)
        return memoryview(self.memory)[values:end].cast("d")

    def counts(self) -> Counts:
        """Return the values of all entries by key, up to the first invalid entry."""
        data = memoryview(self.memory)
        position, end = _FIRST_ENTRY, min(self._number(_USED), len(data))
        counts: Counts = {}
        while position + _LENGTHS.size <= end:
            key_bytes, size = _LENGTHS.unpack_from(data, position)
            values = position + _LENGTHS.size + key_bytes
            position = values + 8 * size
            if key_bytes > LONGEST_KEY_BYTES or size > max(_SIZES.values()) or position > end:
                break
            key = _key(bytes(data[values - key_bytes : values]))
            if key is None or key in counts:  # a worker writes each key once
                break
            counts[key] = struct.unpack_from(f"={size}d", data, values)
        return counts


def _key(data: bytes) -> Key | None:
    """Return the key in these bytes of a page, or None if it is not a list of strings that UTF-8 can encode."""
    with suppress(ValueError, RecursionError):
        key = json.loads(data)
        if isinstance(key, list) and key and all(isinstance(part, str) for part in key):
            "".join(key).encode()  # raises ValueError for halves of surrogate pairs, which JSON can contain
            return tuple(key)
    return None


class _Counted(Instrument):
    """One series of a metric in a page, with the methods of a prometheus-client counter or histogram."""

    def __init__(self, values: memoryview[float], buckets: tuple[float, ...]) -> None:
        self._values = values
        self._buckets = buckets

    def inc(self, amount: float = 1) -> None:
        self._values[0] += amount

    def observe(self, amount: float) -> None:
        self._values[0] += amount
        self._values[1 + bisect_left(self._buckets, amount)] += 1


class PageFamily:
    """One metric in a page, with the method `labels` of a prometheus-client metric.

    Each call of `labels` adds a series, so `Metrics` calls it once for each combination of label values.
    """

    def __init__(self, page: WorkerPage, metric: Metric) -> None:
        self._page = page
        self._metric = metric

    def labels(self, **labels: str) -> Instrument:
        values = [labels[name] for name in self._metric.labels]
        room = self._page.new_values((self._metric.name, *values), _SIZES[self._metric.name])
        return _Counted(room, self._metric.buckets)


def families(page: WorkerPage) -> dict[str, Any]:
    """Return all metrics that requests count, stored in this page, by name."""
    return {metric.name: PageFamily(page, metric) for metric in COUNTED_BY_REQUESTS}


def add_counts(many: Iterable[Counts]) -> Counts:
    """Return the sums of the values by key."""
    total: Counts = {}
    for counts in many:
        for key, values in counts.items():
            before = total.get(key, (0.0,) * len(values))
            total[key] = tuple(map(sum, zip(before, values, strict=False)))  # sizes differ only if a page is damaged
    return total


def as_prometheus(counts: Counts) -> Iterator[Any]:
    """Yield COUNTED_BY_REQUESTS as prometheus-client families, including metrics that have no series yet.

    Entries with an unknown name or a wrong number of labels or values are left out.
    """
    for metric in COUNTED_BY_REQUESTS:
        kind = core.CounterMetricFamily if metric.kind == "counter" else core.HistogramMetricFamily
        family: Any = kind(metric.name, metric.help, labels=metric.labels)
        for key, values in counts.items():
            if key[0] != metric.name or len(key) != 1 + len(metric.labels) or len(values) != _SIZES[metric.name]:
                continue
            if metric.kind == "counter":
                family.add_metric(key[1:], values[0])
            else:
                bounds = [*map(str, metric.buckets), "+Inf"]
                buckets = list(zip(bounds, accumulate(values[1:]), strict=True))
                family.add_metric(key[1:], buckets=buckets, sum_value=values[0])
        yield family


def sum_processes(pids: list[int]) -> Iterator[Any]:
    """Yield the `process_*` families of prometheus-client, summed over this process and the workers `pids`."""
    summed: dict[str, Any] = {
        family.name: family for family in prometheus_client.ProcessCollector(registry=None).collect()
    }
    for pid in pids:
        # Collects nothing if the worker has just ended.
        for family in prometheus_client.ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
            if family.name not in OF_THIS_PROCESS:
                (total,), (sample,) = summed[family.name].samples, family.samples
                summed[family.name].samples = [total._replace(value=total.value + sample.value)]
    yield from summed.values()
