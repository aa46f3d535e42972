"""Values of feature columns: scalars as text, and the encoded form of one value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Value = tuple[NDArray[np.intp], NDArray[np.float64]]
"""An encoded value: positions in the range of its column, (z,), and the numbers at these positions, (z,)."""
NOTHING: Value = (np.empty(0, dtype=np.intp), np.empty(0))
"""The encoding of a missing value."""


class Encoded(NamedTuple):
    """An encoded feature vector without its zeros.

    `places`, (z,), are the positions of `values`, (z,), in the vector of length `dim`. Zeros are left out to save
    memory, because a batch of requests may have features of thousands of items.
    """

    places: NDArray[np.intp]
    values: NDArray[np.float64]
    dim: int

    @classmethod
    def of(cls, vector: NDArray[np.float64]) -> Encoded:
        places = np.flatnonzero(vector)
        return cls(places, vector[places], len(vector))

    @classmethod
    def at(cls, places: Sequence[NDArray[np.intp]], values: Sequence[NDArray[np.float64]], dim: int) -> Encoded:
        """Build a vector of length `dim` from parts with distinct places, in any order. Zero values are left out."""
        joined, all_values = np.concatenate(places), np.concatenate(values)
        order = np.argsort(joined)
        order = order[all_values[order] != 0]
        return cls(joined[order], all_values[order], dim)

    def dense(self) -> NDArray[np.float64]:
        vector = np.zeros(self.dim)
        vector[self.places] = self.values
        return vector


def kind_of(value: object) -> str:
    """Return the kind of a value for messages, in the words of JSON and tables."""
    if isinstance(value, str):
        return "a text"
    if isinstance(value, bool | np.bool_):
        return "a boolean"
    if isinstance(value, int | float | np.number):
        return "a number"
    if isinstance(value, list | tuple | np.ndarray):
        return "a list"
    return "a map" if isinstance(value, dict) else "a value of another kind"


def token_text(value: object) -> str | None:
    """Return the token of a scalar, or None if the value is missing: null, NaN or blank.

    Text is stripped of surrounding blanks. A whole number becomes its decimal digits, whether it came as 7 or as 7.0,
    and a boolean becomes "true" or "false". Raises TypeError for anything but a scalar, and ValueError for a whole
    number with more digits than Python converts.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return None
        return str(int(number)) if number.is_integer() else repr(number)
    raise TypeError(f"{kind_of(value)} does not belong here")
