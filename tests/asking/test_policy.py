"""The `serving` block of a recipe in the form for requests."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

from svc.asking.policy import DEFAULT_POLICY, Policy
from svc.recipe.serving_schema import ServingLimit
from tests.recipe.loading import METADATA, load

FROM, UNTIL = "2026-01-01T00:00:00Z", "2026-01-08T01:00:00+01:00"


def test_a_recipe_without_a_serving_block_restricts_nothing(tmp_path: Path) -> None:
    """Its policy has the default of each rule."""
    assert Policy.of(load(tmp_path)) == DEFAULT_POLICY
    assert Policy.of(load(tmp_path, {"serving": {}})) == DEFAULT_POLICY
    assert not DEFAULT_POLICY.timed


def test_times_are_unix_times_and_filters_are_canonical(tmp_path: Path) -> None:
    """A rule with times applies from its begin until just before its end. A rule without times always applies."""
    serving = {
        "filter": {"year": {"gte": 1990}},
        "fallback": "popular",
        "limits": [{"field": "genres", "max": 2}],
        "boosts": [{"filter": {"year": {"eq": 1999}}, "factor": 2}],
        "pins": [{"item_id": "a", "position": 3, "from": FROM, "until": UNTIL}],
    }
    policy = Policy.of(load(tmp_path, {"item_metadata": METADATA, "serving": serving}))
    assert policy.filter == ("field", "year", (("gte", 1990.0),))
    assert (policy.popular_fallback, policy.limits, policy.timed) == (
        True,
        (ServingLimit(field="genres", max=2),),
        True,
    )
    ((tree, boost),), (pin,) = policy.boosts, policy.pins
    assert (tree, boost.factor) == (("field", "year", (("eq", 1999.0),)), 2)
    assert boost.applies(-math.inf)
    assert boost.applies(math.inf)
    begins, ends = datetime(2026, 1, 1, tzinfo=UTC).timestamp(), datetime(2026, 1, 8, tzinfo=UTC).timestamp()
    assert (pin.item_id, pin.position) == ("a", 3)
    moments = (begins - 1, begins, ends - 1, ends)
    assert [pin.applies(moment) for moment in moments] == [False, True, True, False]
