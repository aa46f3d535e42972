"""The promotion block: its defaults, and messages for fields that contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc.recipe.promotion_schema import Promotion
from tests.recipe.loading import BASE, load, refusal

VERSIONS = {"path": "artifacts/movies.svc", "versioning": "append_sha"}


def promotion(folder: Path, block: dict[str, Any] | str) -> Promotion:
    found = load(folder, {"output": VERSIONS, "promotion": block}).recipe.promotion
    assert found is not None
    return found


def test_the_defaults_have_two_opponents_and_three_guardrails(tmp_path: Path) -> None:
    """By default the metric may fall by 1% and guarded figures by 30%, and the mode is off."""
    found = promotion(tmp_path, {})
    assert (found.mode, found.against, found.min_relative_change) == ("off", ("incumbent", "TopPop"), -0.01)
    assert found.confidence == 0.95
    guarded = found.guardrails.model_dump()
    assert guarded.pop("rank_ms") is None
    assert guarded == {name: {"min_relative_change": -0.3} for name in ("catalog_coverage", "n_users", "n_items")}
    assert load(tmp_path).recipe.promotion is None


def test_guardrails_are_set_and_removed_one_by_one(tmp_path: Path) -> None:
    """The other guardrails keep their defaults."""
    found = promotion(tmp_path, {"guardrails": {"n_users": None, "n_items": {"min_relative_change": -0.1}}})
    assert found.guardrails.n_users is None
    assert found.guardrails.n_items is not None
    assert found.guardrails.n_items.min_relative_change == -0.1
    assert found.guardrails.catalog_coverage is not None


def test_a_bare_off_is_the_mode_off(tmp_path: Path) -> None:
    """YAML reads a bare `off` as false. It is accepted as the mode "off"."""
    lines = [f"{name}: {value!r}" for name, value in {**BASE, "output": VERSIONS}.items()]
    found = load(tmp_path, "\n".join([*lines, "promotion: {mode: off}"])).recipe.promotion
    assert found is not None
    assert found.mode == "off"


@pytest.mark.parametrize("spelled", ["TopPop", "toppop", "TopPopRecommender"])
def test_the_baseline_may_be_named_as_an_algorithm(tmp_path: Path, spelled: str) -> None:
    """All names of the popularity algorithm are accepted. A repeated name counts once."""
    assert promotion(tmp_path, {"against": [spelled, "TopPop"]}).against == ("TopPop",)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"mode": "enforced"}, "promotion.mode: must be one of 'off', 'report' or 'enforce' (did you mean 'enforce'?)"),
        ({"mode": True}, "promotion.mode: must be one of 'off', 'report' or 'enforce'; found true"),
        ({"against": ["incumbant"]}, "promotion.against[0]: must be one of 'incumbent' or 'TopPop' (did you mean"),
        ({"against": []}, "promotion.against: "),
        ({"against": ["TopPop"], "guardrails": {}}, "guardrails compare with the incumbent"),
        ({"guardrails": {"n_rows": {"min_relative_change": -0.3}}}, "promotion.guardrails.n_rows: unknown key"),
        ({"guardrails": {"rank_ms": {"max_relative_change": -1}}}, "must be greater than or equal to 0"),
        ({"guardrails": {"n_users": -0.3}}, "promotion.guardrails.n_users: must be a mapping"),
        ({"guardrails": {"n_users": {}}}, "promotion.guardrails.n_users.min_relative_change: is missing"),
        ({"min_relative_change": -1.5}, "promotion.min_relative_change: must be greater than or equal to -1"),
        ({"confidence": 95}, "promotion.confidence: must be less than or equal to 0.999"),
        ({"guardrail": {}}, "promotion.guardrail: unknown key; did you mean `guardrails`?"),
    ],
)
def test_contradictory_fields_are_refused_with_their_path(tmp_path: Path, block: dict[str, Any], words: str) -> None:
    """The message names the path of the field and the allowed values."""
    assert words in refusal(tmp_path, {"output": VERSIONS, "promotion": block})


def test_enforce_needs_versions(tmp_path: Path) -> None:
    """`enforce` would overwrite the live model without `append_sha`. `report` may overwrite it."""
    message = refusal(tmp_path, {"promotion": {"mode": "enforce"}})
    assert "promotion.mode enforce needs output.versioning: append_sha" in message
    assert "always_overwrite would put a refused model over the live one" in message
    assert load(tmp_path, {"promotion": {"mode": "report"}}).recipe.promotion is not None
    assert "keep needs versioning: append_sha" in refusal(tmp_path, {"output": {"path": "a.svc", "keep": 3}})
