"""Fetch and clean what a recipe names: interactions and feature tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from svc import events, logs
from svc.model.features import FEATURE_VERSION, FeatureState
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
from svc.training import interactions as cleaning
from svc.training.features import FittedSide, SideName, fit_side
from svc.training.interactions import Interactions
from svc.training.progress import Progress


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """Clean interactions, the rows fetched before cleansing, and the encoded sides of the `features` block."""

    interactions: Interactions
    n_fetched: int
    sides: Mapping[SideName, FittedSide]

    @property
    def feature_state(self) -> FeatureState | None:
        if not self.sides:
            return None
        encoders = {side: fitted.encoder for side, fitted in self.sides.items()}
        return FeatureState(FEATURE_VERSION, encoders.get("user"), encoders.get("item"))


def load(loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str], progress: Progress) -> TrainingData:
    """Fetch and clean all that the recipe trains on. Raises DataSourceError and the data's TrainingErrors."""
    progress.phase("reading data")
    logs.emit(events.FETCHING_DATA)
    recipe = loaded.recipe
    source = build_source(recipe.source, interaction_context(loaded, settings, variables, progress))
    frame = source.fetch()
    n_fetched = len(frame)
    logs.emit(events.DATA_FETCHED, n_rows=n_fetched)
    progress.phase("cleansing")
    found = cleaning.from_frame(frame, recipe.schema_, recipe.cleansing, with_times=_uses_time(loaded))
    del frame
    for reason, count in found.dropped.items():
        logs.emit(events.DATA_LOST_ROWS, reason=reason, count=count)
    logs.emit(events.DATA_CLEANSED, n_rows=len(found), drop_count=found.drop_count)
    cleaning.check_thresholds(found, recipe.cleansing)
    return TrainingData(found, n_fetched, _sides(loaded, settings, variables, found, progress))


def _uses_time(loaded: LoadedRecipe) -> bool:
    return bool(loaded.recipe.training.split.scheme != "random")


def interaction_context(
    loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str], progress: Progress | None = None
) -> SourceContext:
    """What the interaction source is asked for: both ids, and the time only where the split looks at it."""
    schema = loaded.recipe.schema_
    ids = (schema.user_column, schema.item_column)
    with_time = _uses_time(loaded) and schema.time_column not in (None, *ids)
    return SourceContext(
        base_dir=loaded.base_dir,
        settings=settings,
        columns=(*ids, schema.time_column) if with_time and schema.time_column else ids,
        text_columns=frozenset(ids),
        purpose="interactions",
        variables=variables,
        progress=progress.rows if progress is not None else None,
    )


def feature_context(loaded: LoadedRecipe, side: Any, settings: Settings, variables: Mapping[str, str]) -> SourceContext:
    """What a feature source is asked for; every column but the numbers as text."""
    names = tuple(column.name for column in side.columns)
    text = {side.id_column, *(column.name for column in side.columns if column.kind != "numerical")}
    return SourceContext(
        base_dir=loaded.base_dir,
        settings=settings,
        columns=tuple(dict.fromkeys((side.id_column, *names))),
        text_columns=frozenset(text),
        purpose="features",
        variables=variables,
        progress=None,
    )


def _sides(
    loaded: LoadedRecipe,
    settings: Settings,
    variables: Mapping[str, str],
    found: Interactions,
    progress: Progress,
) -> dict[SideName, FittedSide]:
    block = loaded.recipe.features
    sides: dict[SideName, FittedSide] = {}
    if block is None:
        return sides
    progress.phase("encoding features")
    both: tuple[tuple[SideName, Any, list[str]], ...] = (
        ("user", block.user, found.user_ids),
        ("item", block.item, found.item_ids),
    )
    for name, side, ids in both:
        if side is not None:
            frame = build_source(side.source, feature_context(loaded, side, settings, variables)).fetch()
            sides[name] = fit_side(frame, side, name, ids, settings)
    return sides
