"""Loading recipes: accepted recipes, and the messages for refused ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svc.errors import RecipeError, RecipeSecurityError
from svc.recipe.load import SHORTHAND, load_recipe, normalize
from svc.settings import Settings
from tests.recipe.loading import BASE, METADATA, load, refusal


@pytest.mark.parametrize("key", ["algorithms", "metric", "split", "versioning"])
def test_a_value_in_shorthand_and_in_its_block_is_an_error(tmp_path: Path, key: str) -> None:
    """A shorthand key that is also in its block is ambiguous, so it is refused."""
    value = {"algorithms": ["ials"], "metric": "map", "split": {}, "versioning": "append_sha"}[key]
    block = {"output": {**BASE["output"], key: value}} if key == "versioning" else {"training": {key: value}}
    assert "keep one" in refusal(tmp_path, {key: value, **block})


def test_the_metric_ignores_case(tmp_path: Path) -> None:
    """`NDCG`, as papers write it, is the metric `ndcg`."""
    assert load(tmp_path, {"training": {"metric": "NDCG"}}).recipe.training.metric == "ndcg"


def test_an_empty_variable_gives_a_warning(tmp_path: Path) -> None:
    """A variable that is set to an empty text is most likely a mistake."""
    more = {"source": {"type": "csv", "path": "a${SVC_RECIPE_A}${SVC_RECIPE_B}.csv"}}
    (warning,) = load(tmp_path, more, variables={"SVC_RECIPE_A": "", "SVC_RECIPE_B": "x"}).warnings
    assert (warning.code, warning.field, warning.value) == ("variable_empty", "source.path", "SVC_RECIPE_A")


def test_a_large_share_of_change_gives_a_warning(tmp_path: Path) -> None:
    """A bound of 40 permits a change by 4,000%. Most likely 40% is meant."""
    bounds = {"n_rows": 40, "n_users": 1.5, "n_items": 0.4}
    (warning,) = load(tmp_path, {"cleansing": {"max_change": bounds}}).warnings
    assert (warning.code, warning.field) == ("share_large", "cleansing.max_change.n_rows")
    assert warning.problem == "40 permits a change by 4000%; write 0.4 for 40%"


def test_a_variable_in_a_query_gives_a_warning(tmp_path: Path) -> None:
    """Queries go to the database as they stand, so a reference in one is most likely a mistake."""
    source = {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": "SELECT u, i FROM t"}
    assert load(tmp_path, {"source": source}).warnings == ()
    (warning,) = load(tmp_path, {"source": {**source, "query": "SELECT u, i FROM ${SVC_RECIPE_TABLE}"}}).warnings
    assert (warning.code, warning.field, warning.value) == ("query_not_expanded", "source.query", "query")


def test_a_server_needs_no_variables_of_training(tmp_path: Path) -> None:
    """For serving, only the fields that a server uses need their variables. Unknown keys are still refused."""
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
        {"training": {"recency": "${SVC_RECIPE_A}"}},
        {"source": {"type": "${SVC_RECIPE_A}", "path": "ftp://${SVC_RECIPE_A}"}},
        {"training": {"cutoff": "${SVC_RECIPE_A}"}, "item_metadata": METADATA},
    ],
)
def test_a_server_accepts_any_unset_variable_of_training(tmp_path: Path, more: dict[str, Any]) -> None:
    """An unset variable may be anywhere in a block of training, and the hash includes its reference."""
    served = load(tmp_path, more, for_serving=True)
    assert "SVC_RECIPE_A" in str(served.unexpanded)
    assert (served.recipe.item_metadata is not None) == ("item_metadata" in more)


@pytest.mark.parametrize("more", [{"schema": "${SVC_RECIPE_A}"}, {"source": "${SVC_RECIPE_A}"}])
def test_a_variable_cannot_replace_a_required_block(tmp_path: Path, more: dict[str, Any]) -> None:
    """A variable in place of a required block is refused, also for serving."""
    assert "recipe.yaml" in refusal(tmp_path, more, for_serving=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"training": {"cutof": 3}}, ["training.cutof", "did you mean `cutoff`"]),
        ({"n_trials": 3}, ["it belongs at `training.n_trials`"]),
        ({"features": {"id_column": "i"}}, ["it belongs at `features.item.id_column` or `features.user.id_column`"]),
        ({"source": {"type": "csv", "path": "a", "delimeter": ";"}}, ["source.delimeter", "`delimiter`"]),
        ({"metric": "ndgc"}, [": metric:", "did you mean 'ndcg'", "found the text 'ndgc'"]),
        ({"training": {"metric": "ndgc"}}, [": training.metric:"]),
        ({"versioning": "sha"}, [": versioning:"]),
        ({"output": {"path": "a.svc", "versioning": "sha"}}, [": output.versioning:"]),
        ({"algorithms": ["ilas"]}, [": algorithms[0]", "IALSRecommender"]),
        ({"schema": {"user_column": 1, "item_column": "i"}}, ["schema.user_column", "must be text", "found 1"]),
        ({"training": {"n_trials": True}}, ["training.n_trials", "must be a whole number"]),
        ({"training": {"n_trials": 0}}, ["training.n_trials", "greater than or equal to 1"]),
        ({"training": []}, ["training:", "must be a mapping", "a list of 0"]),
        ({"metric": {"name": "ndcg"}}, [": metric:", "found a mapping"]),
        ({"schema": {"user_column": "u"}}, ["schema.item_column: is missing"]),
        (
            {"schema": {"user_column": "u", "item_column": "i"}, "split": {"scheme": "time_user"}},
            ["needs schema.time_column"],
        ),
        ({"name": "a/b"}, ["name:", "letters, digits"]),
        ({"name": "nаme"}, ["name:", "letters, digits", "(with CYRILLIC SMALL LETTER A)"]),
        ({"name": "\u202eeman"}, ["name:", "letters, digits", "RIGHT-TO-LEFT OVERRIDE", r"'\u202eeman'"]),
        ({"name": "ｍovies"}, ["name:", "(with FULLWIDTH LATIN SMALL LETTER M)"]),
        ({"оutput": {"path": "a.svc"}}, ["unknown key (with CYRILLIC SMALL LETTER O)", "did you mean `output`"]),
        ({"name": "x" * 65}, ["name:", "letters, digits"]),
        ({"features": {}}, ["features", "needs `item`, `user` or both"]),
        ({"output": {"path": "model.bin"}}, ["output.path", ".svc"]),
        ({"source": {"type": "csv", "path": "https://example.org/a.csv"}}, ["sha256 is required"]),
        (
            {"source": {"type": "sql", "query": "select 1", "dsn_env": "DATABASE_URL"}},
            ["source.dsn_env", "begins with SVC_RECIPE_"],
        ),
        ({"training": {"per_algorithm_trials": {"bprfm": 2}}}, ["per_algorithm_trials", "does not list"]),
        ({"training": {"algorithms": ["Blend", "IALS"]}}, ["training.algorithms", "needs two or more of"]),
        (
            {"training": {"algorithms": ["Blend", "IALS", "SLIM"], "per_algorithm_trials": {"blend": 2}}},
            ["per_algorithm_trials", "made of trials of the others"],
        ),
        ({"training": {"search_space": {"bprfm": {}}}}, ["search_space", "does not list"]),
        ({"training": {"search_space": {"ials": {"regg": [1, 2]}}}}, ["search_space", "did you mean reg?"]),
        ({"training": {"search_space": {"toppop": {"reg": [1, 2]}}}}, ["search_space", "searched parameters: none"]),
        ({"training": {"search_space": {"ials": {"reg": [2, 1]}}}}, ["IALSRecommender.reg takes [lowest, highest]"]),
        ({"training": {"search_space": {"ials": {"reg": [0.0, 1]}}}}, ["IALSRecommender.reg takes [lowest, highest]"]),
        ({"training": {"search_space": {"ials": {"n_components": [1.5, 2]}}}}, ["two whole numbers from 1 to 8192"]),
        ({"training": {"search_space": {"cosineknn": {"normalize": []}}}}, ["takes a list of some of True, False"]),
        ({"training": {"search_space": {"cosineknn": {"feature_weighting": ["none"]}}}}, ["NONE, TF_IDF, BM_25"]),
    ],
)
def test_errors_name_file_field_value_and_remedy(tmp_path: Path, more: dict[str, Any], words: list[str]) -> None:
    """Each message names the file, the field as written, the value and the allowed values."""
    message = refusal(tmp_path, more)
    assert str(tmp_path / "recipe.yaml") in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("number", [math.inf, math.nan])
@pytest.mark.parametrize(
    "block",
    [
        lambda number: {"training": {"timeout_seconds": number}},
        lambda number: {"cleansing": {"max_change": {"n_rows": number}}},
        lambda number: {"serving": {"diversity": number}},
        lambda number: {"training": {"search_space": {"ials": {"reg": [0.1, number]}}}},
    ],
)
def test_a_recipe_in_python_has_finite_numbers(block: Callable[[float], dict[str, Any]], number: float) -> None:
    """A mapping with infinity or NaN is refused. In files, the YAML reader refuses such numbers."""
    with pytest.raises(RecipeError):
        load_recipe({**BASE, **block(number)}, {}, settings=Settings())
    assert load_recipe({**BASE, **block(0.5)}, {}, settings=Settings())


def test_a_search_space_has_the_full_names_of_algorithms(tmp_path: Path) -> None:
    """Short names become full names, and whole numbers stay whole. A search space changes the hash."""
    wanted = {"IALS": {"n_components": [64, 1024], "reg": [1.0e-4, 1.0], "mean_prior": [True]}}
    found = load(tmp_path, {"training": {"search_space": wanted}})
    assert found.recipe.training.search_space == {
        "IALSRecommender": {"n_components": (64, 1024), "reg": (1.0e-4, 1.0), "mean_prior": (True,)}
    }
    assert found.recipe_hash != load(tmp_path, {}).recipe_hash


@pytest.mark.parametrize(
    "training",
    [
        {"algorithms": ["TopPop", "CosineKNN"]},
        {"algorithms": ["TopPop", "IALS"], "per_algorithm_trials": {"IALS": 0}},
    ],
)
def test_features_need_the_algorithm_that_learns_from_them(tmp_path: Path, training: dict[str, Any]) -> None:
    """A recipe with features is refused unless the one algorithm that learns from them has a budget."""
    source = {"type": "csv", "path": "items.csv"}
    side = {"source": source, "id_column": "item_id", "columns": [{"name": "genre", "kind": "categorical"}]}
    with pytest.raises(RecipeError, match=r"IALSRecommender alone: list it in training\.algorithms"):
        load(tmp_path, {"training": training, "features": {"item": side}})


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    """The error has one line for each problem of a recipe."""
    message = refusal(tmp_path, {"training": {"cutof": 3, "n_trials": "many"}, "nmae": "x"})
    assert message.count("\n") == 3


@pytest.mark.parametrize(
    ("text", "word"), [("", "empty"), ("# only this\n", "empty"), ("- a\n", "a mapping"), ("name: [", "line 1")]
)
def test_a_file_that_is_no_recipe_is_refused_in_one_line(tmp_path: Path, text: str, word: str) -> None:
    """An empty file, a list and broken YAML each give one clear line."""
    assert word in refusal(tmp_path, text)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The message says that there is no such file, or that the path is a folder."""
    with pytest.raises(RecipeError, match="no such file"):
        load_recipe(tmp_path / "none.yaml", {}, settings=Settings())
    with pytest.raises(RecipeError, match="folder"):
        load_recipe(tmp_path, {}, settings=Settings())


@pytest.mark.parametrize(
    "path",
    ["ftp://h/a.svc", "s3://user:pw@bucket/a.svc", "simplecache::s3://b/a.svc", "https://h/../a.svc", "memory://a.svc"],
)
def test_forbidden_addresses_are_security_errors(tmp_path: Path, path: str) -> None:
    """Unknown schemes, credentials, chained URIs and dot segments raise RecipeSecurityError without the password."""
    with pytest.raises(RecipeSecurityError) as caught:
        load(tmp_path, {"output": {"path": path}})
    assert "output.path" in caught.value.message
    assert "pw" not in caught.value.message


def test_output_must_lie_below_the_artifact_root(tmp_path: Path) -> None:
    """An output outside SVC_ARTIFACT_ROOT is refused, also through a symlink or `..`."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    settings = Settings(artifact_root=str(root))
    assert load(tmp_path, {"output": {"path": str(root / "a.svc")}}, settings=settings)
    for path in (root / "link" / "a.svc", root / ".." / "a.svc", outside / "a.svc"):
        with pytest.raises(RecipeSecurityError, match="SVC_ARTIFACT_ROOT"):
            load(tmp_path, {"output": {"path": str(path)}}, settings=settings)


def test_an_output_that_is_a_folder_is_refused_before_the_training(tmp_path: Path) -> None:
    """A server still loads the recipe, because the model may come later."""
    (tmp_path / "a.svc").mkdir()
    with pytest.raises(RecipeError, match=r"output.path: \S*a.svc is a folder; name a file"):
        load(tmp_path, {"output": {"path": "a.svc"}})
    assert load(tmp_path, {"output": {"path": "a.svc"}}, for_serving=True)


def test_a_value_from_a_variable_is_never_shown(tmp_path: Path) -> None:
    """Messages show the reference to a variable, not its value."""
    message = refusal(tmp_path, {"training": {"n_trials": "${SVC_RECIPE_N}"}}, variables={"SVC_RECIPE_N": "hunter2"})
    assert "${SVC_RECIPE_N}" in message
    assert "hunter2" not in message


def test_duplicate_algorithms_and_unused_options_give_warnings(tmp_path: Path) -> None:
    """A duplicate algorithm, or an option without effect, gives a warning and no error."""
    columns = [{"name": "year", "encoding": "numerical", "delimiter": ";"}]
    side = {"source": {"type": "csv", "path": "a.csv"}, "id_column": "i", "columns": columns}
    loaded = load(tmp_path, {"algorithms": ["ials", "IALSRecommender"], "features": {"item": side}})
    assert [warning.code for warning in loaded.warnings] == ["algorithm_duplicate", "option_unused"]
    assert loaded.recipe.training.algorithms == ("IALSRecommender",)
    assert loaded.recipe.features is not None
    assert loaded.recipe.features.item is not None
    assert loaded.recipe.features.item.columns[0].kind == "numerical"


def test_a_retired_key_gives_a_warning_and_keeps_the_hash(tmp_path: Path) -> None:
    """The recipe is the same without the key, also if the key is null or overridden."""
    plain = load(tmp_path, {"training": {"cutoff": 5}})
    for value in (False, None):
        loaded = load(tmp_path, {"training": {"cutoff": 5, "report_diversity": value}})
        assert [(one.code, one.field, one.value) for one in loaded.warnings] == [
            ("option_unused", "training.report_diversity", "report_diversity")
        ]
        assert (loaded.recipe_hash, loaded.recipe) == (plain.recipe_hash, plain.recipe)
    assert "has no effect any more: every report shows diversity" in loaded.warnings[0].message
    assert plain.warnings == ()
    assert "a mapping" in refusal(tmp_path, {"training": 3})


def test_the_error_for_an_unquoted_variable_in_braces_suggests_quotes(tmp_path: Path) -> None:
    """YAML reads the brace of an unquoted variable in `{...}` as a mapping. In quotes it is expanded."""
    text = "name: a\nsource: {type: csv, path: %s}\nschema: {user_column: u, item_column: i}\noutput: {path: a.svc}\n"
    assert "a variable needs quotes" in refusal(tmp_path, text % "${SVC_RECIPE_X}")
    assert "quotes" not in refusal(tmp_path, text % "[")
    loaded = load(tmp_path, text % '"${SVC_RECIPE_X}"', variables={"SVC_RECIPE_X": "x.csv"})
    assert loaded.recipe.source.options == {"path": "x.csv"}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rating_column", "svc learns choices: `weight_column: x` weighs a row"),
        ("score_column", "`cleansing.where: {x: {gte: 4}}` keeps the rows that mean a choice"),
        ("usr_column", "did you mean `user_column`?"),
        ("item_colum", "did you mean `item_column`?"),
        ("color_column", "unknown key; allowed: user_column"),
    ],
)
def test_the_suffix_of_column_keys_does_not_make_them_similar(tmp_path: Path, key: str, words: str) -> None:
    """The shared suffix `_column` is ignored when similar keys are suggested."""
    assert words in refusal(tmp_path, {"schema": {**BASE["schema"], key: "x"}})


def test_a_problem_of_two_blocks_begins_with_the_field(tmp_path: Path) -> None:
    """The message of a problem that spans several blocks begins with the field, without an empty location."""
    message = refusal(tmp_path, {"schema": {"user_column": "u", "item_column": "i"}, "split": {"scheme": "time_user"}})
    assert message.endswith("recipe.yaml: split.scheme time_user needs schema.time_column")


def test_detours_in_paths_are_removed_unless_a_symlink_is_involved(tmp_path: Path) -> None:
    """`recipes/../artifacts` becomes `artifacts`. Behind a symlink, `..` leads elsewhere and is kept."""
    for name in ("recipes", "elsewhere/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    output = {"output": {"path": "../artifacts/a.svc"}}
    assert load(tmp_path / "recipes", output).output_uri == str(tmp_path / "artifacts" / "a.svc")
    assert load(tmp_path / "link", output).output_uri == str(tmp_path / "link" / "../artifacts/a.svc")


@pytest.mark.parametrize("key", SHORTHAND)
def test_shorthand_moves_into_its_block(key: str) -> None:
    """The block keeps its other keys, and the result names the shorthand key."""
    block = SHORTHAND[key]
    tree, used = normalize({key: "value", block: {"other": 1}})
    assert tree == {block: {"other": 1, key: "value"}}
    assert used == {key}


def test_the_input_is_not_changed() -> None:
    """Messages show the recipe as written, so the input must stay unchanged."""
    column = {"name": "genre", "encoding": "categorical"}
    original: dict[str, Any] = {"metric": "map", "features": {"item": {"columns": [column]}}}
    tree, _ = normalize(original)
    assert original == {
        "metric": "map",
        "features": {"item": {"columns": [{"name": "genre", "encoding": "categorical"}]}},
    }
    assert tree["features"]["item"]["columns"] == [{"name": "genre", "kind": "categorical"}]


def test_a_column_with_kind_and_encoding_is_an_error() -> None:
    """The error names the column."""
    column = {"name": "genre", "encoding": "categorical", "kind": "categorical"}
    with pytest.raises(RecipeError, match=r"features\.user\.columns\[0\].*keep one"):
        normalize({"features": {"user": {"columns": [column]}}})


@pytest.mark.parametrize("block", [3, "text", ["list"]])
def test_a_block_of_the_wrong_type_is_not_changed(block: object) -> None:
    """The schema reports the wrong type later, with a better message."""
    assert normalize({"metric": "map", "training": block})[0] == {"metric": "map", "training": block}
