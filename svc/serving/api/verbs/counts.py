"""Facts of answers that metrics count. They are cached with the answers, so that cached answers count too."""

from __future__ import annotations

from typing import Literal, NamedTuple

from svc.metrics import (
    COLD_STARTS,
    FALLBACKS,
    LATENCY,
    REQUESTS,
    UNKNOWN_FEATURES,
    VERB_LATENCY,
    VERB_REQUESTS,
    Metrics,
)
from svc.model.ranking.query import Prepared, Ranking

ColdStart = Literal["history", "features", "features+history", "item_features"]


class Facts(NamedTuple):
    """The facts of one ranking. `cold_start` is the kind of input for a user or item that training never saw."""

    is_popular: bool
    cold_start: ColdStart | None
    unknown_features: int

    @classmethod
    def of(cls, ranking: Ranking, prepared: Prepared) -> Facts:
        return cls(ranking.popular, _cold_start(prepared), len(prepared.ignored_features))

    def add_to(self, metrics: Metrics, recipe: str, verb: str) -> None:
        """Add a ranking with these facts to the metrics."""
        if self.is_popular:
            metrics.of(FALLBACKS, recipe=recipe, verb=verb).inc()
        elif self.cold_start is not None:
            metrics.of(COLD_STARTS, recipe=recipe, kind=self.cold_start).inc()
        if self.unknown_features:
            metrics.of(UNKNOWN_FEATURES, recipe=recipe).inc(self.unknown_features)


def _cold_start(prepared: Prepared) -> ColdStart | None:
    query = prepared.query
    if query.seed_features or (query.audience is not None and query.audience.vector is not None):
        return "item_features"
    match prepared.profile:
        case "history" | "features" | "features+history" as kind:
            return kind
        case None if query.user_features is not None and not len(query.seeds):
            return "features"  # requests without a history have no profile in their answer
        case _:
            return None


def count_request(metrics: Metrics, recipe: str, verb: str, status: str, seconds: float) -> None:
    """Count a request to a verb, successful or not."""
    metrics.of(REQUESTS, recipe=recipe, status=status).inc()
    metrics.of(VERB_REQUESTS, recipe=recipe, verb=verb, status=status).inc()
    metrics.of(LATENCY, recipe=recipe).observe(seconds)
    metrics.of(VERB_LATENCY, recipe=recipe, verb=verb).observe(seconds)
