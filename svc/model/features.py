"""Encode features of users and items as vectors, by the same rules in training and in serving.

Each column of the feature table has a range of components of the vector, by its kind:

- `categorical` and `multi_label`: one component for each token, 1 if the value is or contains the token
- `numerical`: one component, the standardized value, or none if the training values do not vary
- `text`: one component for each word
- `vector`: one component for each dimension

The last component of the vector is the constant 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from svc.errors import FeatureValueUnusable
from svc.model.codec import Stored
from svc.model.columns.feature_values import NOTHING, Encoded, Value, kind_of, token_text
from svc.model.columns.text_column import TextColumn
from svc.model.columns.vector_column import VectorColumn
from svc.model.ids import IdTable

FEATURE_VERSION = 1
"""Version of these rules. A server refuses artifacts that were encoded by another version."""

_SHOWN_CHARACTERS = 256
LEAST_DEVIATION = 1e-8
"""A deviation below this times max(|mean|, 1) is rounding noise, so the column counts as constant."""
FARTHEST_RANGES = 10.0
"""A number is refused as a mistake if its distance from the training range exceeds this many widths of the range."""


@dataclass(eq=False, repr=False)
class TokenColumn(Stored):
    """A `categorical` or `multi_label` column, encoded as one component for each token of its vocabulary."""

    name: str
    kind: Literal["categorical", "multi_label"]
    tokens: IdTable
    delimiter: str = "|"

    @property
    def width(self) -> int:
        return len(self.tokens)

    def split(self, value: object) -> list[str]:
        """Return the tokens of one value, known or not. Raises TypeError and ValueError as `token_text` does."""
        if self.kind == "categorical":
            parts: Iterable[object] = [value]
        elif isinstance(value, str):
            parts = value.split(self.delimiter) if self.delimiter else [value]
        else:
            parts = value if isinstance(value, list | tuple | np.ndarray) else [value]
        texts = (token_text(part) for part in parts)
        # Each token once, however often a cell has it, because components are 1 or 0.
        return list(dict.fromkeys(text for text in texts if text is not None))

    def read(self, value: object) -> tuple[Value, list[str]]:
        """Return the positions of the known tokens with a 1 for each, and a list of the unknown tokens.

        A token is unknown if training did not keep it. The list has the form `column=token`, with long tokens cut.
        """
        try:
            texts = self.split(value)
        except TypeError as error:
            raise self._unusable(str(error)) from None
        except ValueError:  # more digits than `sys.int_info.default_max_str_digits`
            raise self._unusable("the number has too many digits") from None
        if not texts:
            return NOTHING, []
        positions = self.tokens.indices(texts)
        own = positions[positions >= 0].astype(np.intp)
        unseen = [] if len(own) == len(texts) else [texts[position] for position in np.flatnonzero(positions < 0)]
        return (own, np.ones(len(own))), [f"{self.name}={token[:_SHOWN_CHARACTERS]}" for token in unseen]

    def _unusable(self, reason: str) -> FeatureValueUnusable:
        allowed = "text, a number or a boolean"
        if self.kind == "multi_label":
            allowed += ", or a list of these"
        return FeatureValueUnusable(f"feature {self.name!r}: {reason}; give {allowed}")


@dataclass(eq=False, repr=False)
class NumberColumn(Stored):
    """A `numerical` column. It clamps values to the training range and standardizes them by mean and deviation."""

    kind: ClassVar[Literal["numerical"]] = "numerical"

    name: str
    _: KW_ONLY
    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def fit(cls, name: str, values: NDArray[np.float64]) -> NumberColumn:
        """Build the column from the training values, (n,). Values that are not finite count as missing."""
        finite = values[np.isfinite(values)]
        if not len(finite):
            return cls(name, mean=0.0, deviation=0.0, low=0.0, high=0.0)
        # Numbers near the largest float64 overflow in the mean. Such a column counts as constant below.
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(finite.mean()), float(finite.std())
        if not math.isfinite(deviation):
            mean = deviation = 0.0
        return cls(name, mean=mean, deviation=deviation, low=float(finite.min()), high=float(finite.max()))

    @property
    def width(self) -> int:
        """Return 1, or 0 for a column that does not vary."""
        # Rounding gives equal values a deviation just above 0, by which nothing must be divided.
        return int(self.deviation > LEAST_DEVIATION * max(abs(self.mean), 1.0))

    def standardize(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardized values, (n,), of a column that varies. A value that is not finite becomes 0, the mean."""
        # Clamped, because a value far outside would outweigh all other features of the item.
        standard = (np.clip(values, self.low, self.high) - self.mean) / self.deviation
        return np.where(np.isfinite(values), standard, 0.0)

    def read(self, value: object) -> tuple[Value, list[str]]:
        """Return the position and the standardized value, and an empty list of unknowns.

        A column that does not vary gives NOTHING. Raises FeatureValueUnusable for a value that is not a finite number
        or far out of the training range.
        """
        number = self._number(value)
        if not self.width:
            return NOTHING, []
        clamped = min(max(number, self.low), self.high)
        return (np.zeros(1, dtype=np.intp), np.array([(clamped - self.mean) / self.deviation])), []

    def _number(self, value: object) -> float:
        if not isinstance(value, int | float):  # a boolean is an int: 1 or 0
            raise FeatureValueUnusable(f"feature {self.name!r}: {kind_of(value)} is not a number; give one or null")
        try:
            number = float(value)
        except OverflowError:  # a whole number above 1.8e308
            number = math.inf
        if not math.isfinite(number):
            raise FeatureValueUnusable(f"feature {self.name!r}: the value is not a finite number")
        farthest = FARTHEST_RANGES * (self.high - self.low)
        if self.width and not self.low - farthest <= number <= self.high + farthest:
            raise FeatureValueUnusable(
                f"feature {self.name!r}: the value lies more than {FARTHEST_RANGES:g} training ranges"
                f" outside {self.low:g} to {self.high:g}"
            )
        return number


Column = TokenColumn | NumberColumn | TextColumn | VectorColumn


@dataclass(eq=False, repr=False)
class SideEncoder(Stored):
    """Turns the features of one user or item into a vector of `dim` components, the last of which is the constant 1."""

    encoders: tuple[Column, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the declared columns, in order."""
        return tuple(column.name for column in self.encoders)

    @property
    def dim(self) -> int:
        return sum(column.width for column in self.encoders) + 1

    @property
    def reads_characters(self) -> bool:
        """Return whether any column splits texts into runs of characters, which takes long for long texts."""
        return any(isinstance(column, TextColumn) and column.analyzer == "char" for column in self.encoders)

    def ready(self) -> None:
        """Compute the derived data of the columns."""
        for column in self.encoders:
            if isinstance(column, TextColumn):
                column.ready()

    def encode(self, features: Mapping[str, object]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """Return the result of `encode_sparse`, with the vector as an array, (dim,)."""
        encoded, ignored = self.encode_sparse(features)
        return encoded.dense(), ignored

    def encode_sparse(self, features: Mapping[str, object]) -> tuple[Encoded, tuple[str, ...]]:
        """Return the vector without its zeros, and the ignored features, for the answer. A value of None is missing.

        Ignored features are first the keys that name no declared column, in the order of the request. Then come the
        values that training did not see or did not keep, as `column=value`. For a text column it is the number of
        unknown words, as "column: 3 words".

        Raises FeatureValueUnusable, which names the column, for a value of a wrong kind or far out of range.
        """
        places, values, ignored = [], [], []
        start = 0
        for column in self.encoders:
            value = features.get(column.name)
            if value is not None:
                (own_places, own_values), unseen = column.read(value)
                places.append(start + own_places)
                values.append(own_values)
                ignored += unseen
            start += column.width
        encoded = Encoded.at([*places, np.array([start])], [*values, np.ones(1)], self.dim)
        declared = self.columns
        return encoded, (*(key for key in features if key not in declared), *ignored)


@dataclass(eq=False, repr=False)
class FeatureState(Stored):
    """The feature encoders of a model for users and items. None: the model does not read features of that side.

    `version` is the FEATURE_VERSION of the training.
    """

    version: int
    user: SideEncoder | None
    item: SideEncoder | None
