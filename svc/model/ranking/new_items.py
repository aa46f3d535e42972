"""New items for one model: their ids, and vectors made from their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.ids import IdFinder, IdTable
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.rerank import Share


class Descriptions(NamedTuple):
    """The encoded feature vectors (`Encoded`) of many items, concatenated.

    The vector of item i is at `starts[i]:starts[i + 1]` of `places` and `values`. `dim` is the length of each vector.
    """

    starts: NDArray[np.intp]
    places: NDArray[np.intp]
    values: NDArray[np.float64]
    dim: int

    @classmethod
    def of(cls, encoded: Sequence[Encoded]) -> Descriptions:
        if not encoded:
            return cls(np.zeros(1, dtype=np.intp), np.empty(0, dtype=np.intp), np.empty(0), 0)
        starts = np.cumsum([0, *(len(item.places) for item in encoded)], dtype=np.intp)
        places, values = (np.concatenate(parts) for parts in list(zip(*encoded, strict=True))[:2])
        return cls(starts, places, values, encoded[0].dim)

    def at(self, row: int) -> Encoded:
        own = slice(self.starts[row], self.starts[row + 1])
        return Encoded(self.places[own], self.values[own], self.dim)


def ids_with(item_ids: IdTable, new: NewItems | None) -> IdTable:
    """Return the ids of a model's items, followed by the ids of the new items."""
    return item_ids if new is None else IdTable.from_ids([*item_ids.all(), *new.ids.all()])


def id_at(item_ids: IdTable, new: NewItems | None, column: int) -> str:
    """Return the id of an item of the model, or of a new item, by its column."""
    if new is None or column < len(item_ids):
        return item_ids.at(column)
    return new.ids.at(column - len(item_ids))


@dataclass(eq=False, repr=False)
class NewItems:
    """The m items of a list that a model does not know. Reading is thread-safe.

    `ids` and `vectors`, (m, K) float64, are in the order of the list. The model has `n_known` items, so the item in row
    r has the column n_known + r in rankings. `max_share` is the largest share of new items among the first n items of a
    ranking, for every n. None: no bound. `min_share` is the smallest such share, as long as new items are left.
    `descriptions` are the features of the items, so that requests may name the items as history or seeds. None: they
    may not.
    """

    ids: IdTable
    vectors: NDArray[np.float64]
    n_known: int
    max_share: float | None
    min_share: float = 0.0
    descriptions: Descriptions | None = None

    def __post_init__(self) -> None:
        self._finder = IdFinder(self.ids)

    # The finder is derived from the ids, so a worker makes its own.
    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.ids, self.vectors, self.n_known, self.max_share, self.min_share, self.descriptions)
        return NewItems, parts

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def share(self) -> Share | None:
        """Return the bounds of the share of new items in a ranking, or None if the share is not bounded."""
        if self.max_share is None and not self.min_share:
            return None
        return Share(self.n_known, 1.0 if self.max_share is None else self.max_share, self.min_share)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the rows of `ids`, (len(ids),), with −1 for ids that are not new items."""
        return self._finder.indices(ids)

    def describe(self, ids: Sequence[str]) -> dict[str, Encoded]:
        """Return the features of the new items among `ids`, by id."""
        descriptions = self.descriptions
        if descriptions is None or not ids:
            return {}
        rows = zip(ids, self.rows(ids).tolist(), strict=True)
        return {item: descriptions.at(row) for item, row in rows if row >= 0}

    def candidates(
        self, excluded: Sequence[str], included: Sequence[str] | None, allowed: ItemSet | None
    ) -> NDArray[np.int32]:
        """Return the rows, ascending, of the new items that may be recommended.

        `excluded` and `included` are ids, and `allowed` is a set over the columns of the model's and the new items.
        None: all.
        """
        may = np.ones(len(self), dtype=np.bool_) if allowed is None else allowed.flags()[self.n_known :]
        if included is not None:
            named = np.zeros(len(self) + 1, dtype=np.bool_)
            named[self.rows(included)] = True  # ids of other items have the row −1, which is the extra last place
            may &= named[:-1]
        rows = self.rows(excluded)
        may[rows[rows >= 0]] = False
        return may.nonzero()[0].astype(np.int32)
