"""Filters of requests are compiled before they are planned."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from svc.asking.filtering import compile_filters, plans_long
from svc.asking.offer import Offer
from svc.asking.parsing import parse
from svc.asking.requests import RecommendRequest, RelatedRequest
from svc.model.ranking.filter_fields import FilterFields, NumberField

FILTER = {"all": [{"year": {"gte": 2}}, {"not": {"year": {"eq": 3}}}]}


def offer() -> Offer:
    return Offer(model=cast(Any, None), filters=FilterFields({"year": NumberField(np.arange(5.0))}, 5))


def test_a_compiled_filter_is_planned_at_once() -> None:
    """Filters of boosts are compiled too."""
    asked = offer()
    boosts = [{"filter": {"year": {"lt": 1}}, "factor": 2}]
    request = parse(RecommendRequest, {"user_id": "u", "filter": FILTER, "boosts": boosts})
    assert plans_long(request, asked)
    assert len(list(compile_filters(request, asked))) >= 2
    assert not plans_long(request, asked)


def test_an_invalid_filter_ends_the_compilation_without_an_error() -> None:
    """Planning raises it."""
    request = parse(RecommendRequest, {"user_id": "u", "filter": {"no": {"eq": 1}}})
    assert list(compile_filters(request, offer())) == []


@pytest.mark.parametrize(("count", "is_long"), [(32, False), (33, True)])
def test_many_described_items_take_long(count: int, is_long: bool) -> None:
    features = {f"n{number}": {"a": 1} for number in range(count)}
    assert plans_long(parse(RelatedRequest, {"item_features": features}), offer()) is is_long
