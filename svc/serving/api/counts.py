"""Request metrics, and the costs that requests charge to the rate limits of API keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from svc.asking.costs import HEAVY_CONDITIONS, PLAIN_LIMIT, RULED_CONDITIONS, Cost, cost_class
from svc.asking.page import PLAIN_ROW, PageRequest
from svc.asking.parsing import Rejected
from svc.asking.requests import AnyQuestion, PopularQuery, RelatedRequest, UsersRequest
from svc.asking.rerank import RerankRequest, single_of
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
from svc.recipe.filter_tree import count_conditions

CHARACTERS_OF_AN_ITEM = 1024
"""Encoding this many characters of features takes as long as the work for one item of `item_features`."""
ColdStart = Literal["history", "features", "features+history", "item_features"]


class AnswerFacts(NamedTuple):
    """The properties of an answer that metrics count. They are cached with the answer, so cached answers count too."""

    is_popular: bool
    """True if the answer is the fallback to popular items."""
    cold_start: ColdStart | None
    """The input that described the user or item in place of training data, or None if there was none."""
    unknown_features: int
    """Number of features that the model ignored."""

    @classmethod
    def of(cls, ranking: Ranking, prepared: Prepared) -> AnswerFacts:
        """Return the facts of a ranking and its query."""
        return cls(ranking.popular, _cold_start(prepared), len(prepared.ignored_features))

    def add_to(self, metrics: Metrics, recipe: str, verb: str) -> None:
        """Count an answer with these facts."""
        if self.is_popular:
            metrics.of(FALLBACKS, recipe=recipe, verb=verb).inc()
        elif self.cold_start is not None:
            metrics.of(COLD_STARTS, recipe=recipe, kind=self.cold_start).inc()
        if self.unknown_features:
            metrics.of(UNKNOWN_FEATURES, recipe=recipe).inc(self.unknown_features)


def _cold_start(prepared: Prepared) -> ColdStart | None:
    """Return `AnswerFacts.cold_start`."""
    query = prepared.query
    if query.seed_features or (query.audience is not None and query.audience.vector is not None):
        return "item_features"
    match prepared.profile:
        case "history" | "features" | "features+history" as kind:
            return kind
        case None if query.user_features is not None and not len(query.seeds):
            return "features"  # the answer does not show `profile`, so `plan` has removed it
        case _:
            return None


def count_request(metrics: Metrics, recipe: str, verb: str, status: str, seconds: float) -> None:
    """Count a request to a verb, successful or not, and the `seconds` that it took."""
    # Saves the look-up of four metrics for each request.
    if not metrics.is_enabled:
        return
    metrics.of(REQUESTS, recipe=recipe, status=status).inc()
    metrics.of(VERB_REQUESTS, recipe=recipe, verb=verb, status=status).inc()
    metrics.of(LATENCY, recipe=recipe).observe(seconds)
    metrics.of(VERB_LATENCY, recipe=recipe, verb=verb).observe(seconds)


def costs_of_rows(page: PageRequest) -> list[Cost]:
    """Return the cost class of each ranking of a page, and of its filters. A row of labels first ranks all items."""
    costs, of_label = list[Cost](), Cost.RULED
    for row in page.rows:
        asked = row.recommend or row.related or row.label or PLAIN_ROW
        own = cost_of_request(page.single(asked, ()))
        costs += [of_label, *[own] * row.label.rows] if row.label is not None else [own]
    # Apart from the rows, whose requests have boosts but no filters (`PageRequest.single`).
    conditions = count_conditions(page.restrictions, HEAVY_CONDITIONS)
    if conditions:
        costs.append(cost_class(limit=1, profile=0, described=0, is_ruled=False, is_other=True, conditions=conditions))
    return costs


def cost_of_request(question: AnyQuestion | PageRequest | PopularQuery | RerankRequest | Rejected) -> Cost:
    """Return the cost class of a request, for a page that of its most expensive row.

    An invalid element of a batch costs as much as a plain request. Rules of the recipe cost nothing, because the client
    did not choose them.
    """
    if isinstance(question, PageRequest):
        return max(costs_of_rows(question))
    if isinstance(question, RerankRequest):
        question = single_of(question)
    if isinstance(question, Rejected):
        return Cost.PLAIN
    if isinstance(question, PopularQuery):
        conditions = count_conditions(question.filters, RULED_CONDITIONS)
        limit, is_other = question.offset + question.limit, conditions > 0
        return cost_class(limit=limit, profile=0, described=0, is_ruled=False, is_other=is_other, conditions=conditions)
    if isinstance(question, UsersRequest):
        return cost_class(limit=question.offset + question.limit, profile=0, described=0, is_ruled=True, is_other=False)
    features: Mapping[str, Any] = question.user_features or {}
    described, filters = _long_texts(features) if features else 0, question.filters
    if isinstance(question, RelatedRequest):
        features = question.item_features or {}
        profile = len(question.seed_items or ())
        # Features of a single item hold no objects, so the item itself counts.
        described += sum(isinstance(item, dict) for item in features.values()) or bool(features)
        described += _long_texts(features)
        is_known, varies = profile > 0, False
    else:
        chosen = len(question.history or ())
        profile = chosen + len(question.dislikes or ())
        is_known, varies = question.user_id is not None or chosen > 0, question.varies
    return cost_class(
        limit=question.offset + question.limit,
        profile=profile,
        described=described,
        is_ruled=bool(question.explain or question.diversity or question.limits or question.boosts or varies),
        is_other=bool(question.pins) or not is_known,
        conditions=count_conditions(filters, HEAVY_CONDITIONS) if filters else 0,
        is_diverse=bool(question.diversity),
    )


def _long_texts(features: Mapping[str, Any]) -> int:
    """Return the cost of encoding the texts in `features`, as the number of items of `item_features` that cost as much.

    Stops counting above PLAIN_LIMIT, because all higher numbers have the same cost class.
    """
    characters, uncounted = 0, list(features.values())
    while uncounted and characters <= (PLAIN_LIMIT + 1) * CHARACTERS_OF_AN_ITEM:
        value = uncounted.pop()
        if isinstance(value, dict):
            uncounted += value.values()
        elif isinstance(value, list):
            uncounted += value
        characters += len(value) if isinstance(value, str) else 8
    return characters // CHARACTERS_OF_AN_ITEM
