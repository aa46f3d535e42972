"""Training from Python: `svc.train`."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

from svc import events, lacks, logs
from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import SHA8, open_store, read_verified
from svc.asking.item_lists import new_items_of_recipe
from svc.env_file import environment
from svc.errors import RecipeError, UsageError
from svc.export.run import OpenedArtifact, open_artifact
from svc.library.answers import FramedOffer
from svc.library.evaluation import Evaluation, evaluate
from svc.library.items import ItemTable, item_table, items_of_recipe, new_items_of, require_items
from svc.library.recommender import Keys, Recommender, id_column_of, keys_text
from svc.library.tables import (
    as_arrow,
    as_table,
    check_id_type,
    check_interactions,
    column_names,
    facts_table,
    is_table,
    require,
)
from svc.model.ids import IdTable
from svc.model.ranking.new_items import ids_with
from svc.progress import progress_here
from svc.recipe.filter_tree import FilterProblem, parse_row_filter
from svc.recipe.load import RETIRED, SHORTHAND, LoadedRecipe, load_recipe, merge_trees
from svc.recipe.problems import advice
from svc.recipe.schema import Output, Recipe
from svc.recipe.serving_schema import NEW_ITEMS_SHARE
from svc.recipe.training_schema import Split, Training
from svc.recipe.variables import recipe_variables
from svc.settings import Settings
from svc.sources.base import check_spec
from svc.sources.in_memory import offer_table
from svc.training.run import TrainOptions, train_or_raise

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from svc.library.controls import RecommendControls

OWN_KID = "own"
"""The kid of the random key that signs the temporary artifact of a training without `output`."""
USER, ITEM = "user_id", "item_id"
_TIMES = re.compile(
    "ts|when|date|(date_?)?time|(event_?)?time_?stamp|unix_?time|(created|ordered|bought)_at", re.IGNORECASE
)
"""Names of columns that probably have the times of the rows."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainResult:
    """The result of `svc.train`.

    If `promotion.mode: enforce` refuses the model, the artifact is written anyway, and `promoted` is False.

    Attributes:
        model_version: `sha256:` and the digest of the artifact.
        best_class: The algorithm that won.
        best_score: The `training.metric` of the model on the validation split.
        promoted: Whether `output.path` now leads to this model. False without `output`.
        header: The header of the artifact.
        recommender: The model, with `items` or the recipe's `item_metadata`, and the rules of the recipe's
            `serving`, except `availability`.
    """

    model_version: str
    best_class: str
    best_score: float
    promoted: bool
    header: Mapping[str, Any]
    _written: str | None
    _opened: Callable[[], Recommender]

    def __getattr__(self, name: str) -> Any:
        raise lacks("a TrainResult", name)

    def __repr__(self) -> str:
        score = f"{self.header['metric']}@{self.header['cutoff']} {self.best_score:.4g} on held-out rows"
        where = (
            "not written" if self._written is None else f"{'live' if self.promoted else 'not live'}: {self._written}"
        )
        return f"<svc.TrainResult: trained {self.best_class}, {score}; {where}>"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"algorithm": self.best_class, "score": self.best_score}
        facts["metric"] = f"{self.header['metric']}@{self.header['cutoff']}, on held-out rows"
        facts["version"] = self.model_version
        if self._written is not None:
            facts |= {"artifact": self._written, "promoted": self.promoted}
        return facts_table("svc.TrainResult", facts)

    @property
    def artifact(self) -> str:
        """Path or URI of the written artifact. Raises UsageError if nothing was written."""
        if self._written is None:
            raise UsageError(
                "nothing was written: use `.recommender`, or train with output={'path': 'models/shop.svc'} and keys"
            )
        return self._written

    @cached_property
    def recommender(self) -> Recommender:
        return self._opened()

    def recommend(self, user_id: str | None = None, **controls: Unpack[RecommendControls]) -> pd.DataFrame:
        """Return the best items for one user: `recommender.recommend`."""
        return self.recommender.recommend(user_id, **controls)

    def evaluate(self, interactions: Any, **options: Any) -> Evaluation:
        """Judge the model by `svc.evaluate`. The id columns are those of the training, unless `options` name others."""
        schema = self.header["recipe"]["schema"]
        columns = {name: schema[name] for name in ("user_column", "item_column")}
        return evaluate(self.recommender, interactions, **(columns | options))


def _open(artifact: str, settings: Settings) -> OpenedArtifact:
    return open_artifact(artifact, parse_signing_keys(settings.signing_keys), settings)


def _recommender(
    recipe: LoadedRecipe,
    settings: Settings,
    variables: Mapping[str, str],
    artifact: OpenedArtifact | str,
    *,
    items: Any,
    new_items: Any,
    shares: tuple[float | None, float],
) -> Recommender:
    """Return a recommender with the caller's tables or, where these are None, with those of the recipe.

    `artifact` is the trained model, or the location of its artifact. Raises UsageError if the caller's table does not
    fit the recipe's rules.
    """
    opened = _open(artifact, settings) if isinstance(artifact, str) else artifact
    if new_items is None:
        new = new_items_of_recipe(recipe, opened.model, settings, variables)
    else:
        new = new_items_of(new_items, opened, *shares)
    ids = ids_with(opened.model.item_ids, new)
    if items is None:
        table = items_of_recipe(recipe, settings, ids, variables)
    else:
        table = item_table(items, ids, id_column_of(opened))
        _check_rules(recipe, table)
    fields: dict[str, Any] = {"new_items": new, "filters": table.filters, "items": table}
    return Recommender(opened, FramedOffer.read(recipe, opened.model, settings, variables, **fields))


def _check_rules(recipe: LoadedRecipe, table: ItemTable) -> None:
    """Raise UsageError if the caller's table does not fit a rule of the recipe.

    A column of labels has the declared kind, because a table may have no cell of several labels.
    """
    declared = recipe.recipe.filter_kinds
    kinds = {
        name: kind if "numerical" in (kind, declared.get(name)) else declared.get(name, kind)
        for name, kind in table.filters.kinds.items()
    }
    try:
        recipe.recipe.serving.check_fields(kinds)
    except ValueError as error:
        raise UsageError(
            f"items: the table does not fit the recipe's rules: {error}; give each column as "
            "item_metadata.filter_fields declares it: labels as text, and numbers as numbers"
        ) from None


def train(
    data: Any,
    user: str = USER,
    item: str = ITEM,
    time: str | Sequence[str] | None = None,
    weight: str | None = None,
    *,
    time_unit: str | None = None,
    items: Any = None,
    new_items: Any = None,
    new_items_share: float | None = NEW_ITEMS_SHARE,
    new_items_min_share: float = 0.0,
    keys: Keys = None,
    run_id: str | None = None,
    variables: Mapping[str, str] | None = None,
    report: str | Path | None = None,
    progress: bool | None = None,
    refit: bool = False,
    cold: bool = False,
    **training: Any,
) -> TrainResult:
    """Train on a DataFrame or by a recipe, as the command `svc train` does.

    Without `output`, which a YAML file must have, no artifact is written and no key is needed.

    Args:
        data: A DataFrame (pandas, polars, pyarrow, DuckDB, or input of `pyarrow.table`) with one row per interaction.
            Or a recipe, as the path of a YAML file or as a dict of the same form.
        user: The column of user ids, which are text.
        item: The column of item ids.
        time: The column of times, or a list of the columns of dates and of clock times. If given, the latest items of
            each user are held out, unless `split` says otherwise.
        weight: The column of the weights of interactions.
        time_unit: The unit of a numeric time column: "s", "ms", "us" or "ns".
        items: As in `svc.load`. None: the recipe's `item_metadata`.
        new_items: As in `svc.load`. None: the list, read once, and the shares of the recipe's `serving.new_items`.
        new_items_share: As in `svc.load`.
        new_items_min_share: As in `svc.load`.
        keys: As in `svc.load`. The first key signs the artifact at `output`.
        run_id: Id of the run. The same id resumes its search in `training.storage_path`.
        variables: `SVC_RECIPE_*` variables. They replace environment variables of the same names.
        report: The path of an HTML report to write (extra `report`).
        progress: Whether to show progress bars instead of log lines. None: in notebooks and on terminals.
        refit: Reuse the parameters of the live artifact at `output` instead of a search.
        cold: With `refit`, start from random vectors instead of the vectors of the live model.
        **training: Keys of the recipe or of its `training` block, such as `n_trials`. They replace the keys of a
            recipe. Mappings are merged, so `output={"path": "test.svc"}` does not change `output.versioning`. In
            `features.item` and `features.user`, `data` may be a DataFrame in place of a `source`.

    Raises:
        svc.errors.SvcError: The training failed. The class of the error tells why.
    """
    is_path = isinstance(data, str | os.PathLike)
    environ = environment(Path(data).parent if is_path else None)
    settings = Settings.from_env(environ)
    logs.configure_for_library()
    given = recipe_variables(environ, [f"{name}={value}" for name, value in (variables or {}).items()], "variables")
    columns: _Columns = {"user": user, "item": item, "time": time, "weight": weight}
    for argument, column in columns.items():
        if is_table(column):
            raise UsageError(f"{argument}: name a column of data; svc.evaluate(result, table) judges by another table")
    shown = progress_here(progress)
    with ExitStack() as stack:
        stack.callback(shown.close)
        overrides = _with_feature_tables(in_place(training), stack)
        recipe = _recipe(data, columns, time_unit, overrides, stack)
        is_written = isinstance(recipe, Path) or "output" in recipe or "output" in overrides
        if is_written:
            loaded = _load(recipe, given, settings, overrides)
        elif refit:
            raise UsageError("refit: takes the parameters of the live artifact, and without `output` there is none")
        else:
            folder = stack.enter_context(TemporaryDirectory(prefix="svc-"))
            settings = replace(settings, artifact_root=None)  # the temporary folder is outside SVC_ARTIFACT_ROOT
            loaded = _without_output(_load(recipe, given, settings, overrides), Path(folder))
        if items is not None:  # before the training, whose model would be lost without `output`
            items = as_table(items, "items", "a row for each item")
            id_column = loaded.recipe.schema_.item_column
            _check_rules(loaded, item_table(items, IdTable.from_ids([]), id_column))
            if is_table(data):
                chosen = as_arrow(as_table(data, "data"), [id_column], "data").column(id_column).unique()
                require_items(items, id_column, chosen.drop_null().to_pylist())
        signing = keys_text(keys, settings) if is_written or keys is not None else f"{OWN_KID}:{secrets.token_hex(32)}"
        # Both variables together are an error, and the keys are in the first one now.
        settings = replace(settings, signing_keys=signing, signing_keys_file=None)
        options = TrainOptions(
            run_id=run_id or secrets.token_hex(6),
            refit=refit,
            cold=cold,
            variables=given,
            # A skipped run would have no model to return.
            fail_on_busy=True,
            report=None if report is None else Path(report),
        )
        artifact = train_or_raise(loaded, options, settings, shown)
        # The temporary folder is deleted at the end of the block.
        model = artifact if is_written else _open(artifact, settings)
        tables = {"items": items, "new_items": new_items, "shares": (new_items_share, new_items_min_share)}
        # Made on first use, because a program that only writes artifacts needs no tables.
        recommender = partial(_recommender, loaded, settings, given, model, **tables)
        return _result(loaded, artifact, settings, recommender, is_written=is_written)


_Columns = Mapping[str, str | Sequence[str] | None]


def _recipe(
    data: Any, columns: _Columns, time_unit: str | None, overrides: Mapping[str, Any], stack: ExitStack
) -> Path | Mapping[str, Any]:
    """Return the recipe in `data`. A table becomes the source of a recipe, and can be read until `stack` closes."""
    if is_table(data):
        return _recipe_of_table(data, columns, time_unit, overrides, stack)
    named = [name for name, default in _DEFAULT_COLUMNS.items() if columns[name] != default]
    if isinstance(data, Mapping) and not data and "source" not in overrides:
        raise UsageError(
            "data: an empty dict is neither a table nor a recipe; give columns, such as {'user_id': [...]}"
        )
    if isinstance(data, Mapping | str | os.PathLike):
        if named:
            raise UsageError(f"{named[0]}: names a column of a DataFrame; a recipe names its columns under `schema`")
        if time_unit is not None:
            raise UsageError("time_unit: is the unit of a DataFrame's time; a recipe has it as `schema.time_unit`")
        return data if isinstance(data, Mapping) else Path(data)
    made = "; pd.DataFrame(data) makes one of a list of dicts" if isinstance(data, list) else ""
    raise UsageError(
        f"data: give a DataFrame with one row per interaction, or a recipe (a path or a dict), not a "
        f"{type(data).__name__}{made}"
    )


_DEFAULT_COLUMNS: Mapping[str, str | None] = {"user": USER, "item": ITEM, "time": None, "weight": None}


def _recipe_of_table(
    data: Any, columns: _Columns, time_unit: str | None, overrides: Mapping[str, Any], stack: ExitStack
) -> Mapping[str, Any]:
    # Columns of a pivot table have a name of their own, that of the column that became the header.
    is_pivoted = any(name is not None for name in getattr(getattr(data, "columns", None), "names", ()))
    data = as_table(data, "data")
    names = column_names(data, "data")
    named = {argument: name if isinstance(name, str) else list(name) for argument, name in columns.items() if name}
    each = [(argument, name) for argument, value in named.items() for name in _names_in(value)]
    index = [str(name) for name in getattr(getattr(data, "index", None), "names", ()) if name is not None]
    for argument, name in each:
        if name not in names and index and (name in index or is_pivoted):
            reset = "give data.reset_index(), or data.stack().reset_index() of a pivot table"
            raise UsageError(f"{argument}: data has no column {name!r}, but the index {', '.join(index)}: {reset}")
        require({argument: name}, names, "data")
    further = [name for name in further_columns(overrides) if name in names]
    table = as_arrow(data, list(dict.fromkeys([*(name for _, name in each), *further])), "data")
    # Only if the caller says so, because a notebook hides the warning of dropped rows.
    drops_missing = (overrides.get("cleansing") or {}).get("drop_null_ids") is True
    check_interactions(table, dict(each[:2]), drop_missing=drops_missing)
    schema = {f"{argument}_column": name for argument, name in named.items()}
    schema |= {} if time_unit is None else {"time_unit": time_unit}
    if not {"time", "time_column"} & {*named, *(overrides.get("schema") or {})}:
        hint_at_times(names, table.column_names)
    return {"name": "dataframe", "schema": schema, "source": _source_of(table, stack)}


def _source_of(table: pa.Table, stack: ExitStack) -> dict[str, str]:
    """Return the source that reads the table. The trainings of this thread can read it until `stack` closes."""
    return {"type": "dataframe", "sha256": stack.enter_context(offer_table(table))}


def hint_at_times(names: Iterable[str], used: Container[str | None]) -> None:
    """Log a hint at the first of the columns `names` that is called like a time and not `used`."""
    # The whole name, because `timezone` or `lifetime` hold no times.
    like_time = next((name for name in names if _TIMES.fullmatch(name) and name not in used), None)
    if like_time:
        message = (
            f"the column {like_time!r} is not used: if it has the times of the rows, time={like_time!r} holds out the "
            "latest rows of each user, and tries algorithms that know the order"
        )
        logs.emit(events.RECIPE_WARNING, code="time_unused", field="time", message=message)


def _with_feature_tables(overrides: dict[str, Any], stack: ExitStack) -> dict[str, Any]:
    """Return keyword arguments with a source in place of each table at `features.item.data` and `features.user.data`.

    Raises UsageError for an unusable table.
    """
    sides = overrides.get("features")
    if not isinstance(sides, Mapping):
        return overrides
    sources: dict[str, Any] = {}
    for side, block in sides.items():
        if not isinstance(block, Mapping) or "data" not in block or "source" in block:
            continue
        what, id_column = f"features.{side}.data", block.get("id_column")
        data = as_table(block["data"], what, f"a row for each {side}")
        there = column_names(data, what)
        columns = [column.get("name") for column in block.get("columns") or () if isinstance(column, Mapping)]
        table = as_arrow(data, [name for name in dict.fromkeys([id_column, *columns]) if name in there], what)
        if id_column in there:
            check_id_type(table, id_column, f"features.{side}.id_column", what)
        more = {key: value for key, value in block.items() if key != "data"}
        sources[side] = {"source": _source_of(table, stack), **more}
    return {**overrides, "features": {**sides, **sources}}


def further_columns(overrides: Mapping[str, Any]) -> list[str]:
    """Return the columns that `schema` and `cleansing` in `overrides` name.

    They are read from the data in addition to the columns that arguments of `train` name.
    """
    schema = overrides.get("schema") or {}
    named = [name for key, value in schema.items() if key.endswith("_column") for name in _names_in(value)]
    cleansing = overrides.get("cleansing") or {}
    with suppress(FilterProblem):  # the recipe's own check describes the problem
        for key in ("hide", "where"):
            if (written := cleansing.get(key)) is not None:
                named += parse_row_filter(written).kinds
    return named


def _names_in(value: Any) -> list[str]:
    """Return the columns that a column's argument names: one, several or none."""
    return [name for name in (value if isinstance(value, list | tuple) else [value]) if isinstance(name, str)]


def _load(
    recipe: Path | Mapping[str, Any], variables: Mapping[str, str], settings: Settings, overrides: Mapping[str, Any]
) -> LoadedRecipe:
    if not isinstance(recipe, Path):
        name = str(merge_trees(dict(recipe), overrides).get("name", "recipe"))
        # A recipe needs an output to be valid. The artifact of a training without one goes to a temporary folder.
        recipe = {"output": {"path": f"{name}.svc"}, **recipe}
    return load_recipe(recipe, variables, settings=settings, check_source=check_spec, overrides=overrides)


def _without_output(loaded: LoadedRecipe, folder: Path) -> LoadedRecipe:
    """Return the recipe with its output in a temporary folder. The artifact still records the caller's recipe."""
    # `expires_after` stands in the header, so it is kept.
    output = Output(path=str(folder / "model.svc"), expires_after=loaded.recipe.output.expires_after)
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"output": output}))


def in_place(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a recipe tree, in which keys of the `training` block are inside it.

    Raises RecipeError for a name that is a key of neither a recipe nor its `training` block.
    """
    blocks = {field.alias or name for name, field in Recipe.model_fields.items()}
    tree: dict[str, Any] = {}
    for name, value in overrides.items():
        # Arguments of `svc.train` are flat, although `training` is a block of the recipe.
        if name in Training.model_fields or ("training", name) in RETIRED:
            tree.setdefault("training", {})[name] = value
        elif name not in blocks and name not in SHORTHAND:
            column = name.removesuffix("_column").removesuffix("_id")
            hint = f"did you mean {column}?" if column in _DEFAULT_COLUMNS else ""
            hint = next(filter(None, (hint, *(advice(name, value, model) for model in (Training, Recipe, Split)))), "")
            hint = hint or "the page on recipes lists the valid arguments"
            raise RecipeError(f"svc.train has no argument {name!r}; {hint}")
        elif isinstance(value, Mapping):
            tree[name] = {**tree.get(name, {}), **value}
        else:
            tree[name] = value
    return tree


def _result(
    recipe: LoadedRecipe,
    artifact: str,
    settings: Settings,
    recommender: Callable[[], Recommender],
    *,
    is_written: bool,
) -> TrainResult:
    blob, parsed = read_verified(artifact, parse_signing_keys(settings.signing_keys), settings)
    header, is_overwritten = parsed.header, recipe.recipe.output.versioning == "always_overwrite"
    # By the pointer itself, because `promotion` or a hold may have left it where it was.
    is_live = is_overwritten or open_store(recipe.output_uri, settings).live() == blob.sha256[:SHA8]
    return TrainResult(
        model_version=f"sha256:{blob.sha256}",
        best_class=str(header["best_class"]),
        best_score=float(header["best_score"]),
        promoted=is_written and is_live,
        header=header,
        _written=artifact if is_written else None,
        _opened=recommender,
    )
