"""Recipes: what is accepted, what is refused and in which words, and what the hash depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from svc.errors import RecipeError, RecipeSecurityError
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.settings import Settings

BASE: dict[str, Any] = {
    "name": "movies",
    "source": {"type": "csv", "path": "data/ratings.csv"},
    "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
    "output": {"path": "artifacts/movies.svc"},
}


def load(folder: Path, more: dict[str, Any] | str | None = None, **options: Any) -> LoadedRecipe:
    """Write BASE with `more` on top, or the text `more`, and load it."""
    path = folder / "recipe.yaml"
    text = more if isinstance(more, str) else yaml.safe_dump({**BASE, **(more or {})})
    path.write_text(text, encoding="utf-8")
    settings = options.pop("settings", Settings())
    return load_recipe(path, options.pop("variables", {}), settings=settings, **options)


def refusal(folder: Path, more: dict[str, Any] | str, **options: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        load(folder, more, **options)
    return caught.value.message


def test_defaults_are_those_of_the_reference(tmp_path: Path) -> None:
    """A recipe of four blocks is complete."""
    recipe = load(tmp_path).recipe
    assert recipe.training.n_trials == 40
    assert recipe.training.metric == "ndcg"
    assert recipe.training.algorithms[0] == "IALSRecommender"
    assert len(recipe.training.algorithms) == 6
    assert recipe.training.split.scheme == "random"
    assert recipe.cleansing.dedup == "keep_last"
    assert recipe.output.versioning == "always_overwrite"


def test_shorthand_and_long_form_are_one_recipe(tmp_path: Path) -> None:
    """The same meaning in either spelling gives the same parsed recipe and the same hash."""
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


@pytest.mark.parametrize("key", ["algorithms", "metric", "split", "versioning"])
def test_a_value_in_both_places_is_an_error(tmp_path: Path, key: str) -> None:
    """Nobody has to guess which one counts."""
    value = {"algorithms": ["ials"], "metric": "map", "split": {}, "versioning": "append_sha"}[key]
    block = {"output": {**BASE["output"], key: value}} if key == "versioning" else {"training": {key: value}}
    assert "keep one" in refusal(tmp_path, {key: value, **block})


def test_defaults_and_order_do_not_change_the_hash(tmp_path: Path) -> None:
    """Writing a default out, reordering keys or commenting leaves the hash alone; another value does not."""
    plain = load(tmp_path).recipe_hash
    spelled = {"training": {"n_trials": 40, "split": {"heldout_ratio": 0.1}}, "cleansing": {}, "item_metadata": None}
    assert load(tmp_path, spelled).recipe_hash == plain
    assert (
        load(tmp_path, {"source": {"path": "data/ratings.csv", "delimiter": ",", "type": "csv"}}).recipe_hash == plain
    )
    assert load(tmp_path, "# note\n" + yaml.safe_dump(BASE)).recipe_hash == plain
    assert load(tmp_path, {"training": {"n_trials": 41}}).recipe_hash != plain
    assert len(plain) == 12


def test_the_hash_is_taken_before_expansion(tmp_path: Path) -> None:
    """Another date injected is the same recipe."""
    more = {"source": {"type": "csv", "path": "${SVC_RECIPE_DAY}.csv"}, "training": {"n_trials": "${SVC_RECIPE_N}"}}
    first = load(tmp_path, more, variables={"SVC_RECIPE_DAY": "1", "SVC_RECIPE_N": "5"})
    second = load(tmp_path, more, variables={"SVC_RECIPE_DAY": "2", "SVC_RECIPE_N": "6"})
    assert first.recipe.source.options["path"] == "1.csv"
    assert second.recipe.training.n_trials == 6
    assert first.recipe_hash == second.recipe_hash
    assert first.recipe_hash == load(tmp_path, more, for_serving=True).recipe_hash


def test_a_server_needs_no_variables_of_training(tmp_path: Path) -> None:
    """Only name, output and item_metadata are expanded for serving."""
    more = {"source": {"type": "csv", "path": "${SVC_RECIPE_A}"}, "metric": "${SVC_RECIPE_B}"}
    served = load(tmp_path, {**more, "name": "m-${SVC_RECIPE_C}"}, variables={"SVC_RECIPE_C": "x"}, for_serving=True)
    assert served.recipe.name == "m-x"
    assert "SVC_RECIPE_C is not set" in refusal(tmp_path, {"name": "m-${SVC_RECIPE_C}"}, for_serving=True)
    assert "unknown key" in refusal(tmp_path, {"training": {"cutof": 3}}, for_serving=True)


@pytest.mark.parametrize(
    "more",
    [
        {"algorithms": ["${SVC_RECIPE_A}"]},
        {"training": "${SVC_RECIPE_A}"},
        {"training": {"split": {"heldout_ratio": "${SVC_RECIPE_A}", "seed": "${SVC_RECIPE_B}"}}},
        {"cleansing": {"dedup": "${SVC_RECIPE_A}"}},
        {"source": {"type": "${SVC_RECIPE_A}", "path": "ftp://${SVC_RECIPE_A}"}},
    ],
)
def test_a_server_accepts_any_unset_variable_of_training(tmp_path: Path, more: dict[str, Any]) -> None:
    """Wherever it stands, and it counts for the hash."""
    served = load(tmp_path, more, for_serving=True)
    assert "SVC_RECIPE_A" in str(served.unexpanded)


@pytest.mark.parametrize("more", [{"schema": "${SVC_RECIPE_A}"}, {"source": "${SVC_RECIPE_A}"}])
def test_a_required_block_is_never_a_variable(tmp_path: Path, more: dict[str, Any]) -> None:
    """It is refused, for serving too."""
    assert "recipe.yaml" in refusal(tmp_path, more, for_serving=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"training": {"cutof": 3}}, ["training.cutof", "did you mean `cutoff`"]),
        ({"n_trials": 3}, ["it belongs at `training.n_trials`"]),
        ({"source": {"type": "csv", "path": "a", "delimeter": ";"}}, ["source.delimeter", "`delimiter`"]),
        ({"metric": "ndgc"}, ["metric:", "did you mean 'ndcg'", "found the text 'ndgc'"]),
        ({"algorithms": ["ilas"]}, ["algorithms[0]", "IALSRecommender"]),
        ({"schema": {"user_column": 1, "item_column": "i"}}, ["schema.user_column", "must be text", "found 1"]),
        ({"training": {"n_trials": True}}, ["training.n_trials", "must be a number"]),
        ({"training": {"n_trials": 0}}, ["training.n_trials", "greater than or equal to 1"]),
        ({"training": []}, ["training:", "must be a mapping", "a list of 0"]),
        ({"schema": {"user_column": "u"}}, ["schema.item_column: is missing"]),
        (
            {"schema": {"user_column": "u", "item_column": "i"}, "split": {"scheme": "time_user"}},
            ["needs schema.time_column"],
        ),
        ({"name": "a/b"}, ["name:", "must match"]),
        ({"name": "nаme"}, ["name:", "must match", "(with CYRILLIC SMALL LETTER A)"]),
        ({"name": "\u202eeman"}, ["name:", "must match", "RIGHT-TO-LEFT OVERRIDE", r"'\u202eeman'"]),
        ({"name": "ｍovies"}, ["name:", "(with FULLWIDTH LATIN SMALL LETTER M)"]),
        ({"оutput": {"path": "a.svc"}}, ["unknown key (with CYRILLIC SMALL LETTER O)", "did you mean `output`"]),
        ({"name": "x" * 65}, ["name:", "must match"]),
        ({"features": {}}, ["features", "needs `item`, `user` or both"]),
        ({"output": {"path": "model.bin"}}, ["output.path", ".svc"]),
        ({"source": {"type": "csv", "path": "https://example.org/a.csv"}}, ["sha256 is required"]),
        ({"source": {"type": "sql", "query": "select 1", "dsn_env": "DATABASE_URL"}}, ["source.dsn_env", "must match"]),
        ({"training": {"per_algorithm_trials": {"bprfm": 2}}}, ["per_algorithm_trials", "does not list"]),
    ],
)
def test_errors_name_the_place_and_the_way_out(tmp_path: Path, more: dict[str, Any], words: list[str]) -> None:
    """The file, the field as the file spells it, what was found and what is allowed."""
    message = refusal(tmp_path, more)
    assert str(tmp_path / "recipe.yaml") in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "training",
    [
        {"algorithms": ["TopPop", "CosineKNN"]},
        {"algorithms": ["TopPop", "IALS"], "per_algorithm_trials": {"IALS": 0}},
    ],
)
def test_features_need_the_algorithm_that_learns_from_them(tmp_path: Path, training: dict[str, Any]) -> None:
    """Otherwise their columns would be read and encoded for nothing."""
    source = {"type": "csv", "path": "items.csv"}
    side = {"source": source, "id_column": "item_id", "columns": [{"name": "genre", "kind": "categorical"}]}
    with pytest.raises(RecipeError, match=r"IALSRecommender alone: list it in training\.algorithms"):
        load(tmp_path, {"training": training, "features": {"item": side}})


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    """Nobody fixes one line a run."""
    message = refusal(tmp_path, {"training": {"cutof": 3, "n_trials": "many"}, "nmae": "x"})
    assert message.count("\n") == 3


@pytest.mark.parametrize(
    ("text", "word"), [("", "empty"), ("# only this\n", "empty"), ("- a\n", "a mapping"), ("name: [", "line 1")]
)
def test_what_is_no_recipe_is_said_to_be_none(tmp_path: Path, text: str, word: str) -> None:
    """Empty files, lists and broken YAML give one clear line."""
    assert word in refusal(tmp_path, text)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    """A path that cannot be a recipe is named."""
    with pytest.raises(RecipeError, match="no such file"):
        load_recipe(tmp_path / "none.yaml", {}, settings=Settings())
    with pytest.raises(RecipeError, match="folder"):
        load_recipe(tmp_path, {}, settings=Settings())


@pytest.mark.parametrize(
    "path",
    ["ftp://h/a.svc", "s3://user:pw@bucket/a.svc", "simplecache::s3://b/a.svc", "https://h/../a.svc", "memory://a.svc"],
)
def test_addresses_that_are_never_allowed(tmp_path: Path, path: str) -> None:
    """Schemes, embedded credentials, chains and dot segments are security errors, and no password is shown."""
    with pytest.raises(RecipeSecurityError) as caught:
        load(tmp_path, {"output": {"path": path}})
    assert "output.path" in caught.value.message
    assert "pw" not in caught.value.message


def test_output_must_lie_below_the_artifact_root(tmp_path: Path) -> None:
    """Links are followed before the root is compared."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    settings = Settings(artifact_root=str(root))
    assert load(tmp_path, {"output": {"path": str(root / "a.svc")}}, settings=settings)
    for path in (root / "link" / "a.svc", root / ".." / "a.svc", outside / "a.svc"):
        with pytest.raises(RecipeSecurityError, match="SVC_ARTIFACT_ROOT"):
            load(tmp_path, {"output": {"path": str(path)}}, settings=settings)


def test_a_value_from_a_variable_is_never_shown(tmp_path: Path) -> None:
    """Messages show the reference, not what it stands for."""
    message = refusal(tmp_path, {"training": {"n_trials": "${SVC_RECIPE_N}"}}, variables={"SVC_RECIPE_N": "hunter2"})
    assert "${SVC_RECIPE_N}" in message
    assert "hunter2" not in message


def test_duplicates_and_idle_options_are_warned_of(tmp_path: Path) -> None:
    """They work, but hardly as meant."""
    columns = [{"name": "year", "encoding": "numerical", "delimiter": ";"}]
    side = {"source": {"type": "csv", "path": "a.csv"}, "id_column": "i", "columns": columns}
    loaded = load(tmp_path, {"algorithms": ["ials", "IALSRecommender"], "features": {"item": side}})
    assert [warning.code for warning in loaded.warnings] == ["algorithm_duplicate", "option_unused"]
    assert loaded.recipe.training.algorithms == ("IALSRecommender",)
    assert loaded.recipe.features is not None
    assert loaded.recipe.features.item is not None
    assert loaded.recipe.features.item.columns[0].kind == "numerical"
