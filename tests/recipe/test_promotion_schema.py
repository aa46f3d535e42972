"""What a recipe may say about going live, and what it is told where that does not fit together."""

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


def test_the_defaults_compare_with_both_and_guard_three_figures(tmp_path: Path) -> None:
    """A hundredth worse in the metric, three tenths in a guarded figure; nothing is decided until the mode says so."""
    found = promotion(tmp_path, {})
    assert (found.mode, found.against, found.min_relative_change) == ("off", ("incumbent", "TopPop"), -0.01)
    assert found.confidence == 0.95
    guarded = found.guardrails.model_dump()
    assert guarded.pop("rank_ms") is None
    assert guarded == {name: {"min_relative_change": -0.3} for name in ("catalog_coverage", "n_users", "n_items")}
    assert load(tmp_path).recipe.promotion is None


def test_a_guardrail_is_given_or_taken_away_by_itself(tmp_path: Path) -> None:
    """The others keep their defaults."""
    found = promotion(tmp_path, {"guardrails": {"n_users": None, "n_items": {"min_relative_change": -0.1}}})
    assert found.guardrails.n_users is None
    assert found.guardrails.n_items is not None
    assert found.guardrails.n_items.min_relative_change == -0.1
    assert found.guardrails.catalog_coverage is not None


def test_a_bare_off_is_the_mode_off(tmp_path: Path) -> None:
    """YAML reads it as false."""
    lines = [f"{name}: {value!r}" for name, value in {**BASE, "output": VERSIONS}.items()]
    found = load(tmp_path, "\n".join([*lines, "promotion: {mode: off}"])).recipe.promotion
    assert found is not None
    assert found.mode == "off"


@pytest.mark.parametrize("spelled", ["TopPop", "toppop", "TopPopRecommender"])
def test_popularity_may_be_spelled_as_among_the_algorithms(tmp_path: Path, spelled: str) -> None:
    """Popularity may be spelled as among the algorithms; named twice it counts once."""
    assert promotion(tmp_path, {"against": [spelled, "TopPop"]}).against == ("TopPop",)


@pytest.mark.parametrize(
    ("block", "said"),
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
def test_contradictory_fields_are_refused_with_their_path(tmp_path: Path, block: dict[str, Any], said: str) -> None:
    """The message names the path of the field and what is allowed there."""
    assert said in refusal(tmp_path, {"output": VERSIONS, "promotion": block})


def test_enforcing_needs_versions(tmp_path: Path) -> None:
    """A refused model has to go somewhere else than over the live one; a report may overwrite."""
    message = refusal(tmp_path, {"promotion": {"mode": "enforce"}})
    assert "promotion.mode enforce needs output.versioning: append_sha" in message
    assert "always_overwrite would put a refused model over the live one" in message
    assert load(tmp_path, {"promotion": {"mode": "report"}}).recipe.promotion is not None
    assert "keep needs versioning: append_sha" in refusal(tmp_path, {"output": {"path": "a.svc", "keep": 3}})
