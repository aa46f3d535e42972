"""Every metric, its labels and its help.

One `Metrics` is made for a process and passed to the code that counts. Without `SVC_METRICS_ENABLED=1` it counts
nothing. `docs/reference/events.md` is made from this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from svc import install_command
from svc.errors import ConfigError
from svc.late_imports import import_late

UNKNOWN_RECIPE = "<unknown>"
LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SHARE_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BATCH_SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 256.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family, by its full name in the exposition format."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the infinite one."""


METRICS: dict[str, Metric] = {}


def _metric(
    name: str, kind: Literal["counter", "gauge", "histogram"], labels: str, help: str, buckets: tuple[float, ...] = ()
) -> Metric:
    metric = Metric(name, kind, tuple(labels.split()), help, buckets)
    METRICS[name] = metric
    return metric


# Metrics of recipes and models.
MODEL_LOADED = _metric("svc_model_loaded", "gauge", "recipe", "1 while a model of the recipe is served, else 0.")
MODEL_TRAINED_AT = _metric(
    "svc_model_trained_timestamp_seconds", "gauge", "recipe", "Unix time at which the served model was trained."
)
MODEL_SEARCHED_AT = _metric(
    "svc_model_searched_timestamp_seconds",
    "gauge",
    "recipe",
    "Unix time of the search behind the served model, earlier than its training after a refit.",
)
ACTIVE_RECIPES = _metric("svc_active_recipes", "gauge", "", "Recipes that are served, with or without a model.")
SKIPPED_RECIPES = _metric(
    "svc_skipped_recipes", "gauge", "", "Invalid recipe files, including those whose last valid recipe is served."
)
RECIPE_PARSE_FAILED = _metric(
    "svc_recipe_parse_failed", "gauge", "recipe", "1 while the file of a served recipe is invalid, else 0."
)
AVAILABILITY_AGE = _metric(
    "svc_availability_age_seconds", "gauge", "recipe", "Age of the list of available items, +Inf before the first."
)
NEW_ITEMS_AGE = _metric(
    "svc_new_items_age_seconds", "gauge", "recipe", "Age of the list of new items, +Inf before the first."
)
# Metrics of loads and polls.
SWAPS = _metric("svc_swap_total", "counter", "result", "Loads of artifacts after the start, ok or error.")
LOAD_FAILURES = _metric("svc_artifact_load_failures_total", "counter", "recipe reason", "Failed loads, also at start.")
STAT_FAILURES = _metric(
    "svc_artifact_stat_failures_total",
    "counter",
    "recipe",
    "Polls that found no artifact, or failed.",
)
WATCHER_ERRORS = _metric(
    "svc_watcher_unhandled_errors_total", "counter", "", "Scans and polls that failed by a defect."
)
SCAN_FAILURES = _metric("svc_recipes_dir_scan_failures_total", "counter", "", "Failed listings of the recipes folder.")
WATCHER_TICK_SECONDS = _metric(
    "svc_watcher_tick_seconds",
    "histogram",
    "",
    "Seconds for one scan and the polls of all artifacts.",
    LATENCY_BUCKETS_S,
)
BIGQUERY_FALLBACK = _metric(
    "svc_bigquery_storage_fallback_total",
    "counter",
    "",
    "Always 0 in a server. Alert on bigquery_storage_fallback of trainings.",
)
# Metrics of requests.
REQUESTS = _metric("svc_v1_requests_total", "counter", "recipe status", "Requests to recommendation verbs.")
LATENCY = _metric(
    "svc_v1_request_latency_seconds",
    "histogram",
    "recipe",
    "Seconds from a request's headers to its answer.",
    LATENCY_BUCKETS_S,
)
VERB_REQUESTS = _metric(
    "svc_v1_verb_requests_total", "counter", "recipe verb status", "Requests to recommendation verbs."
)
VERB_LATENCY = _metric(
    "svc_v1_verb_latency_seconds",
    "histogram",
    "recipe verb",
    "Seconds from a request's headers to its answer.",
    LATENCY_BUCKETS_S,
)
BATCH_SIZE = _metric("svc_v1_batch_size", "histogram", "recipe verb", "Elements of a batch.", BATCH_SIZE_BUCKETS)
BATCH_ERRORS = _metric("svc_v1_batch_element_errors_total", "counter", "code", "Failed elements of batches.")
FALLBACKS = _metric(
    "svc_v1_fallbacks_total",
    "counter",
    "recipe verb",
    "Answers with popular items, because nothing is known of the user.",
)
COLD_STARTS = _metric(
    "svc_v1_cold_starts_total",
    "counter",
    "recipe kind",
    "Answers by history, features, features+history or item_features of the request, for unknown users or items and "
    "for known users with history_mode replace.",
)
UNKNOWN_FEATURES = _metric(
    "svc_v1_unknown_feature_values_total",
    "counter",
    "recipe",
    "Features that answers name in ignored_features.",
)
EXPERIMENT_REQUESTS = _metric(
    "svc_v1_experiment_requests_total",
    "counter",
    "recipe arm status",
    "Requests and batch elements with a unit, by arm. Status no_model: the first arm answered instead.",
)
SHADOWS = _metric("svc_shadow_total", "counter", "recipe result", "Shadow rankings: compared, dropped or failed.")
SHADOW_OVERLAP = _metric(
    "svc_shadow_overlap",
    "histogram",
    "recipe",
    "Share of an answer's items that the shadow ranking has too.",
    SHARE_BUCKETS,
)
SERVED_LOG_LINES = _metric("svc_served_log_lines_total", "counter", "result", "Lines of served logs: written, or lost.")
HEAD_REFUSALS = _metric(
    "svc_head_refusals_total",
    "counter",
    "code",
    "Requests refused for their first line or headers.",
)
AUTH_FAILURES = _metric("svc_auth_failures_total", "counter", "code", "Requests refused for a missing or wrong key.")
KEY_REFUSALS = _metric("svc_key_refusals_total", "counter", "kid code", "Requests that SVC_API_KEY_POLICIES refused.")


COUNTED_BY_REQUESTS = (
    REQUESTS,
    LATENCY,
    VERB_REQUESTS,
    VERB_LATENCY,
    BATCH_SIZE,
    BATCH_ERRORS,
    FALLBACKS,
    COLD_STARTS,
    UNKNOWN_FEATURES,
    EXPERIMENT_REQUESTS,
    SHADOWS,
    SHADOW_OVERLAP,
    SERVED_LOG_LINES,
    HEAD_REFUSALS,
    AUTH_FAILURES,
    KEY_REFUSALS,
)
"""Metrics of processes that answer requests. The process that watches recipes and loads models has all others."""


class Instrument:
    """An instrument that counts nothing. Its methods are those of a prometheus metric with bound label values."""

    def inc(self, amount: float = 1) -> None: ...
    def set(self, value: float) -> None: ...
    def observe(self, amount: float) -> None: ...


_NOTHING = Instrument()


class Metrics:
    """The metrics of a process, or an object that counts nothing.

    Label values must come from bounded sets: names, codes, reasons.
    """

    def __init__(self, families: dict[str, Any], render: Callable[[], bytes] | None) -> None:
        self._families = families
        self._render = render
        self._known: dict[tuple[str, ...], Instrument] = {}

    @classmethod
    def disabled(cls) -> Metrics:
        return cls({}, None)

    @classmethod
    def create(cls, collector: Any = None) -> Metrics:
        """Create metrics that count, in a new registry that also has metrics of the process, such as its memory.

        If a `collector` of prometheus-client is given, it replaces COUNTED_BY_REQUESTS and the `process_*` metrics.
        Raises ConfigError without the extra `metrics`.
        """
        try:
            prometheus = import_late("prometheus_client")
        except ImportError:
            how = install_command("metrics")
            raise ConfigError(f"SVC_METRICS_ENABLED=1 needs prometheus-client: {how}") from None
        registry = prometheus.CollectorRegistry()
        if collector is None:
            prometheus.ProcessCollector(registry=registry)
        else:
            registry.register(collector)
        prometheus.PlatformCollector(registry=registry)
        prometheus.GCCollector(registry=registry)
        families = {
            metric.name: getattr(prometheus, metric.kind.title())(
                metric.name,
                metric.help,
                metric.labels,
                registry=registry,
                **({"buckets": metric.buckets} if metric.kind == "histogram" else {}),
            )
            for metric in METRICS.values()
            if collector is None or metric not in COUNTED_BY_REQUESTS
        }
        return cls(families, lambda: prometheus.generate_latest(registry))

    @property
    def is_enabled(self) -> bool:
        """True if anything is counted."""
        return bool(self._families)

    def of(self, metric: Metric, **labels: str) -> Instrument:
        """Return the instrument of `metric` with these label values. It counts nothing if metrics are disabled."""
        if not self._families:
            return _NOTHING
        key = (metric.name, *(labels[name] for name in metric.labels))
        # 1.0 µs instead of 1.7 with `labels` of prometheus-client 0.26, which takes a lock.
        instrument = self._known.get(key)
        if instrument is None:
            family = self._families[metric.name]
            instrument = self._known[key] = family.labels(**labels) if metric.labels else family
        return instrument

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop the series of `metric` with these label values, as for a recipe that was removed."""
        family = self._families.get(metric.name)
        self._known.clear()  # a cached instrument of a dropped series would count without ever being shown
        if family is not None:
            with contextlib.suppress(KeyError):
                family.remove(*(labels[name] for name in metric.labels))

    def render(self) -> bytes:
        """Return the exposition text (Prometheus text format 0.0.4, UTF-8), or no bytes if metrics are disabled."""
        return b"" if self._render is None else self._render()
