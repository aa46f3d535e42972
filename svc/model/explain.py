"""Explains why an item is recommended, for models whose score is a sum of contributions from the user's profile.

Shares are contributions divided by the score, so they and the rest add up to 1. Contributions that have no name to
show, such as that of the constant feature, are part of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.columns.text_column import TextColumn
from svc.model.columns.vector_column import VectorColumn
from svc.model.features import SideEncoder, TokenColumn

Matrix = NDArray[np.float64]
MOST_EXPLAINED = 5000
"""Feature vectors up to this length are explained as a whole."""


class Contributions(NamedTuple):
    """Addends of the scores of m items: of s interactions, (m, s), and of the places of feature vectors, (m, f).

    `columns`, (s,), are those of the interactions. Feature places are the `explained_places` of either side; None: the
    query has no features of that side. The last `n_disliked` of the columns are dislikes. `of_popularity`, (m,), is
    what the popularity of the items adds, where that is a part. `of_groups`, (m, g), are those of the groups of the
    ranker's features, which `groups` names.
    """

    columns: NDArray[np.int32]
    of_columns: Matrix
    of_user_features: Matrix | None = None
    of_item_features: Matrix | None = None
    n_disliked: int = 0
    of_popularity: NDArray[np.float64] | None = None
    of_groups: Matrix | None = None
    groups: tuple[str, ...] = ()


class Disliked(int):
    """The column of an item that counts against others."""


class Popular(str):
    """Says that popularity adds to the score, which no feature of that name does."""

    __slots__ = ()


class Because(NamedTuple):
    """The strongest reasons for one item, each an item column or the text of a feature, with its share."""

    reasons: tuple[tuple[int | str, float], ...]
    rest: float


_POPULARITY = Popular("popular")
POPULAR = Because(((_POPULARITY, 1.0),), 0.0)
"""The explanation for models that give every user the same ranking."""


def reasons_of(
    contributions: Contributions,
    scores: NDArray[np.float64],
    most: int,
    user_names: list[str | None],
    item_names: list[str | None],
) -> tuple[Because, ...]:
    """The `most` strongest reasons of each item by size, without zeros."""
    columns = contributions.columns.tolist()
    liked = len(columns) - contributions.n_disliked
    names: list[int | str | None] = [*columns[:liked], *map(Disliked, columns[liked:])]
    parts = [contributions.of_columns]
    for part, own in (
        (contributions.of_user_features, user_names),
        (contributions.of_item_features, item_names),
        (contributions.of_groups, list(contributions.groups)),
    ):
        if part is not None:
            parts.append(part)
            names += own
    if contributions.of_popularity is not None:
        parts.append(contributions.of_popularity[:, np.newaxis])
        names.append(_POPULARITY)
    table = np.concatenate(parts, axis=1)
    return tuple(_because(row, float(score), names, most) for row, score in zip(table, scores, strict=True))


def _because(row: NDArray[np.float64], score: float, names: list[int | str | None], most: int) -> Because:
    if score == 0:
        return Because((), 0.0)
    order = np.argsort(-np.abs(row), kind="stable").tolist()
    shown: list[tuple[int | str, float]] = []
    for position in order:
        name = names[position]
        if row[position] == 0 or len(shown) == most:
            break
        if name is not None:
            shown.append((name, float(row[position]) / score))
    return Because(tuple(shown), 1.0 - sum(share for _, share in shown))


def explained_places(vectors: Sequence[Encoded]) -> NDArray[np.intp]:
    """The places of feature vectors of one side whose addends are computed, rising.

    All of them up to `MOST_EXPLAINED`; of longer vectors those where one is not zero: the others add nothing, and there
    are thousands of them for each item.
    """
    dim = vectors[0].dim
    if dim <= MOST_EXPLAINED:
        return np.arange(dim)
    return np.unique(np.concatenate([vector.places for vector in vectors]))


def feature_names(encoder: SideEncoder | None, vectors: Sequence[Encoded]) -> list[str | None]:
    """The names of the explained places of encoded vectors, such as `genres=Comedy`, `title=sea` or `age=34`.

    None for the constant and for the dimensions of vectors. Several items share places but not their numbers, which are
    named for a single one only.
    """
    if encoder is None or not vectors:
        return []
    value_at = dict(zip(vectors[0].places.tolist(), vectors[0].values.tolist(), strict=True))
    names: list[str | None] = []
    start, places = 0, explained_places(vectors)
    for column in encoder.encoders:
        own = places[(places >= start) & (places < start + column.width)] - start
        if isinstance(column, TokenColumn | TextColumn):
            words = column.tokens if isinstance(column, TokenColumn) else column.vocabulary
            texts = words.all() if len(own) == len(words) else [words.at(position) for position in own.tolist()]
            names += [f"{column.name}={text}" for text in texts]
        elif isinstance(column, VectorColumn):
            names += [None] * len(own)
        elif len(own):
            value = value_at.get(start, 0.0) * column.deviation + column.mean
            names.append(column.name if len(vectors) > 1 else f"{column.name}={round(value, 9):g}")
        start += column.width
    return [*names, None]
