"""Compare the ids of the metadata table with the items of a model. Ids that differ give answers without titles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from svc.asking.item_tables import few_items
from svc.errors import MetadataError
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
from svc.training.data.doubts import Doubt, label_doubts
from svc.training.data.id_doubts import id_doubts


def metadata_doubts(
    loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str], items: Collection[str]
) -> Iterator[Doubt]:
    """Yield warnings of fields with several labels in a cell, and if the table has fewer than half of `items`.

    Reads the whole columns of ids and labels. Raise MetadataError if the table has none of `items`, and DataSourceError
    if it cannot be read.
    """
    declared = loaded.recipe.item_metadata
    if declared is None or not items:
        return
    name = declared.id_column
    labels = [field for field, kind in declared.filter_kinds.items() if kind != "numerical"]
    context = SourceContext.for_served_table(loaded.base_dir, settings, variables, name, (name, *labels))
    frame = build_source(declared.source, context).fetch()
    yield from label_doubts(frame, declared.filter_fields, "item_metadata.filter_fields")
    column = frame[name].dropna()
    # As text, because a model knows items by text only.
    ids = {str(text) for text in column.unique()}
    n_found = len(ids.intersection(items))
    if few_items(n_found, len(items)) is None:
        return
    spoilt = [doubt.message for doubt in id_doubts(column, "item", declared.source.type, are_rows=False)]
    example = f"items are such as {min(items)!r}, and {name} has such as {min(ids, default='')!r}"
    message = (
        f"item_metadata has {n_found} of {len(items)} items, so the others have no fields in answers and satisfy no "
        f"filter: {example}; set item_metadata.id_column to the column of the same ids as schema.item_column"
        f"{''.join(f'; {text}' for text in spoilt)}"
    )
    if not n_found:
        raise MetadataError(message)
    yield Doubt("metadata_few_items", "item_metadata.id_column", message)
