"""Facts of an answer that metrics count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from svc.asking.costs import Cost
from svc.asking.requests import RecommendRequest
from svc.metrics import Metrics
from svc.model.ranking.query import Audience, Prepared, Query, Ranking
from svc.serving.api.counts import AnswerFacts, cost_of_request, count_request

VECTOR = np.zeros(2)
ITEMS = np.array([1], np.int32)
NOTHING = Ranking(ITEMS, VECTOR[:1])


@pytest.mark.parametrize(
    ("prepared", "kind"),
    [
        (Prepared(Query(1, user=0), (), profile="user"), None),
        (Prepared(Query(1, seeds=ITEMS), (), profile="user+history"), None),
        (Prepared(Query(1, seeds=ITEMS), ()), None),
        (Prepared(Query(1, seeds=ITEMS, user_features=VECTOR), ()), None),
        (Prepared(Query(1, user_features=VECTOR), ()), "features"),
        (Prepared(Query(1, user_features=VECTOR, seeds=ITEMS), (), profile="features+history"), "features+history"),
        (Prepared(Query(1, seeds=ITEMS), (), profile="history"), "history"),
        (Prepared(Query(1, audience=Audience(column=3)), ()), None),
        (Prepared(Query(1, audience=Audience(vector=VECTOR)), ()), "item_features"),
    ],
)
def test_a_ranking_without_a_trained_user_or_item_is_a_cold_start(prepared: Prepared, kind: str | None) -> None:
    """A related request with known seeds is never a cold start."""
    assert AnswerFacts.of(NOTHING, prepared).cold_start == kind


@pytest.mark.parametrize(
    ("features", "cost"),
    [
        ({"bio": "x" * 1023}, Cost.PLAIN),
        ({"bio": "x" * 1024}, Cost.LONG),
        ({"bio": ["x" * 1008, 7]}, Cost.LONG),
        ({"bio": ["x" * 1007, 7]}, Cost.PLAIN),
        ({"bio": [*["x" * 8192] * 4, "x" * 1015]}, Cost.LONG),
        ({"bio": [*["x" * 8192] * 4, "x" * 1016]}, Cost.RULED),
    ],
)
def test_texts_in_features_cost_an_item_for_each_1024_characters(features: dict[str, Any], cost: Cost) -> None:
    """A number and a list cost as much as eight characters each."""
    assert cost_of_request(RecommendRequest(user_id="u", user_features=features)) == cost


def test_a_request_is_counted_and_timed_for_its_recipe_and_for_its_verb() -> None:
    metrics = Metrics.create()
    for _ in range(2):
        count_request(metrics, "movies", "recommend", "ok", 0.25)
    lines = metrics.render().decode().splitlines()
    for line in (
        'svc_v1_requests_total{recipe="movies",status="ok"} 2.0',
        'svc_v1_verb_requests_total{recipe="movies",status="ok",verb="recommend"} 2.0',
        'svc_v1_request_latency_seconds_sum{recipe="movies"} 0.5',
        'svc_v1_verb_latency_seconds_sum{recipe="movies",verb="recommend"} 0.5',
    ):
        assert line in lines
