"""Translate the ids of a request into columns of an offer's items, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.history import LEAST, Weights
from svc.model.ranking.item_sets import added_up, distinct
from svc.model.ranking.new_items import NewItems, id_at
from svc.model.ranking.query import NO_ITEMS, NOTHING_GIVEN, Given, Interaction, settle_history
from svc.model.weight_scale import scale_request

if TYPE_CHECKING:
    from svc.model.model import Model


class Names:
    """The ids of a model's items, followed by those of the new items. Thread-safe.

    The new item in row r of `new` has the column n_items + r.
    """

    __slots__ = ("_model", "_new")

    def __init__(self, model: Model, new: NewItems | None) -> None:
        self._model = model
        self._new = new

    def at(self, column: int) -> str:
        """Return the id of the item in `column`."""
        return id_at(self._model.item_ids, self._new, column)

    def of_model(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the distinct columns of the model's items among `ids`, ascending."""
        if not ids:
            return NO_ITEMS
        columns = distinct(self._model.finder.indices(ids))
        return columns[columns >= 0]

    def columns(self, ids: Sequence[str], *, with_new: bool = True) -> NDArray[np.int32]:
        """Return the columns of `ids`, (len(ids),), with −1 for unknown ids."""
        columns = self._model.finder.indices(ids)
        if self._new is None or not with_new:
            return columns
        rows = self._new.rows(ids)
        return np.where((columns < 0) & (rows >= 0), self._model.n_items + rows, columns)

    def history(self, history: Sequence[Interaction]) -> Given:
        """Return the model's items and the other ids of a request's history, with weights on the scales of the model.

        The items are distinct, unless the model's histories are ordered (see `settle_history`).
        """
        if not history:
            return NOTHING_GIVEN
        columns, raw, unknown = self.weighted(history, with_new=False)
        of_model = self._model.history
        weights, *others = (
            scale_request(raw, scale) for scale in (of_model.weight_scale, *(own for _, own in of_model.others))
        )
        return settle_history(Given(columns, weights, tuple(dict.fromkeys(unknown)), tuple(others)), of_model)

    def dislikes(self, dislikes: Sequence[Interaction]) -> Given:
        """Return the disliked items of the model, and the ids that are neither in the model nor new items.

        Weights of a repeated item add up. Dislikes with a weight below LEAST are left out.
        """
        if not dislikes:
            return NOTHING_GIVEN
        columns, weights, unknown = self.weighted(dislikes)
        # The model has learned nothing of new items. A disliked one is left out and changes no score.
        counts = columns < self._model.n_items
        if weights is not None:
            counts &= weights >= LEAST
            weights = weights[counts]
        return Given(*added_up(columns[counts], weights), tuple(dict.fromkeys(unknown)))

    def weighted(
        self, named: Sequence[tuple[str, float]], *, with_new: bool = True
    ) -> tuple[NDArray[np.int32], Weights | None, list[str]]:
        """Return the columns and numbers (None: all 1) of the known items of `named`, and the unknown ids.

        All stand in the order of `named`, which has pairs of id and number.
        """
        if not named:
            return NO_ITEMS, None, []
        ids, numbers = zip(*named, strict=True)
        # None lets scorers add up rows without multiplying them first.
        weights = None if numbers.count(1) == len(numbers) else np.array(numbers, dtype=np.float64)
        columns = self.columns(ids, with_new=with_new)
        # Saves the masks if all ids are known.
        if columns.min() >= 0:
            return columns, weights, []
        is_known = columns >= 0
        unknown = [ids[position] for position in np.flatnonzero(~is_known).tolist()]
        return columns[is_known], None if weights is None else weights[is_known], unknown

    def describe(self, ids: Sequence[str]) -> dict[str, Encoded]:
        """Return the features of the new items among `ids`, by id."""
        return {} if self._new is None else self._new.describe(ids)
