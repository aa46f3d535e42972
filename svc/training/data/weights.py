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
    """Weights of rows.

    `values` is (n,), NaN if a row has no usable weight. `hides` is (n,), True if the row's event is excluded. `problem`
    names the reason for NaN in counts of dropped rows.
    """

    values: Weights
    hides: NDArray[np.bool_]
    problem: str


def of_numbers(column: pd.Series) -> RowWeights:
    """Return the numbers of a weight column, with NaN for anything but a finite number above zero."""
    plain = column.astype(object) if isinstance(column.dtype, pd.CategoricalDtype) else column
    values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    usable = np.isfinite(values) & (values > 0.0)
    return RowWeights(np.where(usable, values, np.nan), np.zeros(len(values), dtype=bool), "bad_weights")


def in_single_precision(values: NDArray[np.floating], name: Callable[[int], str]) -> NDArray[np.float32]:
    """Return `values`, weights or sums of weights, as float32.

    `name` describes the value at a position, for the message. Raise WeightOutOfRange for the first value that becomes
    infinite or 0.
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
    """Return the weight of each row's event, compared as text without surrounding blanks."""
    events = column.astype("category").array
    names = [str(name).strip() for name in events.categories]
    worth = [weights.get(name) for name in names]
    values = np.asarray(
        [np.nan if weight is None or weight == "exclude" else float(weight) for weight in worth] + [np.nan]
    )
    hides = np.asarray([weight == "exclude" for weight in worth] + [False])
    codes = np.asarray(events.codes)  # a missing event has code −1, the last place
    return RowWeights(values[codes], hides[codes], "unlisted_events")
