"""Features of users and items as vectors: the same rules when a model is trained and when it answers.

A side's vector holds, in the order of its columns, one place for each token of a `categorical` or `multi_label`
column (1 where the value is or contains the token), one for a `numerical` column that varies (its standardized
value), and at the end the constant 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from svc.errors import FeatureValueUnusable
from svc.model.ids import IdTable
from svc.model.stored import Stored

FEATURE_VERSION = 1
"""Version of these rules; a server refuses artifacts that were encoded by others."""

_SHOWN_CHARACTERS = 256
LEAST_DEVIATION = 1e-8
"""A deviation below this times max(|mean|, 1) is rounding noise: the column counts as constant."""
FARTHEST_RANGES = 10.0
"""A value further outside the training range than this many times its width is refused as a mistake."""

Value = tuple[NDArray[np.intp], NDArray[np.float64]]
_NOTHING: Value = (np.empty(0, dtype=np.intp), np.empty(0))


def token_text(value: object) -> str | None:
    """The token that a scalar stands for; None when it is missing: null, NaN or blank.

    Text stands for itself without surrounding blanks, a whole number for its decimal digits, whether it came
    as 7 or as 7.0, and a boolean for "true" or "false". Raises TypeError for anything but a scalar.
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
    raise TypeError(f"a {type(value).__name__} is not a scalar")


class TokenColumn(Stored):
    """A `categorical` or `multi_label` column: one place for each token of its vocabulary."""

    def __init__(
        self, name: str, kind: Literal["categorical", "multi_label"], tokens: IdTable, delimiter: str = "|"
    ) -> None:
        self.name = name
        self.kind = kind
        self.tokens = tokens
        self.delimiter = delimiter

    @property
    def width(self) -> int:
        return len(self.tokens)

    def split(self, value: object) -> list[str]:
        """The tokens of one value, known or not. Raises TypeError for a value of a wrong kind."""
        if self.kind == "categorical":
            parts: Sequence[object] = [value]
        elif isinstance(value, str):
            parts = value.split(self.delimiter) if self.delimiter else [value]
        else:
            parts = value if isinstance(value, list | tuple) else [value]
        texts = (token_text(part) for part in parts)
        return list(dict.fromkeys(text for text in texts if text is not None))

    def encode(self, value: object) -> Value:
        """The places of the known tokens, and a 1 for each; tokens that training did not see or pruned are left out."""
        return self.read(value)[0]

    def read(self, value: object) -> tuple[Value, list[str]]:
        """As `encode`, and the tokens that were left out."""
        try:
            texts = self.split(value)
        except TypeError as error:
            raise self._unusable(str(error)) from None
        except ValueError:
            raise self._unusable("the number has too many digits") from None
        if not texts:
            return _NOTHING, []
        places = self.tokens.indices(texts)
        known = places[places >= 0].astype(np.intp)
        unseen = [] if len(known) == len(texts) else [texts[place] for place in np.flatnonzero(places < 0)]
        return (known, np.ones(len(known))), unseen

    def _unusable(self, reason: str) -> FeatureValueUnusable:
        allowed = "text, a number or a boolean"
        if self.kind == "multi_label":
            allowed += ", or a list of these"
        return FeatureValueUnusable(f"feature {self.name!r}: {reason}; give {allowed}")


class NumberColumn(Stored):
    """A `numerical` column: training mean and deviation standardize it, the training range clamps it."""

    kind: Literal["numerical"] = "numerical"

    def __init__(self, name: str, *, mean: float, deviation: float, low: float, high: float) -> None:
        self.name = name
        self.mean = mean
        self.deviation = deviation
        self.low = low
        self.high = high

    @classmethod
    def fit(cls, name: str, values: NDArray[np.float64]) -> NumberColumn:
        """From the training values, (n,); those that are not finite are missing."""
        finite = values[np.isfinite(values)]
        if not len(finite):
            return cls(name, mean=0.0, deviation=0.0, low=0.0, high=0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(finite.mean()), float(finite.std())
        if not math.isfinite(deviation):
            mean = deviation = 0.0
        return cls(name, mean=mean, deviation=deviation, low=float(finite.min()), high=float(finite.max()))

    @property
    def width(self) -> int:
        """1, or 0 for a column that does not vary."""
        return int(self.deviation > LEAST_DEVIATION * max(abs(self.mean), 1.0))

    def standardize(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardized values of a column that varies, (n,); 0, the mean, where one is not finite."""
        standard = (np.clip(values, self.low, self.high) - self.mean) / self.deviation
        return np.where(np.isfinite(values), standard, 0.0)

    def encode(self, value: object) -> Value:
        """The place and the standardized value; nothing for the mean, which is also what null stands for."""
        if value is None:
            return _NOTHING
        number = self._number(value)
        if not self.width:
            return _NOTHING
        clamped = min(max(number, self.low), self.high)
        return np.zeros(1, dtype=np.intp), np.array([(clamped - self.mean) / self.deviation])

    def _number(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FeatureValueUnusable(
                f"feature {self.name!r}: a {type(value).__name__} is not a number; give one or null"
            )
        try:
            number = float(value)
        except OverflowError:
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


Column = TokenColumn | NumberColumn


class SideEncoder(Stored):
    """Turns the features of one user or item into a vector of `dim` places, the last of which is the constant 1."""

    def __init__(self, encoders: tuple[Column, ...]) -> None:
        self.encoders = encoders

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the declared columns, in order."""
        return tuple(column.name for column in self.encoders)

    @property
    def dim(self) -> int:
        return sum(column.width for column in self.encoders) + 1

    def encode(self, features: Mapping[str, object]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """The vector, (dim,), and the features that were ignored.

        Those are keys that name no declared column, in the order of the request, then values that training did not see
        or did not keep, as `column=value`.

        Raises FeatureValueUnusable, naming the column, for a value of a wrong kind or far out of range.
        """
        vector = np.zeros(self.dim)
        vector[-1] = 1.0
        start = 0
        unseen: list[str] = []
        for column in self.encoders:
            value = features.get(column.name)
            if value is not None:
                if isinstance(column, TokenColumn):
                    (places, values), tokens = column.read(value)
                    unseen += [f"{column.name}={token[:_SHOWN_CHARACTERS]}" for token in tokens]
                else:
                    places, values = column.encode(value)
                vector[start + places] = values
            start += column.width
        declared = self.columns
        return vector, (*(key for key in features if key not in declared), *unseen)


class FeatureState(Stored):
    """The encoders of a model, by side; None where features of that side cannot be scored."""

    def __init__(self, version: int, user: SideEncoder | None, item: SideEncoder | None) -> None:
        self.version = version
        self.user = user
        self.item = item
