"""Fetch the interactions and feature tables of a recipe, clean the interactions and encode the features."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from svc import events, logs
from svc.asking.item_tables import read_item_table
from svc.errors import MinDataViolation
from svc.model.features import FEATURE_VERSION, FeatureState
from svc.progress import Progress
from svc.recipe.filter_tree import TEXT, either
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import Cleansing, Recipe
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
from svc.training.data.doubts import column_hints, count_events, doubts, feature_doubts
from svc.training.data.features import FittedSide, SideName, fit_side
from svc.training.data.id_doubts import id_doubts
from svc.training.data.interactions import Interactions, from_rows
from svc.training.data.metadata_doubts import metadata_doubts
from svc.training.data.times import MANY
from svc.training.data.user_sample import UserSample, draw_users
from svc.training.data.where import fetch_kept, without_users

_MODEL_NEEDS = {"rows": 1, "users": 1, "items": 2}
"""The least numbers of rows, users and items with which any model can be trained."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """All data of a training.

    - `n_fetched` is the number of rows before cleansing.
    - `sides` has the encoded features of the users and of the items, if the recipe declares them.
    - `sample` has the users to train models on, or None to train on all users.
    """

    interactions: Interactions
    n_fetched: int
    sides: Mapping[SideName, FittedSide]
    sample: UserSample | None = None

    @property
    def trained(self) -> Interactions:
        """Return the interactions to train models on, which are those of the sampled users if there is a sample."""
        return self.interactions if self.sample is None else self.sample.interactions

    @property
    def feature_state(self) -> FeatureState | None:
        if not self.sides:
            return None
        encoders = {side: fitted.encoder for side, fitted in self.sides.items()}
        return FeatureState(FEATURE_VERSION, encoders.get("user"), encoders.get("item"))


def load(loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str], progress: Progress) -> TrainingData:
    """Fetch and clean all data of the recipe, and log events about dropped rows and suspicious data.

    `variables` are passed to the sources. Raise DataSourceError if a table cannot be fetched, RecipeError or
    ConfigError if a source cannot be used, and a TrainingError if the data cannot be used.
    """
    progress.phase("reading data")
    logs.emit(events.FETCHING_DATA)
    recipe = loaded.recipe
    context = interaction_context(loaded, settings, variables, progress)
    source = build_source(recipe.source, context)
    # Before the fetch, which may take minutes.
    for hint in column_hints(loaded, context):
        logs.emit(events.RECIPE_WARNING, **hint._asdict())
    forgotten = forgotten_users(loaded, settings, variables)
    rows = fetch_kept(source, recipe.cleansing.where, recipe.cleansing.hide)
    started_ns = time.time_ns()  # after the fetch: it may take minutes and return rows written meanwhile
    n_fetched = len(rows.frame) + (rows.n_dropped or 0)
    logs.emit(events.DATA_FETCHED, n_rows=n_fetched)
    n_before = len(rows.frame)
    rows = without_users(rows, recipe.schema_.user_column, forgotten)
    counts = {"forgotten": n_before - len(rows.frame)} if recipe.cleansing.forget is not None else {}
    progress.phase("cleansing")
    interactions = from_rows(rows, recipe, started_ns=started_ns)
    for doubt in doubts(rows, interactions, recipe):
        logs.emit(events.RECIPE_WARNING, **doubt._asdict())
    for side, name in (("user", recipe.schema_.user_column), ("item", recipe.schema_.item_column)):
        for of_ids in id_doubts(rows.frame[name], side, recipe.source.type, are_rows=True):
            of_ids.log()
    n_kept = len(rows.frame)
    # The table need not be in memory while features are encoded.
    del rows
    for reason, count in interactions.dropped.items():
        example = {"detail": interactions.reasons[reason]} if reason in interactions.reasons else {}
        if reason == "unlisted_events":
            listed = recipe.cleansing.event_weights or {}
            example = {"detail": count_events({e: n for e, n in interactions.events.items() if e not in listed})}
        logs.emit(events.DATA_LOST_ROWS, reason=reason, count=count, **example)
    if interactions.future is not None:
        logs.emit(events.FUTURE_TIMES, count=interactions.future.count, detail=interactions.future.detail)
    if interactions.n_unusable > MANY * n_kept:
        why = "; ".join(interactions.reasons.values())
        logs.emit(events.MANY_ROWS_DROPPED, count=interactions.n_unusable, n_rows=n_kept, detail=why)
    n_rows, drop_count = len(interactions), interactions.drop_count
    logs.emit(events.DATA_CLEANSED, n_rows=n_rows, drop_count=drop_count, **interactions.filter_counts, **counts)
    # After the events above, which say why rows were lost.
    check_thresholds(interactions, recipe.cleansing)
    for doubt in metadata_doubts(loaded, settings, variables, interactions.item_ids):
        logs.emit(events.RECIPE_WARNING, **doubt._asdict())
    sides = _sides(loaded, settings, variables, interactions, progress, gone=forgotten)
    sample = draw_sample(loaded, interactions)
    if sample is not None:
        n_rows = len(sample.interactions)
        logs.emit(events.USERS_SAMPLED, n_users=len(interactions.user_ids), n_sampled=len(sample.rows), n_rows=n_rows)
    return TrainingData(interactions, n_fetched, sides, sample)


def draw_sample(loaded: LoadedRecipe, interactions: Interactions) -> UserSample | None:
    """Return the users to train models on, or None for all."""
    training = loaded.recipe.training
    wanted = training.sample_users
    return None if wanted is None else draw_users(interactions, wanted, training.seed)


def _filtered_columns(recipe: Recipe) -> dict[str, bool]:
    """Return the columns that `cleansing.where` and `cleansing.hide` name, and whether each is compared with text."""
    wanted = either(recipe.cleansing.hide, recipe.cleansing.where)
    if wanted is None:
        return {}
    return {name: kind == TEXT and name in wanted.compared for name, kind in wanted.kinds.items()}


def interaction_context(
    loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str], progress: Progress | None = None
) -> SourceContext:
    """Return the context for the source of interactions, which says which columns to read and which of them as text.

    Times are read even if the training does not use them, so that mistakes in them are found early.
    """
    schema, filtered = loaded.recipe.schema_, _filtered_columns(loaded.recipe)
    ids = (schema.user_column, schema.item_column)
    optional = (*schema.time_columns, schema.weight_column, schema.event_column)
    # A dict keeps the order. Sources take the first two columns for those of users and items.
    columns = dict.fromkeys([*ids, *(name for name in optional if name is not None), *filtered])
    texts = {*ids, schema.event_column} if schema.event_column is not None else {*ids}
    if schema.time_format is not None or len(schema.time_columns) > 1:  # as a number, 01.02 or 0830 would lose zeros
        texts.update(schema.time_columns)
    # Only the csv reader guesses types. It would read 007 as 7 in a filter column that is compared with text.
    if loaded.recipe.source.type == "csv":
        numeric = {*schema.time_columns, schema.weight_column}
        texts |= {name for name, is_text in filtered.items() if is_text and name not in numeric}
    heard = None if progress is None else progress.rows
    return SourceContext(loaded.base_dir, settings, tuple(columns), frozenset(texts), "interactions", variables, heard)


def feature_context(loaded: LoadedRecipe, side: Any, settings: Settings, variables: Mapping[str, str]) -> SourceContext:
    """Return the context for the source of a feature table, which says which columns to read.

    All columns except numbers and vectors are read as text. A multi_label column may hold lists, but not in csv.
    """
    others = {"numerical", "vector"} if side.source.type == "csv" else {"numerical", "vector", "multi_label"}
    columns = dict.fromkeys((side.id_column, *(column.name for column in side.columns)))
    text = {side.id_column, *(column.name for column in side.columns if column.kind not in others)}
    return SourceContext(loaded.base_dir, settings, tuple(columns), frozenset(text), "features", variables, None)


def forgotten_users(loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str]) -> frozenset[str]:
    """Return the users of `cleansing.forget`, whose rows no training may read. Raises DataSourceError."""
    declared = loaded.recipe.cleansing.forget
    if declared is None:
        return frozenset()
    columns = (declared.id_column,)
    context = SourceContext.for_served_table(loaded.base_dir, settings, variables, declared.id_column, columns)
    table = read_item_table(declared.source, context, columns, "the list of forgotten users")
    return frozenset(text for text in table.texts if text)


def _sides(
    loaded: LoadedRecipe,
    settings: Settings,
    variables: Mapping[str, str],
    interactions: Interactions,
    progress: Progress,
    *,
    gone: frozenset[str],
) -> dict[SideName, FittedSide]:
    block = loaded.recipe.features
    sides: dict[SideName, FittedSide] = {}
    if block is None:
        return sides
    progress.phase("encoding features")
    ids_of: dict[SideName, list[str]] = {"user": interactions.user_ids, "item": interactions.item_ids}
    for name, ids in ids_of.items():
        if (side := getattr(block, name)) is not None:
            frame = build_source(side.source, feature_context(loaded, side, settings, variables)).fetch()
            if name == "user" and gone:
                # The encoder is fitted on all rows of the table, so its vocabulary would have their labels.
                frame = frame[~frame[side.id_column].isin(gone)]
            for of_ids in id_doubts(frame[side.id_column], name, side.source.type, are_rows=False):
                of_ids.log()
            for doubt in feature_doubts(frame, side.columns, f"features.{name}.columns"):
                logs.emit(events.RECIPE_WARNING, **doubt._asdict())
            sides[name] = fit_side(frame, side, name, ids, settings)
    return sides


def check_thresholds(interactions: Interactions, cleansing: Cleansing) -> None:
    """Raise MinDataViolation if there are fewer rows, users or items than `cleansing.min_*`.

    One row, one user and two items are required in any case.
    """
    counts = interactions.counts
    least: dict[str, int] = {}
    short = []
    for counted, model_needs in _MODEL_NEEDS.items():
        minimum = getattr(cleansing, f"min_{counted}") or model_needs
        least[f"min_{counted}"] = minimum
        # A recipe may ask for less than any model needs.
        if counts[f"n_{counted}"] < max(minimum, model_needs):
            short.append(f"{counts[f'n_{counted}']} {counted} where {_at_least(counted, minimum, model_needs)}")
    if short:
        raise MinDataViolation(
            f"the cleaned data has {', '.join(short)}. {_what_to_do(interactions)}", fields={**counts, **least}
        )


def _at_least(counted: str, minimum: int, model_needs: int) -> str:
    if minimum >= model_needs:
        return f"at least {minimum} are needed"
    return f"cleansing.min_{counted} asks for {minimum}, but a model needs at least {model_needs}"


def _what_to_do(interactions: Interactions) -> str:
    """Return the causes of too little data, and advice.

    The advice is to correct `cleansing.where` if it left no usable row, and to mend rows if more rows were unusable
    than remain. Otherwise it is to provide more data or lower the minimum.
    """
    lost = [
        f"{count} dropped {'by cleansing.where' if reason == 'where' else f'as {reason}'}"
        for reason, count in interactions.dropped.items()
    ]
    cause = f"Of {len(interactions) + interactions.drop_count} rows {', '.join(lost)}. " if lost else ""
    cause += "".join(f"{reason[0].upper()}{reason[1:]}. " for reason in interactions.reasons.values())
    if not len(interactions) and interactions.filter_counts.get("dropped_by_where"):
        return f"{cause}Correct cleansing.where, which keeps no row that a model can be trained on."
    if interactions.dropped.get("min_interactions", 0) > len(interactions):
        return f"{cause}Lower cleansing.min_interactions, or provide more data."
    if interactions.n_unusable > len(interactions):
        return f"{cause}Mend these rows, or the columns and the unit that the recipe names."
    return (
        f"{cause}Provide more data, or lower cleansing.min_rows, min_users or min_items "
        "(a model needs at least one user and two items)."
    )
