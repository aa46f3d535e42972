"""The cost of a parsed request, which counts against the rate of its key."""

from __future__ import annotations

from svc.serving.api.bodies.parsing import Rejected
from svc.serving.api.bodies.requests import AnyQuestion, RelatedRequest, UsersRequest
from svc.serving.models.costs import Cost, cost_class


def cost_of_request(asked: AnyQuestion | Rejected) -> Cost:
    """Return the cost class of a question.

    Rules that the recipe adds are not counted, because the client did not ask for them.
    """
    if isinstance(asked, Rejected):
        return Cost.PLAIN
    if isinstance(asked, UsersRequest):
        return cost_class(limit=asked.offset + asked.limit, profile=0, described=0, is_ruled=True, is_other=False)
    if isinstance(asked, RelatedRequest):
        features = asked.item_features or {}
        profile = len(asked.seed_items or ())
        described = sum(isinstance(item, dict) for item in features.values()) or bool(features)
        is_known, varies = profile > 0, False
    else:
        chosen = len(asked.history or ())
        profile, described = chosen + len(asked.dislikes or ()), 0
        is_known, varies = asked.user_id is not None or chosen > 0, asked.varies
    return cost_class(
        limit=asked.offset + asked.limit,
        profile=profile,
        described=described,
        is_ruled=bool(asked.explain or asked.diversity or asked.limits or asked.boosts or varies),
        is_other=bool(asked.pins) or not is_known,
    )
