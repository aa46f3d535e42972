"""Encode vectors as features: numbers that the caller computed, such as an embedding of a text or an image."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from svc.errors import FeatureVectorUnusable
from svc.model.codec import Stored
from svc.model.columns.feature_values import NOTHING, Value, kind_of


@dataclass(eq=False, repr=False)
class VectorColumn(Stored):
    """A `vector` column, encoded as one component for each dimension of its vectors.

    All vectors are divided by `length`, the root mean square of the lengths of the training vectors, so that the
    regularization has the same effect on vectors of any scale.
    """

    kind: ClassVar[Literal["vector"]] = "vector"

    name: str
    _: KW_ONLY
    dimensions: int
    delimiter: str
    length: float

    @property
    def width(self) -> int:
        """Return the number of dimensions, or 0 if all training vectors were missing or zero."""
        return self.dimensions if self.length > 0 else 0

    def vector(self, value: object) -> NDArray[np.float64] | None:
        """Return the numbers of one value, (dimensions,), or None if it is missing: null, NaN or blank.

        Raises FeatureVectorUnusable for a wrong number of dimensions or a value that is not a finite number.
        """
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        if isinstance(value, str):
            if not value.strip():
                return None
            numbers = self._parse(value.split(self.delimiter))
        # An array of numbers takes 0.3 µs for 256 dimensions, and the checks of a list 37.
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            numbers = value.astype(np.float64)
        elif isinstance(value, list | tuple | np.ndarray):
            if not all(isinstance(part, int | float) and not isinstance(part, bool) for part in value):
                raise self._unusable("it holds something other than numbers")
            numbers = self._parse(list(value))
        elif self.dimensions == 1 and isinstance(value, int | float) and not isinstance(value, bool):
            numbers = self._parse([value])
        else:
            raise self._unusable(f"{kind_of(value)} is not a vector")
        if numbers.shape != (self.dimensions,):
            raise self._unusable(f"the vector has {numbers.size} numbers")
        if not np.isfinite(numbers).all():
            raise self._unusable(f"number {int(np.flatnonzero(~np.isfinite(numbers))[0]) + 1} is not finite")
        return numbers

    def _parse(self, parts: list[str] | list[int | float]) -> NDArray[np.float64]:
        # Counted before numpy reads them, because a request may have many more parts.
        if len(parts) != self.dimensions:
            raise self._unusable(f"the vector has {len(parts)} numbers")
        try:
            return np.array(parts, dtype=np.float64)
        except (ValueError, OverflowError):
            raise self._unusable("it holds something other than numbers") from None

    def read(self, value: object) -> tuple[Value, list[str]]:
        """Return all positions and the scaled numbers, or NOTHING, and an empty list of unknowns.

        NOTHING stands for a missing vector, and for every vector of a column of width 0. Raises as `vector` does.
        """
        numbers = self.vector(value)
        if numbers is None or not self.width:
            return NOTHING, []
        return (np.arange(self.dimensions, dtype=np.intp), numbers / self.length), []

    def _unusable(self, reason: str) -> FeatureVectorUnusable:
        return FeatureVectorUnusable(
            f"feature {self.name!r}: {reason}; give {self.dimensions} finite numbers as a list, or as a text with "
            f"{self.delimiter!r} between them"
        )
