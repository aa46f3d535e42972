"""Counts in shared pages stay exact, outlast their worker, and tolerate a damaged page."""

from __future__ import annotations

import os
import random
import struct

import pytest

from svc.metrics import BATCH_SIZE, LATENCY, REQUESTS, VERB_LATENCY, VERB_REQUESTS, Metrics
from svc.processes import SharedPage
from svc.serving.workers import counters
from svc.serving.workers.counters import WorkerPage


def page(size: int = 1 << 20) -> WorkerPage:
    return WorkerPage(SharedPage.of(size))


def counting(worker_page: WorkerPage) -> Metrics:
    return Metrics(counters.families(worker_page), None)


class Whole:
    def __init__(self, *pages: WorkerPage) -> None:
        self._pages = pages

    def collect(self) -> object:
        return counters.as_prometheus(counters.add_counts(one.counts() for one in self._pages))


def test_the_sums_of_two_workers_equal_those_of_one_process() -> None:
    """Every series is equal to the last digit, except creation times."""
    alone, pages = Metrics.create(), [page(), page()]
    workers = [counting(one) for one in pages]
    rng = random.Random(0)
    for _ in range(500):
        status, seconds = rng.choice(["200", "404"]), rng.choice([2**-11, 2**-5, 0.25, 20.0])
        for metrics in (alone, rng.choice(workers)):
            metrics.of(REQUESTS, recipe='a"b', status=status).inc()
            metrics.of(LATENCY, recipe="a").observe(seconds)
            metrics.of(VERB_REQUESTS, recipe="a", verb="recommend", status=status).inc()
            metrics.of(VERB_LATENCY, recipe="a", verb="recommend").observe(seconds)
            metrics.of(BATCH_SIZE, recipe="a", verb="batch-recommend").observe(256 * seconds)
    whole = Metrics.create(Whole(*pages))

    def shown(metrics: Metrics) -> set[str]:
        lines = metrics.render().decode().splitlines()
        return {line for line in lines if line.startswith("svc_v1_") and "_created" not in line}

    assert shown(whole) == shown(alone)
    assert any(line.startswith("svc_v1_requests_total{") for line in shown(whole))


def test_heartbeats_do_not_change_the_counts() -> None:
    """Heartbeats have a number of their own in the page."""
    one = page()
    counting(one).of(REQUESTS, recipe="a", status="200").inc(3)
    one.beat()
    one.beat()
    assert one.beats == 2
    assert list(one.counts().values()) == [(3.0,)]


def test_a_damaged_page_spoils_only_its_own_counts() -> None:
    """A compromised worker can write anything. Reading its page neither fails nor takes long."""
    rng = random.Random(1)
    for _ in range(200):
        one = page(4096)
        counting(one).of(REQUESTS, recipe="a", status="200").inc()
        size = rng.choice([8, 64, 1000])
        start = rng.randrange(8, 4096 - size)
        one.memory[start : start + size] = rng.randbytes(size)
        assert Metrics.create(Whole(one)).render()
    half = f'["{REQUESTS.name}", "\\ud800", "200"]'
    for text in ("[" * 1000, '["\\ud800"]', half, "[]", "[1]", "{}", "9" * 1000):
        one, key = page(4096), text.encode().ljust(1000)
        one.memory[8:16] = struct.pack("=Q", 16 + 8 + 1000 + 8)
        one.memory[16 : 24 + 1000] = struct.pack("=II", 1000, 1) + key
        assert one.counts() == {}
    repeated = [struct.pack("=II8sd", 8, 1, b'["a"]   ', value) for value in (3.0, 7.0)]
    one.memory[8:64] = struct.pack("=Q", 64) + b"".join(repeated)
    assert one.counts() == {("a",): (3.0,)}
    one.memory[8:16] = struct.pack("=Q", 1 << 63)
    one.memory[16:24] = struct.pack("=II", 1 << 31, 1 << 31)
    assert one.counts() == {}


def test_a_full_page_raises_memory_error() -> None:
    """A new series in a full page does not count into another series."""
    metrics = counting(page(256))
    with pytest.raises(MemoryError):
        for number in range(100):
            metrics.of(REQUESTS, recipe=f"recipe-{number}", status="200").inc()


def test_metrics_of_processes_are_sums_except_the_start_time_and_the_limit_of_descriptors() -> None:
    """Each family keeps its only sample."""

    def values(pids: list[int]) -> dict[str, float]:
        return {sample.name: sample.value for family in counters.sum_processes(pids) for sample in family.samples}

    alone, both = values([]), values([os.getpid(), os.getpid()])
    assert both.keys() == alone.keys() > set(counters.OF_THIS_PROCESS)
    assert {name: both[name] for name in counters.OF_THIS_PROCESS} == {
        name: alone[name] for name in counters.OF_THIS_PROCESS
    }
    summed = alone.keys() - set(counters.OF_THIS_PROCESS)
    assert len(summed) >= 3
    for name in summed:
        assert both[name] == pytest.approx(3 * alone[name], rel=0.1), name
