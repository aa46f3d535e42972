"""The serving block: messages for invalid fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc.settings import Settings
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


ARMS = [{"name": "control", "weight": 90}, {"name": "next", "weight": 10}]
EXPERIMENT = {"name": "ranking-2", "salt": "2026-12", "arms": ARMS}


def arms(*more: dict[str, Any], **block: Any) -> dict[str, Any]:
    """Return an experiment whose second arm is changed, or whose block is."""
    return {"experiment": EXPERIMENT | {"arms": [ARMS[0], *(ARMS[1] | change for change in more)]} | block}


ARM_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    (arms(), "serving.experiment.arms: must have at least 2 entries; found a list of 1"),
    (arms(*({"name": f"a{n}"} for n in range(8))), "serving.experiment.arms: must have at most 8 entries"),
    (arms({"name": "control"}), "serving.experiment.arms: found a list of 2, which names 'control' twice"),
    (arms({"name": "a@b"}), "serving.experiment.arms[1].name: must be 1 to 64 letters"),
    (arms({"weight": 0.5}), "serving.experiment.arms[1].weight: must be a whole number"),
    (arms({"weight": -1}), "serving.experiment.arms[1].weight"),
    (arms(arms=[arm | {"weight": 0} for arm in ARMS]), "every arm has the weight 0"),
    (arms({}, shadow={"arm": "nxt", "share": 0.1}), "shadow.arm 'nxt' is no arm: name one of control, next"),
    (arms({}, shadow={"arm": "next", "share": 1.1}), "serving.experiment.shadow.share"),
    (arms({}, salt=""), "serving.experiment.salt: must not be empty"),
    (arms({"path": "next.pkl"}), "serving.experiment.arms[1].path: must end in .svc"),
    (arms({"path": "ftp://x/next.svc"}), "serving.experiment.arms[1].path: scheme ftp:// is not allowed"),
    (arms({"serving": {"fallback": "popular"}}), "serving.experiment.arms[1].serving.fallback: unknown key"),
    (arms({"serving": {"filter": {"x": {"eq": 1}}}}), "serving.experiment.arms[1].serving.filter.x: no filter field"),
    (
        arms({"serving": {"limits": [{"field": "year", "max": 1}]}}),
        "serving.experiment.arms[1].serving.limits[0].field: 'year' is not a filter field with labels",
    ),
    ({"served_log": {"path": "s3://shop/served"}}, "serving.served_log.path: must be a local folder"),
    ({"served_log": {"path": "served", "rotate_minutes": 0}}, "serving.served_log.rotate_minutes"),
]


@pytest.mark.parametrize(("serving", "words"), ARM_PROBLEMS)
def test_invalid_experiments_are_refused(tmp_path: Path, serving: dict[str, Any], words: str) -> None:
    """Training and serving give the same message, with the place."""
    more = {"item_metadata": METADATA, "serving": serving}
    assert words in refusal(tmp_path, more)
    assert words in refusal(tmp_path, more, for_serving=True)


def test_an_arm_with_an_artifact_is_a_recipe_with_its_rules(tmp_path: Path) -> None:
    """Its rules replace those of the recipe one by one. Salt and arms change no hash, and stand in no artifact."""
    own = {"path": "next.svc", "serving": {"diversity": 0.5, "filter": None}}
    rules = {"diversity": 0.1, "filter": {"year": {"gte": 2000}}, "fallback": "popular", "users": True}
    more = {"item_metadata": METADATA, "serving": {**rules, **arms(own), "served_log": {"path": "../served"}}}
    loaded, plain = load(tmp_path, more), load(tmp_path, {"item_metadata": METADATA})
    assert (loaded.recipe_hash, loaded.unexpanded) == (plain.recipe_hash, plain.unexpanded)
    (arm,) = loaded.arms
    assert (arm.recipe.name, arm.output_uri) == ("movies@next", str(tmp_path / "next.svc"))
    serving = arm.recipe.serving
    assert (serving.diversity, serving.filter, serving.fallback, serving.users) == (0.5, None, "popular", True)
    assert (serving.experiment, serving.served_log, arm.arms) == (None, None, ())
    assert arm.recipe.item_metadata == loaded.recipe.item_metadata
    assert loaded.served_log_folder == tmp_path.parent / "served"
    assert (plain.arms, plain.served_log_folder) == ((), None)


@pytest.mark.parametrize("block", [arms({"path": "/elsewhere/a.svc"}), {"served_log": {"path": "/elsewhere"}}])
def test_arms_and_logs_lie_below_the_root_of_artifacts(tmp_path: Path, block: dict[str, Any]) -> None:
    settings = Settings(artifact_root=str(tmp_path))
    assert "lies outside SVC_ARTIFACT_ROOT" in refusal(tmp_path, {"serving": block}, settings=settings)
