"""From a fetched table to clean interactions: codes, times, duplicates, thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import MinDataViolation, TimeUnitRequired
from svc.training.order import stable_order
from svc.training.times import BAD_TIME, to_nanoseconds

Dedup = Literal["keep_last", "keep_first", "none"]
Codes = NDArray[np.int32]
Times = NDArray[np.int64]


class _Schema(Protocol):
    @property
    def user_column(self) -> str: ...
    @property
    def item_column(self) -> str: ...
    @property
    def time_column(self) -> str | None: ...
    @property
    def time_unit(self) -> str | None: ...


class _Cleansing(Protocol):
    @property
    def drop_null_ids(self) -> bool: ...
    @property
    def dedup(self) -> Dedup: ...
    @property
    def min_rows(self) -> int | None: ...
    @property
    def min_users(self) -> int | None: ...
    @property
    def min_items(self) -> int | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Interactions:
    """Clean interactions, in the order of the source.

    `users` and `items` are (n,) rows of `user_ids` and `item_ids`, which stand in order of first appearance.
    `times` is (n,) nanoseconds since 1970, or None where the recipe does not look at time.
    `dropped` counts the rows that cleansing removed, by reason.
    """

    users: Codes
    items: Codes
    times: Times | None
    user_ids: list[str]
    item_ids: list[str]
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.users)

    @property
    def drop_count(self) -> int:
        return sum(self.dropped.values())

    def matrix(self) -> sparse.csr_matrix:
        """(users, items) float32; an entry is how often the pair occurs."""
        ones = np.ones(len(self), dtype=np.float32)
        shape = (len(self.user_ids), len(self.item_ids))
        matrix = sparse.coo_matrix((ones, (self.users, self.items)), shape=shape).tocsr()
        matrix.sum_duplicates()
        return matrix


def from_frame(frame: pd.DataFrame, schema: _Schema, cleansing: _Cleansing, *, with_times: bool) -> Interactions:
    """Clean `frame`; its id columns are categorical text. Thresholds are not checked here.

    Raises MinDataViolation when nothing at all is left, and TimeUnitRequired for numeric times without a unit.
    """
    users, user_names = _codes(frame[schema.user_column])
    items, item_names = _codes(frame[schema.item_column])
    times = _times(frame, schema) if with_times else None
    dropped: dict[str, int] = {}
    keep = _known_ids(users, items, dropped)
    if times is not None:
        bad = keep & (times == BAD_TIME)
        dropped["bad_times"] = int(np.count_nonzero(bad))
        keep &= ~bad
    users, items = users[keep], items[keep]
    times = None if times is None else times[keep]
    if cleansing.dedup != "none":
        kept = _distinct_pairs(users, items, times, cleansing.dedup, len(item_names))
        dropped["duplicates"] = len(users) - len(kept)
        users, items = users[kept], items[kept]
        times = None if times is None else times[kept]
    users, user_ids = _by_first_appearance(users, user_names)
    items, item_ids = _by_first_appearance(items, item_names)
    return Interactions(users, items, times, user_ids, item_ids, {k: v for k, v in dropped.items() if v})


def check_thresholds(interactions: Interactions, cleansing: _Cleansing) -> None:
    """Raise MinDataViolation below `cleansing.min_*`; one row, one user and two items are asked for in any case."""
    counts = {
        "n_rows": len(interactions),
        "n_users": len(interactions.user_ids),
        "n_items": len(interactions.item_ids),
    }
    least = {
        "min_rows": max(cleansing.min_rows or 0, 1),
        "min_users": max(cleansing.min_users or 0, 1),
        "min_items": max(cleansing.min_items or 0, 2),
    }
    short = [
        f"{counts[f'n_{what}']} {what} where at least {least[f'min_{what}']} are needed"
        for what in ("rows", "users", "items")
        if counts[f"n_{what}"] < least[f"min_{what}"]
    ]
    if short:
        lost = f" Cleansing dropped {interactions.drop_count} rows." if interactions.drop_count else ""
        raise MinDataViolation(
            f"the cleaned data has {', '.join(short)}.{lost} Provide more data, or lower cleansing.min_rows, "
            "min_users or min_items (a model needs at least one user and two items).",
            fields={**counts, **least},
        )


def _codes(column: pd.Series) -> tuple[Codes, NDArray[np.object_]]:
    """(n,) codes into the names that are returned; −1 for a null or blank id."""
    categorical = column.array if isinstance(column.dtype, pd.CategoricalDtype) else column.astype("category").array
    names = np.asarray([str(name) for name in categorical.categories], dtype=object)
    codes = np.asarray(categorical.codes, dtype=np.int32)
    blank = np.asarray([not name.strip() for name in names], dtype=bool)
    if blank.any():
        codes = np.where((codes >= 0) & blank[codes], np.int32(-1), codes)
    return codes, names


def _known_ids(users: Codes, items: Codes, dropped: dict[str, int]) -> NDArray[np.bool_]:
    keep = (users >= 0) & (items >= 0)
    dropped["null_ids"] = len(keep) - int(np.count_nonzero(keep))
    return keep


def _times(frame: pd.DataFrame, schema: _Schema) -> Times:
    assert schema.time_column is not None, "the recipe asks for time_column wherever times are used"
    column = frame[schema.time_column]
    if pd.api.types.is_numeric_dtype(column.dtype) and schema.time_unit is None:
        raise TimeUnitRequired(
            f"schema.time_column {schema.time_column!r} holds numbers: "
            "say their unit in schema.time_unit (s, ms, us or ns)."
        )
    return to_nanoseconds(column, schema.time_unit)


def _distinct_pairs(users: Codes, items: Codes, times: Times | None, dedup: Dedup, n_items: int) -> NDArray[np.int64]:
    """Rows to keep, ascending: of each (user, item) the first or last, by time where there is one, else by place."""
    pairs = users.astype(np.int64) * max(n_items, 1) + items
    order = stable_order([pairs] if times is None else [pairs, times])
    ordered = pairs[order]
    edge = np.ones(len(ordered), dtype=bool)
    if dedup == "keep_first":
        edge[1:] = ordered[1:] != ordered[:-1]
    else:
        edge[:-1] = ordered[1:] != ordered[:-1]
    return np.sort(order[edge])


def _by_first_appearance(codes: Codes, names: NDArray[np.object_]) -> tuple[Codes, list[str]]:
    """Codes renumbered by first appearance, and the names that occur, in that order."""
    n = len(codes)
    first = np.full(len(names), n, dtype=np.int64)
    first[codes[::-1]] = np.arange(n - 1, -1, -1)  # of several writes to one place numpy keeps the last
    present = np.flatnonzero(first < n)
    present = present[np.argsort(first[present])]
    renumbered = np.full(len(names), -1, dtype=np.int32)
    renumbered[present] = np.arange(len(present), dtype=np.int32)
    return renumbered[codes], names[present].tolist()
