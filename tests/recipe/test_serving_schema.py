"""The serving block: messages for invalid fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recipe.loading import AVAILABILITY, METADATA, load, refusal

SERVING_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"serving": {"filter": {"yaer": {"eq": 1}}}, "item_metadata": METADATA}, "serving.filter.yaer: no filter field"),
    ({"serving": {"filter": {"year": {"eq": 1}}}}, "declares no item_metadata.filter_fields"),
    ({"serving": {"availability": {**AVAILABILITY, "refresh_seconds": 4}}}, "serving.availability.refresh_seconds"),
    ({"serving": {"availability": {**AVAILABILITY, "max_stale_seconds": 30}}}, "shorter than refresh_seconds"),
    ({"serving": {"availability": {**AVAILABILITY, "mode": "only"}}}, "must be one of"),
    (
        {"serving": {"new_items": {"source": METADATA["source"], "min_share": 0.3}}},
        "serving.new_items.min_share: found 0.3, which is above max_share, 0.2: raise max_share, or lower min_share",
    ),
    ({"serving": {"new_items": {"source": METADATA["source"], "min_share": 1.1}}}, "serving.new_items.min_share"),
    ({"serving": {"fallback": "all"}}, "serving.fallback"),
    ({"serving": {"popular": {}}}, "give half_life, window, or both"),
    ({"serving": {"popular": {"half_life": 7}}}, "serving.popular.half_life: must be text"),
    (
        {"serving": {"popular": {"half_life": "none"}}},
        "serving.popular.half_life: must be a whole number with its unit",
    ),
    ({"serving": {"popular": {"window": "0d"}}}, "serving.popular.window: must be a whole number with its unit"),
    (
        {"serving": {"popular": {"window": "7d"}}, "schema": {"user_column": "user_id", "item_column": "item_id"}},
        "serving.popular needs schema.time_column: without times, nobody knows what was chosen lately",
    ),
]


@pytest.mark.parametrize(("more", "words"), SERVING_PROBLEMS)
def test_invalid_serving_blocks_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """Training and serving give the same message, with the place."""
    assert words in refusal(tmp_path, more)
    assert words in refusal(tmp_path, more, for_serving=True)


RULE_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"limits": [{"field": "year", "max": 1}]}, "serving.limits[0].field: 'year' is not a filter field with labels"),
    ({"limits": [{"field": "genres", "max": 1}] * 2}, "serving.limits[1].field: 'genres' has a limit already"),
    ({"boosts": [{"filter": {"x": {}}, "factor": 2}]}, "serving.boosts[0].filter.x: no filter field"),
    ({"boosts": [{"filter": {"year": {"gt": 1}}, "factor": 20}]}, "serving.boosts[0].factor"),
    ({"pins": [{"item_id": "a", "position": 1}, {"item_id": "b", "position": 1}]}, "at the same time"),
    ({"pins": [{"item_id": "a", "position": 1, "from": "2026-01-01T00:00:00"}]}, "must have a zone"),
    ({"diversity": 2}, "serving.diversity"),
]


@pytest.mark.parametrize(("serving", "words"), RULE_PROBLEMS)
def test_invalid_serving_rules_are_refused(tmp_path: Path, serving: dict[str, Any], words: str) -> None:
    """The message names the place of the invalid rule."""
    assert words in refusal(tmp_path, {"item_metadata": METADATA, "serving": serving})


def test_pins_may_follow_each_other_in_time(tmp_path: Path) -> None:
    """One position may have different items in successive weeks."""
    days = ["2026-01-01T00:00:00Z", "2026-01-08T00:00:00+01:00", "2026-01-15T00:00:00Z"]
    pins = [
        {"item_id": "a", "position": 0, "from": days[0], "until": days[1]},
        {"item_id": "b", "position": 0, "from": days[1], "until": days[2]},
    ]
    serving = load(tmp_path, {"serving": {"pins": pins}}).recipe.serving
    assert [pin.item_id for pin in serving.pins] == ["a", "b"]
