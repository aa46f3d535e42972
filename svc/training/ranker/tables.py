"""Read the ranker's tables of labels and numbers: `features.item`, and the filter fields of `item_metadata`."""

from __future__ import annotations

from collections.abc import Mapping

from svc import events, logs
from svc.errors import SvcError
from svc.recipe.load import LoadedRecipe
from svc.recipe.side_tables import FeatureColumn, FeatureSide
from svc.settings import Settings
from svc.sources.base import build_source
from svc.training.data.features import fit_side
from svc.training.data.fetch import TrainingData, feature_context
from svc.training.ranker.record import ItemTables


def item_tables(
    loaded: LoadedRecipe, data: TrainingData, settings: Settings, variables: Mapping[str, str]
) -> ItemTables:
    """Return the encoded tables, with rows in the order of the items of the interactions.

    Metadata that cannot be read or encoded is left out with an event, because a server answers without it too.
    """
    sides = [data.sides["item"]] if "item" in data.sides else []
    metadata = loaded.recipe.item_metadata
    if metadata is not None and metadata.filter_fields:
        columns = tuple(
            FeatureColumn(name=field.name, kind=field.kind, delimiter=field.delimiter)
            if field.kind == "multi_label"
            else FeatureColumn(name=field.name, kind=field.kind)
            for field in metadata.filter_fields
        )
        try:
            side = FeatureSide(source=metadata.source, id_column=metadata.id_column, columns=columns)
            frame = build_source(side.source, feature_context(loaded, side, settings, variables)).fetch()
            sides.append(fit_side(frame, side, "item", data.interactions.item_ids, settings))
        except (SvcError, ValueError) as error:
            logs.emit(events.RANKER_METADATA_LEFT_OUT, recipe=loaded.recipe.name, reason=str(error))
    return ItemTables(tuple(sides))
