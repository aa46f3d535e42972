"""Counts and heartbeats in shared memory: each worker writes a page that its parent reads, also after the worker's end.

A page begins with two numbers: heartbeats, and bytes used. Entries follow, each with the length of its key, the number
of its values, the key, and the values as 8-byte floats. A key is the JSON list of the metric's name and its labels. A
counter has one value, a histogram its sum and one count for each bucket. An entry is complete before the number of used
bytes covers it. The parent checks all lengths, so a damaged page spoils its own counts only.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from svc.metrics import COUNTED_BY_REQUESTS, Instrument, Metric
from svc.processes import SharedPage

PAGE_BYTES = 16 << 20
LONGEST_KEY_BYTES = 1024
_BEATS, _USED, _FIRST_ENTRY = 0, 8, 16
_LENGTHS = struct.Struct("=II")
_NUMBER = struct.Struct("=Q")
_SIZES = {metric.name: 1 if metric.kind == "counter" else 2 + len(metric.buckets) for metric in COUNTED_BY_REQUESTS}
BEAT_S = 0.25
"""Seconds between heartbeats of a worker, and between the parent's checks."""
SILENT_CHECKS = 20
"""Checks without a new heartbeat after which a worker counts as hanging.

Not seconds, because the workers of a suspended machine do not hang."""
DOUBTFUL_CHECKS = 3
"""After this many checks without a new heartbeat, other workers accept without waiting for the silent one."""
OF_THIS_PROCESS = ("process_start_time_seconds", "process_max_fds")
"""Metrics of the parent only. All other `process_*` metrics are sums over the parent and its workers."""
Key = tuple[str, ...]
Counts = dict[Key, tuple[float, ...]]


class WorkerPage:
    """The page of one worker. Only this worker writes to it."""

    def __init__(self, memory: SharedPage) -> None:
        self.memory = memory

    @property
    def beats(self) -> int:
        return self._number(_BEATS)

    def beat(self) -> None:
        _NUMBER.pack_into(self.memory, _BEATS, self.beats + 1)

    def _number(self, position: int) -> int:
        return int(_NUMBER.unpack_from(self.memory, position)[0])

    def new_values(self, key: Key, size: int) -> memoryview[float]:
        """Add `size` floats under a new key, and return them. Raises MemoryError if the page is full."""
        name = json.dumps(key).encode()
        name += b" " * (-len(name) % 8)
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
        """Return the counts so far, up to the first invalid entry."""
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


@dataclass(slots=True)
class Pulse:
    """The heartbeats of one worker. `quiet_checks` counts the last checks in a row without a new heartbeat."""

    beats: int = -1
    quiet_checks: int = 0

    def check(self, beats: int) -> None:
        self.quiet_checks = self.quiet_checks + 1 if beats == self.beats else 0
        self.beats = beats

    @property
    def is_doubtful(self) -> bool:
        return self.quiet_checks >= DOUBTFUL_CHECKS

    @property
    def is_silent(self) -> bool:
        return self.quiet_checks >= SILENT_CHECKS


def _key(data: bytes) -> Key | None:
    """Return the key of an entry, or None if the bytes are not a key or cannot be encoded as UTF-8."""
    with suppress(ValueError, RecursionError):
        key = json.loads(data)
        if isinstance(key, list) and key and all(isinstance(part, str) for part in key):
            "".join(key).encode()  # refuses halves of surrogate pairs
            return tuple(key)
    return None


class _Counted:
    """One series in a page, with the methods of prometheus-client."""

    def __init__(self, values: memoryview[float], buckets: tuple[float, ...]) -> None:
        self._values = values
        self._buckets = buckets

    def inc(self, amount: float = 1) -> None:
        self._values[0] += amount

    def set(self, value: float) -> None:
        self._values[0] = value

    def observe(self, amount: float) -> None:
        self._values[0] += amount
        self._values[1 + bisect_left(self._buckets, amount)] += 1


class PageFamily:
    """One metric in a page, with the interface of a prometheus-client family."""

    def __init__(self, page: WorkerPage, metric: Metric) -> None:
        self._page = page
        self._metric = metric

    def labels(self, **labels: str) -> Instrument:
        values = [labels[name] for name in self._metric.labels]
        room = self._page.new_values((self._metric.name, *values), _SIZES[self._metric.name])
        return _Counted(room, self._metric.buckets)


def families(page: WorkerPage) -> dict[str, Any]:
    """Return the families of a worker's `Metrics`."""
    return {metric.name: PageFamily(page, metric) for metric in COUNTED_BY_REQUESTS}


def add_counts(many: Iterable[Counts]) -> Counts:
    """Return the sums by key. Sizes differ only if a page is damaged."""
    total: Counts = {}
    for counts in many:
        for key, values in counts.items():
            before = total.get(key, (0.0,) * len(values))
            total[key] = tuple(map(sum, zip(before, values, strict=False)))
    return total


def as_prometheus(counts: Counts) -> Iterator[Any]:
    """Yield all metric families for prometheus-client, also those without series."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    series: Counter[str] = Counter()
    for metric in COUNTED_BY_REQUESTS:
        kind = CounterMetricFamily if metric.kind == "counter" else HistogramMetricFamily
        family: Any = kind(metric.name, metric.help, labels=metric.labels)
        for key, values in counts.items():
            if key[0] != metric.name or len(key) != 1 + len(metric.labels) or len(values) != _SIZES[metric.name]:
                continue
            series[metric.name] += 1
            if metric.kind == "counter":
                family.add_metric(key[1:], values[0])
            else:
                bounds = [*map(str, metric.buckets), "+Inf"]
                buckets = list(zip(bounds, accumulate(values[1:]), strict=True))
                family.add_metric(key[1:], buckets=buckets, sum_value=values[0])
        yield family


def sum_processes(pids: list[int]) -> Iterator[Any]:
    """Yield the families of the process collector, summed over all processes that still run."""
    from prometheus_client import ProcessCollector

    summed: dict[str, Any] = {family.name: family for family in ProcessCollector(registry=None).collect()}
    for pid in pids:
        for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
            total = summed[family.name]
            if family.samples and family.samples[0].name not in OF_THIS_PROCESS:
                value = total.samples[0].value + family.samples[0].value
                total.samples = [total.samples[0]._replace(value=value)]
    yield from summed.values()
