"""The recipe hash: the changes that alter it, and those that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from svc.recipe.algorithms import DEFAULT_ALGORITHMS
from tests.recipe.loading import AVAILABILITY, BASE, METADATA, load


def test_shorthand_and_long_form_are_one_recipe(tmp_path: Path) -> None:
    """Shorthand and long form give the same parsed recipe and the same hash."""
    short = {
        "algorithms": ["ials", "toppop"],
        "metric": "recall",
        "split": {"scheme": "time_user"},
        "output": {"path": "a.svc"},
        "versioning": "append_sha",
    }
    long = {
        "training": {"algorithms": ["IALS", "TopPopRecommender"], "metric": "recall", "split": {"scheme": "time_user"}},
        "output": {"path": "a.svc", "versioning": "append_sha"},
    }
    first, second = load(tmp_path, short), load(tmp_path, long)
    assert first.recipe == second.recipe
    assert first.recipe_hash == second.recipe_hash


def test_defaults_and_order_do_not_change_the_hash(tmp_path: Path) -> None:
    """An explicit default, another order of keys and a comment keep the hash. Another value changes it."""
    plain = load(tmp_path).recipe_hash
    reverse = dict(reversed(BASE.items()), source=dict(reversed(BASE["source"].items())))
    assert load(tmp_path, json.dumps(reverse)).recipe_hash == load(tmp_path, json.dumps(BASE)).recipe_hash == plain
    spelled = {"training": {"n_trials": 40, "split": {"heldout_ratio": 0.1}}, "cleansing": {}, "item_metadata": None}
    assert load(tmp_path, spelled).recipe_hash == plain
    assert (
        load(tmp_path, {"source": {"path": "data/ratings.csv", "delimiter": ",", "type": "csv"}}).recipe_hash == plain
    )
    assert load(tmp_path, "# note\n" + yaml.safe_dump(BASE)).recipe_hash == plain
    assert load(tmp_path, {"training": {"n_trials": 41}}).recipe_hash != plain
    assert len(plain) == 12


def test_the_default_algorithms_in_effect_do_not_change_the_hash(tmp_path: Path) -> None:
    """If recency is searched, the defaults include Transitions. A list without it has another hash."""
    timed, unordered = {"split": {"scheme": "time_user"}}, {"split": {"scheme": "random"}}
    plain, untimed = load(tmp_path, {"training": timed}), load(tmp_path, {"training": unordered})
    listed, shorter = list(plain.recipe.training.algorithms), list(untimed.recipe.training.algorithms)
    assert len(listed) > len(shorter)
    assert load(tmp_path, {"training": {**timed, "algorithms": listed}}).recipe_hash == plain.recipe_hash
    assert load(tmp_path, {"training": {**timed, "algorithms": shorter}}).recipe_hash != plain.recipe_hash
    assert load(tmp_path, {"training": {**unordered, "algorithms": shorter}}).recipe_hash == untimed.recipe_hash


@pytest.mark.parametrize("for_serving", [False, True])
def test_a_variable_changes_no_hash_of_listed_algorithms(tmp_path: Path, *, for_serving: bool) -> None:
    """The default depends on the value of the variable, which a server does not know."""
    training = {"split": {"scheme": "${SVC_RECIPE_SCHEME}"}, "algorithms": list(DEFAULT_ALGORITHMS)}
    for scheme in ("random", "time_user"):
        loaded = load(
            tmp_path, {"training": training}, variables={"SVC_RECIPE_SCHEME": scheme}, for_serving=for_serving
        )
        assert loaded.recipe_hash == "5083e24c5cc9"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "ef2cc5cb02f0"),
        ({"training": {"parallelism": 1}}, "ef2cc5cb02f0"),
        ({"source": {"type": "csv", "path": "Bücher.csv", "delimiter": ";"}, "metric": "map"}, "0ae2e78181f7"),
    ],
)
def test_the_hash_is_the_same_in_all_versions_of_svc(tmp_path: Path, more: dict[str, Any], expected: str) -> None:
    """Artifacts contain the hash, so a different one would prevent the reuse of their parameters."""
    assert load(tmp_path, more).recipe_hash == expected


def test_the_hash_is_taken_before_expansion(tmp_path: Path) -> None:
    """Another value of a variable does not change the hash."""
    more = {"source": {"type": "csv", "path": "${SVC_RECIPE_DAY}.csv"}, "training": {"n_trials": "${SVC_RECIPE_N}"}}
    first = load(tmp_path, more, variables={"SVC_RECIPE_DAY": "1", "SVC_RECIPE_N": "5"})
    second = load(tmp_path, more, variables={"SVC_RECIPE_DAY": "2", "SVC_RECIPE_N": "6"})
    assert first.recipe.source.options["path"] == "1.csv"
    assert second.recipe.training.n_trials == 6
    assert first.recipe_hash == second.recipe_hash
    assert first.recipe_hash == load(tmp_path, more, for_serving=True).recipe_hash


def test_serving_fields_do_not_change_the_hash(tmp_path: Path) -> None:
    """`serving` and `filter_fields` do not change the model, so they are neither in the hash nor in headers."""
    plain = load(tmp_path, {"item_metadata": {key: METADATA[key] for key in ("source", "id_column", "fields")}})
    serving = {"filter": {"year": {"gte": 1990}}, "availability": AVAILABILITY, "fallback": "popular"}
    more = load(tmp_path, {"item_metadata": METADATA, "serving": serving})
    assert more.recipe_hash == plain.recipe_hash
    assert more.unexpanded == plain.unexpanded
    assert more.recipe != plain.recipe


def test_serving_popular_changes_the_hash_and_headers(tmp_path: Path) -> None:
    """Unlike the rest of `serving`, `serving.popular` changes the model."""
    popular = {"popular": {"half_life": "7d"}}
    counted = load(tmp_path, {"serving": popular})
    assert counted.recipe_hash != load(tmp_path).recipe_hash
    assert counted.recipe_hash == load(tmp_path, {"serving": {**popular, "fallback": "popular"}}).recipe_hash
    assert counted.unexpanded["serving"] == popular
