"""The item record, in which the ranker looks up facts about items, and the names of the ranker's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored

NEIGHBOURS = 50
"""The number of most similar items that are stored for each item."""


class Feature(NamedTuple):
    """A feature of the ranker, and its group in the report and in explanations."""

    name: str
    group: str


@dataclass(eq=False, repr=False, kw_only=True)
class ItemRecord(Stored):
    """The facts about items from which the ranker's features are computed, as arrays of float32 and int32.

    `popularity`, (n_items, p), has the columns `popularity_names`. They hold log(1 + users of the item), over all time
    and within each time window. An ordered record has log(1 + days since the last choice) as the last column.

    `neighbours`, (n_items, NEIGHBOURS), are the columns of each item's most similar items, and `similarities` their
    similarities. Missing neighbours are n_items, with a similarity of 0.

    `labels` holds the label numbers of all items, one item after the other. The labels of item c begin at
    `label_offsets[c]` and end before `label_offsets[c + 1]`. Label numbers are distinct over all label columns of the
    item table, which `label_names` names. The labels of column k are numbered from `first_labels[k]` on. `label_parts`
    has for each entry of `labels` 1 / the number of labels of the same item in the same column.

    `numbers`, (n_items, q), are the numeric columns of the item table in standard deviations, with NaN for missing
    values.

    In an ordered record, histories stand oldest first, so that features can use the latest items.
    """

    popularity: NDArray[np.float32]
    popularity_names: tuple[str, ...]
    neighbours: NDArray[np.int32]
    similarities: NDArray[np.float32]
    label_names: tuple[str, ...]
    first_labels: NDArray[np.int32]
    label_offsets: NDArray[np.int32]
    labels: NDArray[np.int32]
    label_parts: NDArray[np.float32]
    number_names: tuple[str, ...]
    numbers: NDArray[np.float32]
    ordered: bool


def names(record: ItemRecord) -> tuple[Feature, ...]:
    """Return the features, in the order of the ranker's weights."""
    of_last = ["similarity_to_last"] if record.ordered else []
    of_labels = ["share", "missing", *(["share_of_last"] if record.ordered else [])]
    by_group = {
        "scores": ["score", "log_place"],
        "popularity": [*record.popularity_names, "popularity_by_history"],
        "neighbours": ["strongest_neighbour", "number_of_neighbours", *of_last],
        "labels": [f"{column}.{name}" for column in record.label_names for name in of_labels],
        "numbers": [f"{column}.{name}" for column in record.number_names for name in ("distance", "missing")],
    }
    return tuple(Feature(name, group) for group, own in by_group.items() for name in own)


def label_columns(record: ItemRecord) -> NDArray[np.intp]:
    """Return for each label number the index of its column in `label_names`, (n_labels,)."""
    return np.repeat(np.arange(len(record.label_names)), np.diff(record.first_labels))


def has_no_label(record: ItemRecord) -> NDArray[np.bool_]:
    """Return for each item and label column whether the item has no label there, (n_items, columns)."""
    n_columns, lengths = len(record.label_names), np.diff(record.label_offsets)
    # One number for each cell of the table, so that one `bincount` finds the empty ones.
    cells = np.repeat(np.arange(len(lengths)), lengths) * n_columns + label_columns(record).take(record.labels)
    counts = np.bincount(cells, minlength=len(lengths) * n_columns)
    is_empty: NDArray[np.bool_] = counts.reshape(len(lengths), n_columns) == 0
    return is_empty
