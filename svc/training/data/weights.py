"""The weight of each row of the interaction table: from a weight column, from the kind of its event, or 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from svc.errors import WeightOutOfRange

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


def in_single_precision(values: NDArray[np.floating], name: Callable[[int], str]) -> NDArray[np.float32]:
    """`values`, weights or sums of weights, as float32; `name` says which one stands at a place.

    Raises WeightOutOfRange for the first that becomes infinite or 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32, copy=False)
    usable = np.isfinite(rounded) & (rounded > 0)
    if not usable.all():
        first_unusable = int(np.argmin(usable))
        raise WeightOutOfRange(
            f"{name(first_unusable)} is {values[first_unusable]:g}, and a model holds weights from 1e-45 to 3.4e+38: "
            "rescale schema.weight_column, or cleansing.event_weights"
        )
    return rounded


def of_events(column: pd.Series, weights: Mapping[str, Event]) -> RowWeights:
    """The weight of each row's event, compared as text without surrounding blanks."""
    events = column.astype("category").array
    names = [str(name).strip() for name in events.categories]
    worth = [weights.get(name) for name in names]
    values = np.asarray(
        [np.nan if weight is None or weight == "exclude" else float(weight) for weight in worth] + [np.nan]
    )
    hides = np.asarray([weight == "exclude" for weight in worth] + [False])
    codes = np.asarray(events.codes)  # −1, the last place, for a missing event
    return RowWeights(values[codes], hides[codes], "unlisted_events")
