"""Explains why an item is recommended, for models whose score is a sum of contributions from the user's profile.

Shares are contributions divided by the score, so they and the rest add up to 1. Contributions that have no name to
show, such as that of the constant feature, are part of the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.features import SideEncoder, TokenColumn

Matrix = NDArray[np.float64]


class Contributions(NamedTuple):
    """Addends of the scores of m items: of s interactions, (m, s), and of the places of feature vectors, (m, f).

    `columns`, (s,), are those of the interactions. Feature places are those of the encoders of either side; None: the
    query has no features of that side.
    """

    columns: NDArray[np.int32]
    of_columns: Matrix
    of_user_features: Matrix | None = None
    of_item_features: Matrix | None = None


class Because(NamedTuple):
    """The strongest reasons for one item, each an item column or the text of a feature, with its share."""

    reasons: tuple[tuple[int | str, float], ...]
    rest: float


POPULAR = Because((("popular", 1.0),), 0.0)
"""The explanation for models that give every user the same ranking."""


def reasons_of(
    found: Contributions,
    scores: NDArray[np.float64],
    most: int,
    user_names: list[str | None],
    item_names: list[str | None],
) -> tuple[Because, ...]:
    """The `most` strongest reasons of each item by size, without zeros."""
    names: list[int | str | None] = [*found.columns.tolist()]
    parts = [found.of_columns]
    for part, own in ((found.of_user_features, user_names), (found.of_item_features, item_names)):
        if part is not None:
            parts.append(part)
            names += own
    table = np.concatenate(parts, axis=1)
    return tuple(_because(row, float(score), names, most) for row, score in zip(table, scores, strict=True))


def _because(row: NDArray[np.float64], score: float, names: list[int | str | None], most: int) -> Because:
    if score == 0:
        return Because((), 0.0)
    order = np.argsort(-np.abs(row), kind="stable").tolist()
    shown: list[tuple[int | str, float]] = []
    for place in order:
        name = names[place]
        if row[place] == 0 or len(shown) == most:
            break
        if name is not None:
            shown.append((name, float(row[place]) / score))
    return Because(tuple(shown), 1.0 - sum(share for _, share in shown))


def feature_names(encoder: SideEncoder | None, vector: NDArray[np.float64] | None) -> list[str | None]:
    """The name of each place of an encoded vector, such as `genres=Comedy` or `age=34`; None for the constant."""
    if encoder is None:
        return []
    names: list[str | None] = []
    for column in encoder.encoders:
        if isinstance(column, TokenColumn):
            names += [f"{column.name}={token}" for token in column.tokens.all()]
        elif column.width:
            value = None if vector is None else vector[len(names)] * column.deviation + column.mean
            names.append(column.name if value is None else f"{column.name}={round(float(value), 9):g}")
    return [*names, None]
