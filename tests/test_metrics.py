"""The table of metrics, and the object that counts."""

from __future__ import annotations

import pytest

from svc import metrics
from svc.metrics import METRICS, Metrics

SPECIFIED = {
    "svc_model_loaded": ("recipe",),
    "svc_swap_total": ("result",),
    "svc_artifact_load_failures_total": ("recipe", "reason"),
    "svc_artifact_stat_failures_total": ("recipe",),
    "svc_watcher_unhandled_errors_total": (),
    "svc_v1_requests_total": ("recipe", "status"),
    "svc_v1_request_latency_seconds": ("recipe",),
    "svc_v1_batch_element_errors_total": ("code",),
    "svc_active_recipes": (),
    "svc_recipes_dir_scan_failures_total": (),
    "svc_bigquery_storage_fallback_total": (),
}


@pytest.mark.parametrize("name", SPECIFIED)
def test_every_specified_metric_exists_with_its_labels(name: str) -> None:
    """Dashboards and alerts use these names and labels."""
    assert METRICS[name].labels == SPECIFIED[name]


def test_counters_end_in_total_and_nothing_else_does() -> None:
    """The Prometheus text format requires this suffix of counters."""
    for metric in METRICS.values():
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name


def test_disabled_metrics_count_nothing_and_raise_nothing() -> None:
    """Callers do not need to know whether metrics are enabled."""
    counting = Metrics.disabled()
    counting.of(metrics.REQUESTS, recipe="a", status="ok").inc()
    counting.of(metrics.LATENCY, recipe="a").observe(0.1)
    counting.forget(metrics.REQUESTS, recipe="a", status="ok")
    assert counting.render() == b""


def test_counted_values_are_rendered() -> None:
    """The text has each series with its labels, and the metrics of the process."""
    counting = Metrics.create()
    counting.of(metrics.REQUESTS, recipe="a", status="ok").inc()
    counting.of(metrics.LATENCY, recipe="a").observe(0.003)
    counting.of(metrics.MODEL_LOADED, recipe="a").set(1)
    text = counting.render().decode()
    assert 'svc_v1_requests_total{recipe="a",status="ok"} 1.0' in text
    assert 'svc_v1_request_latency_seconds_bucket{le="0.005",recipe="a"} 1.0' in text
    assert "process_resident_memory_bytes" in text


def test_series_of_a_removed_recipe_vanish() -> None:
    """The series of a recipe that is gone would otherwise keep an alert active."""
    counting = Metrics.create()
    counting.of(metrics.MODEL_LOADED, recipe="a").set(0)
    counting.forget(metrics.MODEL_LOADED, recipe="a")
    counting.forget(metrics.MODEL_LOADED, recipe="never there")
    assert 'recipe="a"' not in counting.render().decode()


def test_two_objects_do_not_share_series() -> None:
    """Each `Metrics` object has its own counts, so several servers can run in one process."""
    first, second = Metrics.create(), Metrics.create()
    first.of(metrics.SWAPS, result="ok").inc()
    assert 'result="ok"' not in second.render().decode()
