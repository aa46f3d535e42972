"""Compute the ranker's item record, which has the popularity, neighbours, labels and numbers of all items.

Labels are the values of categorical and multi-label columns. Labels and numbers come from two tables of the recipe:
`features.item` and the filter fields of `item_metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.errors import SvcError
from svc.model.features import NumberColumn, TokenColumn
from svc.model.ranker.item_record import NEIGHBOURS, ItemRecord
from svc.recipe.load import LoadedRecipe
from svc.recipe.training_schema import FeatureColumn, FeatureSide
from svc.settings import Settings
from svc.sources.base import build_source
from svc.training.data.features import FittedSide, fit_side
from svc.training.data.fetch import TrainingData, feature_context
from svc.training.data.times import usual_bounds
from svc.training.fitting.algorithms.registry import ALGORITHMS

DAY_NS: Final = 86_400 * 1_000_000_000
WINDOWS: Final = (7, 30, 90)
"""The windows of recent popularity, in days."""
MOST_LABELS: Final = 5_000
"""Maximum number of labels of a column.

Columns with more are left out, because they act like ids and would slow down requests.
Columns with only one label are left out too.
"""
SHRINKAGE: Final = 10.0
"""Added to the divisor of a cosine, so that two items of the same single user are not strong neighbours."""


EncodedTables = tuple[FittedSide, ...]
"""The encoded tables with labels and numbers of items. All have the same items in the same order of rows."""


def take_items(tables: EncodedTables, items: NDArray[np.int64]) -> EncodedTables:
    """Return the tables with only the rows `items`, (n,), in this order."""
    return tuple(FittedSide(side.encoder, side.matrix[items]) for side in tables)


def windows_within(ages: sparse.csr_matrix | None) -> tuple[int, ...]:
    """Return the WINDOWS, in days, that are not longer than the training data.

    `ages`, (users, items), has the time of each interaction, in nanoseconds from the reference time. It is None if
    there are no times.
    """
    return () if ages is None else tuple(days for days in WINDOWS if days * DAY_NS <= _longest_age(ages))


def _longest_age(ages: sparse.csr_matrix) -> int:
    """Return the usual longest time from an interaction to the reference time, in nanoseconds."""
    return max(0, -usual_bounds(ages.data)[0]) if ages.nnz else 0


def item_record(
    matrix: sparse.csr_matrix, ages: sparse.csr_matrix | None, windows: Sequence[int], tables: EncodedTables
) -> ItemRecord:
    """Return the record of the items of `matrix`, (users, items).

    - `ages` has the time of each entry of `matrix`, in nanoseconds from the reference time. Later entries count as at
      this time. It is None if histories have no order. The record then has no recent popularity.
    - `windows` are those of recent popularity, in days.
    - `tables` have rows in the order of the columns of `matrix`.
    """
    names, popularity = _popularity(matrix, ages, windows)
    neighbours, similarities = _neighbours(matrix)
    return ItemRecord(
        popularity=popularity,
        popularity_names=names,
        neighbours=neighbours,
        similarities=similarities,
        **_labels(tables, matrix.shape[1]),
        **_numbers(tables, matrix.shape[1]),
        ordered=ages is not None,
    )


def _popularity(
    matrix: sparse.csr_matrix, ages: sparse.csr_matrix | None, windows: Sequence[int]
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    n_items = matrix.shape[1]
    # A weight of 0 is no choice, as in rankings.
    columns: dict[str, NDArray[Any]] = {"popularity": np.bincount(matrix.indices[matrix.data != 0], minlength=n_items)}
    if ages is not None:
        since = np.maximum(-ages.data, 0)
        for days in windows:
            columns[f"popularity_{days}d"] = np.bincount(ages.indices[since < days * DAY_NS], minlength=n_items)
        # Items without a choice look as old as the data, not new.
        last = np.full(n_items, _longest_age(ages), dtype=np.int64)
        np.minimum.at(last, ages.indices, since)
        columns["since_last_choice"] = last / DAY_NS
    return tuple(columns), np.log1p(np.stack(list(columns.values()), axis=1)).astype(np.float32)


def _neighbours(matrix: sparse.csr_matrix) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the nearest items of each item by cosine similarity of their users, and the similarities.

    Both are (items, NEIGHBOURS), nearest first, with ties broken by column. Missing neighbours have the column
    `n_items` and the similarity 0.
    """
    n_items = matrix.shape[1]
    neighbours = np.full((n_items, NEIGHBOURS), n_items, dtype=np.int32)
    similarities = np.zeros((n_items, NEIGHBOURS), dtype=np.float32)
    # Without weights: neighbours are items of the same users, however much these liked them.
    chosen = sparse.csr_matrix(matrix != 0, dtype=np.float64)
    build = ALGORITHMS["CosineKNNRecommender"].irspack_class
    # One more neighbour: irspack 0.5.2 counts the item itself among the top_k, and then stores 0 for it.
    trained = build(chosen, normalize=True, top_k=NEIGHBOURS + 1, shrinkage=SHRINKAGE).learn()
    weights = sparse.csr_matrix(trained.W)
    rows = np.repeat(np.arange(n_items), np.diff(weights.indptr))
    # irspack's rows are not sorted by similarity.
    order = np.lexsort((weights.indices, -weights.data, rows))
    places = np.arange(len(rows)) - weights.indptr[rows]
    is_kept = (places < NEIGHBOURS) & (weights.data[order] > 0)
    at = rows[is_kept], places[is_kept]
    neighbours[at], similarities[at] = weights.indices[order][is_kept], weights.data[order][is_kept]
    return neighbours, similarities


def _labels(tables: EncodedTables, n_items: int) -> dict[str, Any]:
    """Return the fields of an item record about labels."""
    blocks = {
        name: block
        for name, (column, block) in _blocks(tables).items()
        if isinstance(column, TokenColumn) and 1 < block.shape[1] <= MOST_LABELS
    }
    widths = [block.shape[1] for block in blocks.values()]
    parts = []
    for block in blocks.values():
        own = block.copy()
        own.eliminate_zeros()
        counts = np.diff(own.indptr)
        # Shares add up to 1 for each item, so a film of five genres does not count five times.
        own.data = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
        parts.append(own)
    joined = sparse.hstack([sparse.csr_matrix((n_items, 0), dtype=np.float32), *parts], format="csr")
    joined.sort_indices()
    return {
        "label_names": tuple(blocks),
        "first_labels": np.concatenate([[0], np.cumsum(widths)]).astype(np.int32),
        "label_offsets": joined.indptr.astype(np.int32),
        "labels": joined.indices.astype(np.int32),
        "label_parts": joined.data.astype(np.float32),
    }


def _numbers(tables: EncodedTables, n_items: int) -> dict[str, Any]:
    """Return the fields of an item record about numbers."""
    columns = {
        name: _with_nan(block)
        for name, (column, block) in _blocks(tables).items()
        if isinstance(column, NumberColumn) and column.width
    }
    numbers = np.stack(list(columns.values()), axis=1) if columns else np.empty((n_items, 0), dtype=np.float32)
    return {"number_names": tuple(columns), "numbers": numbers}


def _with_nan(block: sparse.csr_matrix) -> NDArray[np.float32]:
    """Return the standardized numbers of a column, (n_items,), with NaN for missing ones, which have no entry."""
    values = np.full(block.shape[0], np.nan, dtype=np.float32)
    # A number of 0 has an entry, too. Only a missing one has none.
    values[np.diff(block.indptr) > 0] = block.data
    return values


def _blocks(tables: EncodedTables) -> dict[str, tuple[object, sparse.csr_matrix]]:
    """Return each encoded column by its name. If several tables have a column of this name, the first one is used."""
    columns_by_name: dict[str, tuple[object, sparse.csr_matrix]] = {}
    for side in tables:
        for column, block in side.blocks():
            columns_by_name.setdefault(column.name, (column, block))
    return columns_by_name


def item_tables(
    loaded: LoadedRecipe, data: TrainingData, settings: Settings, variables: Mapping[str, str]
) -> EncodedTables:
    """Return the encoded tables, with rows in the order of the items of the interactions.

    Metadata that cannot be read or encoded is left out, because a server answers without it too. An event is logged.
    """
    sides = [data.sides["item"]] if "item" in data.sides else []
    metadata = loaded.recipe.item_metadata
    if metadata is not None and metadata.filter_fields:
        columns = tuple(
            FeatureColumn(name=field.name, kind=field.kind, delimiter=field.delimiter)
            for field in metadata.filter_fields
        )
        try:
            side = FeatureSide(source=metadata.source, id_column=metadata.id_column, columns=columns)
            frame = build_source(side.source, feature_context(loaded, side, settings, variables)).fetch()
            sides.append(fit_side(frame, side, "item", data.interactions.item_ids, settings))
        except (SvcError, ValueError) as error:
            logs.emit(events.RANKER_METADATA_LEFT_OUT, recipe=loaded.recipe.name, reason=str(error))
    return tuple(sides)
