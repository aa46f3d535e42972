"""Load a recipe file into a checked `Recipe`.

read → one spelling → expand variables → validate → check source options → check addresses → hash
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from os.path import isdir
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from svc.errors import RecipeError, RecipeSecurityError, RecipeUnreadable
from svc.local_paths import absolute
from svc.names import arm_name, nearest
from svc.recipe import fingerprint, paths, problems, variables
from svc.recipe.algorithms import canonical_name
from svc.recipe.schema import DEDUP_OF_EVENTS, Output, Recipe
from svc.recipe.source_options import BUILT_IN_OPTIONS, Located, SourceSpec
from svc.recipe.training_schema import default_algorithms, with_default_split
from svc.recipe.yaml_reader import MAX_BYTES, parse_yaml
from svc.settings import Settings

SHORTHAND = {"algorithms": "training", "metric": "training", "split": "training", "versioning": "output"}
CheckSource = Callable[[SourceSpec, str], None]
RETIRED: Mapping[tuple[str, str], str] = {("training", "report_diversity"): "every report shows diversity"}
"""Keys of earlier versions that do nothing any more, and what happens instead. Recipes with them stay valid."""
_SERVED = ("name", "output", "item_metadata", "serving")
_Loc = tuple[int | str, ...]


def normalize(tree: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a copy of `tree` with one spelling for each field, and the shorthand keys that `tree` used.

    A shorthand key moves to its block, such as `metric` to `training.metric`. The `encoding` of a feature column is
    renamed to `kind`. Raises RecipeError if a field has both spellings.
    """
    result = dict(tree)
    used = frozenset(SHORTHAND) & tree.keys()
    for key in sorted(used):
        block = SHORTHAND[key]
        inner = result.get(block)
        # Validation reports the block.
        if inner is not None and not isinstance(inner, dict):
            continue
        if key in (inner or {}):
            raise RecipeError(f"{key}: given both at the top level and under `{block}`; keep one")
        result[block] = {**(inner or {}), key: result.pop(key)}
    if isinstance(features := result.get("features"), dict):
        result["features"] = {side: _side(f"features.{side}", block) for side, block in features.items()}
    return result, used


def merge_trees(tree: Any, overrides: Any) -> Any:
    """Return a copy of `tree` with the values of `overrides`. Mappings are merged key by key."""
    if not isinstance(tree, dict) or not isinstance(overrides, dict):
        return overrides
    return {**tree, **{key: merge_trees(tree.get(key), value) for key, value in overrides.items()}}


def _side(where: str, block: Any) -> Any:
    if not isinstance(block, dict) or not isinstance(block.get("columns"), list):
        return block
    columns = [_column(f"{where}.columns[{index}]", column) for index, column in enumerate(block["columns"])]
    return {**block, "columns": columns}


def _column(where: str, column: Any) -> Any:
    if not isinstance(column, dict) or "encoding" not in column:
        return column
    if "kind" in column:
        raise RecipeError(f"{where}: gives both `kind` and `encoding`, which mean the same; keep one")
    return {"kind" if key == "encoding" else key: value for key, value in column.items()}


@dataclass(frozen=True, slots=True)
class RecipeWarning:
    """A probable mistake in a valid recipe.

    `field` is its path in the recipe. `value` is the algorithm, key or variable concerned. `problem` describes the
    mistake.
    """

    code: Literal["algorithm_duplicate", "option_unused", "query_not_expanded", "share_large", "variable_empty"]
    field: str
    value: str
    problem: str

    @property
    def message(self) -> str:
        return f"{self.field}: {self.problem}"


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe that passed every check that needs no data.

    `unexpanded` is the recipe before its variables are replaced, without defaults and without fields that do not change
    the model. Artifacts contain this form. `recipe_hash` (12 hex digits) is computed from it. Relative paths in the
    recipe start at the absolute folder `base_dir`. `has_split` is False if the recipe leaves the split to svc.
    """

    recipe: Recipe
    path: Path
    base_dir: Path
    recipe_hash: str
    unexpanded: Mapping[str, Any]
    warnings: tuple[RecipeWarning, ...]
    has_split: bool = True

    @property
    def output_uri(self) -> str:
        """Return the output as stores accept it: a URI, or an absolute local path."""
        location = self.recipe.output.location
        return location.uri if location.is_remote else str(location.resolve(self.base_dir))

    @property
    def served_log_folder(self) -> Path | None:
        """Return the absolute folder of the served log, or None without a log."""
        log = self.recipe.serving.served_log
        return None if log is None else log.location.resolve(self.base_dir)

    @property
    def arms(self) -> tuple[LoadedRecipe, ...]:
        """Return a recipe for each arm with an artifact of its own, with the rules of the arm, named `RECIPE@ARM`."""
        serving, arms = self.recipe.serving, list[LoadedRecipe]()
        for arm in serving.arms:
            if arm.path is not None:
                changed = {"name": arm_name(self.recipe.name, arm.name), "output": Output(path=arm.path)}
                # An arm is served like a recipe of its own, which has neither arms nor a log.
                own = arm.rules(serving).model_copy(update={"experiment": None, "served_log": None})
                arms.append(replace(self, recipe=self.recipe.model_copy(update={**changed, "serving": own})))
        return tuple(arms)


def load_recipe(
    source: Path | Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    settings: Settings,
    for_serving: bool = False,
    check_source: CheckSource | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> LoadedRecipe:
    """Check the recipe in a file or in a mapping, whose paths are relative to the working folder.

    Values of `overrides` replace those of the recipe. Mappings are merged. With `for_serving` only `name`, `output`,
    `item_metadata` and `serving` are expanded, and the other blocks may refer to variables that are not set.
    `check_source(spec, field path)` checks sources of plug-ins. Raises RecipeError, or RecipeSecurityError if the
    recipe is refused for security.
    """
    # Absolute, because the base folder is joined a second time to the files of a folder or a pattern.
    path, base_dir = (source, absolute(source).parent) if isinstance(source, Path) else (Path("recipe"), Path.cwd())
    loading = _Loading(path, base_dir, variables, settings, for_serving, check_source, overrides or {})
    try:
        return loading.run(_parse_file(source) if isinstance(source, Path) else dict(source))
    except RecipeError as error:
        # Of the same class, which decides the exit code and whether the refusal is one for security.
        raise type(error)(_add_prefix(error.message, str(path)), fields=error.fields) from None


def _add_prefix(message: str, where: str) -> str:
    lines = message.splitlines()
    if len(lines) < 2:
        return message if message.startswith(where) else f"{where}: {message}"
    return "\n".join([f"{where}: {len(lines)} problems", *(f"  {line}" for line in lines)])


@dataclass(frozen=True, slots=True)
class _Loading:
    path: Path
    base_dir: Path
    variables: Mapping[str, str]
    settings: Settings
    for_serving: bool
    check_source: CheckSource | None
    overrides: Mapping[str, Any]

    def run(self, written: dict[str, Any]) -> LoadedRecipe:
        tree, shorthand = normalize(written)
        # Both in one spelling, so that `metric` replaces a `training.metric` of the file.
        merged = merge_trees(tree, normalize(dict(self.overrides))[0])
        retired = [loc for loc in RETIRED if isinstance(block := merged.get(loc[0]), dict) and loc[1] in block]
        # Before validation, in which unknown keys are errors.
        merged = problems.without(merged, retired)
        tree = with_default_split(merged)
        recipe = self._validate(tree, self._expand(tree), shorthand)
        for where, spec in recipe.sources().items():
            if not self.for_serving or where.split(".")[0] in _SERVED:
                self._check_source(spec, where, problems.value_at(tree, tuple(where.split("."))))
        self._check_artifact(recipe.output, "output.path")
        for index, arm in enumerate(recipe.serving.arms):
            if arm.path is not None:
                self._check_artifact(Output(path=arm.path), f"serving.experiment.arms[{index}].path")
        if recipe.serving.served_log is not None:
            self._check_folder(recipe.serving.served_log, "serving.served_log.path")
        defaults: dict[tuple[str, ...], Any] = {("training", "algorithms"): default_algorithms(tree)}
        if recipe.cleansing.event_weights is not None:
            # With events another rule is the default, so leaving it out and writing it have one hash.
            defaults["cleansing", "dedup"] = DEDUP_OF_EVENTS
        canonical = fingerprint.strip_defaults(recipe, tree, defaults)
        return LoadedRecipe(
            recipe=recipe,
            path=self.path,
            base_dir=self.base_dir,
            recipe_hash=fingerprint.recipe_hash(canonical),
            unexpanded=canonical,
            warnings=(*_retired(retired), *_warnings(tree, recipe, self.variables)),
            # Of the recipe as written, before the default split was added.
            has_split=_has_split(merged),
        )

    def _expand(self, tree: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value if self.for_serving and key not in _SERVED else variables.expand(value, self.variables, key)
            for key, value in tree.items()
        }

    def _validate(self, tree: dict[str, Any], expanded: dict[str, Any], shorthand: frozenset[str]) -> Recipe:
        """Return the recipe in `expanded`. Raises RecipeError, which shows the values of `tree`.

        A server does not expand the blocks that only training uses, so values with a variable may be invalid there. If
        there are no other errors, validation is repeated without these values.
        """
        try:
            return Recipe.model_validate(expanded)
        except ValidationError as error:
            unset = [self._unexpanded_part(tree, item["loc"]) for item in error.errors()]
            rest = problems.without(expanded, list(filter(None, unset)))
            # Each repetition has fewer values, so this ends.
            if all(unset) and rest != expanded:
                return self._validate(tree, rest, shorthand)
            show = functools.partial(_show, shorthand)
            raise RecipeError(problems.explain(error, tree, Recipe, show)) from None

    def _unexpanded_part(self, tree: dict[str, Any], loc: _Loc) -> _Loc:
        """Return the part of `loc` that leads to a value with an unexpanded variable, or () if there is none.

        The rest of `loc` names a type of a union.
        """
        if not self.for_serving or not loc or loc[0] in _SERVED:
            return ()
        prefixes = [loc[:end] for end in range(1, len(loc) + 1)]
        to_text = next((prefix for prefix in prefixes if isinstance(problems.value_at(tree, prefix), str)), loc)
        return to_text if variables.contains_reference(problems.value_at(tree, to_text)) else ()

    def _check_source(self, spec: SourceSpec, where: str, raw: Any) -> None:
        options = BUILT_IN_OPTIONS.get(spec.type)
        if options is None:
            # Servers leave this out: a source of a plug-in is checked when it is read.
            if self.check_source is not None:
                self.check_source(spec, where)
            return
        checked = problems.checked_options(spec, options, where, raw)
        if isinstance(checked, Located):
            _location(checked, f"{where}.path")

    def _check_artifact(self, output: Located, where: str) -> None:
        location = _location(output, where)
        # Addresses of objects may end in a query.
        name = location.uri.split("?")[0] if location.path is None else location.path.name
        if not name.endswith(".svc") or name == ".svc":
            raise RecipeError(f"{where}: must end in .svc, such as artifacts/movies.svc")
        if location.path is None:
            return
        file = location.resolve(self.base_dir)
        if not self.for_serving and isdir(file):  # noqa: PTH112 - `Path.is_dir` raises PermissionError
            raise RecipeError(f"{where}: {file} is a folder; name a file")
        self._require_below_root(file, where)

    def _check_folder(self, block: Located, where: str) -> None:
        location = _location(block, where)
        if location.is_remote:
            raise RecipeError(f"{where}: must be a local folder, such as served; copy its closed files elsewhere")
        self._require_below_root(location.resolve(self.base_dir), where)

    def _require_below_root(self, file: Path, where: str) -> None:
        if self.settings.artifact_root is not None:
            try:
                paths.require_below(file, Path(self.settings.artifact_root))
            except RecipeSecurityError as error:
                raise RecipeSecurityError(f"{where}: {error.message}") from None


def _has_split(tree: Mapping[str, Any]) -> bool:
    training = tree.get("training")
    return isinstance(training, Mapping) and bool(training.get("split"))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more than permitted shows that a file is too large, without reading all of it.
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise RecipeUnreadable(f"there is no such file{_meant(path)}") from None
    except IsADirectoryError:
        raise RecipeUnreadable("is a folder; name the recipe file in it") from None
    except OSError as error:
        raise RecipeUnreadable(f"cannot be read: {error.strerror}") from None


def _meant(path: Path) -> str:
    """Return the question whether a recipe of a similar name is meant, beside a missing file or in `recipes`."""
    folders = (path.parent / "recipes", path.parent)  # of one name the nearer file
    # By stem, because `r.yml` is often asked for beside `r.yaml`.
    recipes = {file.stem: file for folder in folders for file in sorted(folder.glob("*.y*ml"))}
    near = nearest(path.stem, recipes)
    return "" if near is None else f"; did you mean {recipes[near]}?"


def _parse_file(path: Path) -> dict[str, Any]:
    """Return the tree in a recipe file. Raises RecipeError for a table, an artifact or anything but a mapping."""
    text = _read(path)
    if kind := problems.TYPES_OF_TABLES.get(path.suffix.lower()):
        source = f"source: {{type: {kind}, path: {path.name}}}"
        raise RecipeError(f"is a table of data; write a recipe, a YAML file, that names it as {source}")
    if path.suffix == ".svc":
        raise RecipeError("is an artifact, which a training wrote; name the recipe, a YAML file")
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise RecipeError(f"a recipe is a mapping with keys such as `name` and `source`; found {problems.shown(tree)}")
    return tree


def _show(shorthand: frozenset[str], loc: _Loc) -> str:
    """Return the field path as the file writes it: `metric` if the file uses this shorthand for `training.metric`."""
    if len(loc) > 1 and loc[1] in shorthand and SHORTHAND[str(loc[1])] == loc[0]:
        loc = loc[1:]
    return problems.field_path(loc)


def _location(block: Located, where: str) -> paths.Location:
    try:
        return block.location
    except RecipeSecurityError as error:
        raise RecipeSecurityError(f"{where}: {error.message}") from None


def _retired(places: list[tuple[str, str]]) -> Iterator[RecipeWarning]:
    for block, key in places:
        yield RecipeWarning("option_unused", f"{block}.{key}", key, f"has no effect any more: {RETIRED[block, key]}")


_LARGE_CHANGE = 5
"""From this share on, `cleansing.max_change` is probably meant in percent: 5 permits six times the rows."""


def _warnings(tree: dict[str, Any], recipe: Recipe, values: Mapping[str, str]) -> Iterator[RecipeWarning]:
    listed = problems.value_at(tree, ("training", "algorithms"))
    listed = listed if isinstance(listed, list) else []
    # From the tree before expansion, because warnings are logged and values of variables are not.
    names = [canonical_name(name) for name in listed if not variables.has_reference(name)]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield RecipeWarning("algorithm_duplicate", "training.algorithms", name, f"{name} is listed twice")
    for side in ("item", "user"):
        for index, column in enumerate(getattr(getattr(recipe.features, side, None), "columns", ())):
            unused = {"categorical": ("delimiter",), "numerical": ("delimiter", "min_frequency")}.get(column.kind, ())
            for key in sorted(column.model_fields_set.intersection(unused)):
                where = f"features.{side}.columns[{index}].{key}"
                yield RecipeWarning("option_unused", where, key, f"has no effect on a {column.kind} column")
    for name, share in () if recipe.cleansing.max_change is None else recipe.cleansing.max_change:
        if share is not None and share >= _LARGE_CHANGE:
            problem = f"{share:g} permits a change by {share:.0%}; write {share / 100:g} for {share:g}%"
            yield RecipeWarning("share_large", f"cleansing.max_change.{name}", name, problem)
    for where in variables.unexpanded_references(tree):
        problem = "variables are not expanded here; the text is sent as it stands"
        yield RecipeWarning("query_not_expanded", where, where.rpartition(".")[2], problem)
    for where, name in variables.references(tree):
        if values.get(name) == "":
            problem = f"{name} is empty; give it a value, or take it out of the recipe"
            yield RecipeWarning("variable_empty", where, name, problem)
