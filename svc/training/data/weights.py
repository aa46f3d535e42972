"""The weight of each row of the interaction table: from a weight column, from the kind of its event, or 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Weights = NDArray[np.float64]
Event = float | Literal["exclude"]


@dataclass(frozen=True, slots=True, eq=False)
class RowWeights:
    """`values` is (n,), NaN where a row says no usable weight; `hides` is (n,), True where its event is excluded.

    `problem` names the reason for NaN in counts of dropped rows.
    """

    values: Weights
    hides: NDArray[np.bool_]
    problem: str


def of_numbers(column: pd.Series) -> RowWeights:
    """Weights as given; NaN for anything but a finite number above zero."""
    plain = column.astype(object) if isinstance(column.dtype, pd.CategoricalDtype) else column
    values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    usable = np.isfinite(values) & (values > 0.0)
    return RowWeights(np.where(usable, values, np.nan), np.zeros(len(values), dtype=bool), "bad_weights")


def of_events(column: pd.Series, weights: Mapping[str, Event]) -> RowWeights:
    """The weight of each row's event, compared as text without surrounding blanks."""
    events = column.astype("category").array
    names = [str(name).strip() for name in events.categories]
    worth = [weights.get(name) for name in names]
    values = np.asarray([np.nan if one is None or one == "exclude" else float(one) for one in worth] + [np.nan])
    hides = np.asarray([one == "exclude" for one in worth] + [False])
    codes = np.asarray(events.codes)  # −1, the last place, for a missing event
    return RowWeights(values[codes], hides[codes], "unlisted_events")
