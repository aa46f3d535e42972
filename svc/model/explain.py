"""Explain why an item is recommended, for models whose score is a sum of contributions from the user's profile.

A share is a contribution divided by the sum of all contributions that raise the score. Positive shares are within 0..1
and add up to 1 together with the rest. Contributions that lower the score have negative shares and are listed apart.
Contributions that have no name to show, such as the contribution of the constant feature, belong to the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.columns.text_column import TextColumn
from svc.model.columns.vector_column import VectorColumn
from svc.model.features import SideEncoder, TokenColumn

Matrix = NDArray[np.float64]
Source = Literal["user", "item", "ranker", "popularity"]
"""A source of addends beside interactions: features of the user, features of items, the ranker, or popularity."""
MOST_EXPLAINED = 5000
"""Feature vectors up to this length are explained as a whole."""
_ROUNDING = 1e-9
"""If a score exceeds the sum of its contributions by less than this share of their absolute sum, this is rounding."""


class Contributions(NamedTuple):
    """The addends of the scores of m items, by their sources.

    `of_columns`, (m, s), are the addends of the s interactions of the query, whose item columns are `columns`, (s,).
    The last `n_disliked` of the interactions are dislikes. `others` has the addends of other sources, (m, f) each. The
    features of the user and of items have a column for each of the `explained_places`, popularity as a part of a blend
    has one, and the ranker has one for each of the feature groups in `groups`.
    """

    columns: NDArray[np.int32]
    of_columns: Matrix
    n_disliked: int = 0
    others: Mapping[Source, Matrix] = MappingProxyType({})
    groups: tuple[str, ...] = ()


class Disliked(int):
    """The column of a disliked item, as a reason."""


class PopularityReason(str):
    """Popularity as a reason. Its own type distinguishes it from a feature with the same text."""

    __slots__ = ()


Reasons = tuple[tuple[int | str, float], ...]
"""Item columns or feature texts, each with its share."""


class Because(NamedTuple):
    """The strongest reasons for the rank of one item.

    `rest` is the share of all positive reasons that are not in `reasons`. `in_spite_of` are the strongest negative
    reasons.
    """

    reasons: Reasons
    rest: float
    in_spite_of: Reasons = ()


_POPULARITY = PopularityReason("popular")
POPULAR = Because(((_POPULARITY, 1.0),), 0.0)
"""The explanation for models that give every user the same ranking."""


def reasons_of(
    contributions: Contributions,
    scores: NDArray[np.float64],
    most: int,
    user_names: list[str | None],
    item_names: list[str | None],
) -> tuple[Because, ...]:
    """Return for each item the `most` strongest reasons for it and the `most` strongest against it, strongest first.

    `user_names` and `item_names` are the names of the explained places. A place of name None is not listed.
    """
    columns = contributions.columns.tolist()
    liked = len(columns) - contributions.n_disliked
    names: list[int | str | None] = [*columns[:liked], *map(Disliked, columns[liked:])]
    parts, others = [contributions.of_columns], contributions.others
    named: dict[Source, Sequence[str | None]] = {"user": user_names, "item": item_names, "ranker": contributions.groups}
    named["popularity"] = [_POPULARITY]
    for source in filter(others.__contains__, named):
        parts.append(others[source])
        names += named[source]
    table = np.concatenate(parts, axis=1)
    return tuple(_because(row, float(score), names, most) for row, score in zip(table, scores, strict=True))


def _because(row: NDArray[np.float64], score: float, names: list[int | str | None], most: int) -> Because:
    # The score may hold addends without a name. Those that lower it are ignored, as shares are of what raises it.
    unnamed = score - float(row.sum())
    in_favour = float(row.sum(where=row > 0))
    if unnamed > _ROUNDING * float(np.abs(row).sum()):
        in_favour += unnamed
    if in_favour == 0:
        return Because((), 0.0)
    order = np.argsort(-np.abs(row), kind="stable").tolist()
    shares = [(name, float(row[at]) / in_favour) for at in order if row[at] and (name := names[at]) is not None]
    shown = tuple(islice((reason for reason in shares if reason[1] > 0), most))
    against = tuple(islice((reason for reason in shares if reason[1] < 0), most))
    # At least 0, because rounding may take the sum of the shares just above 1.
    return Because(shown, max(0.0, 1.0 - sum(share for _, share in shown)), against)


def explained_places(vectors: Sequence[Encoded]) -> NDArray[np.intp]:
    """Return the places, ascending, at which the addends of feature vectors of one side are computed.

    These are all places if the vectors are no longer than `MOST_EXPLAINED`. Otherwise they are the places that are
    non-zero in any vector, because the thousands of other places add nothing.
    """
    dim = vectors[0].dim
    if dim <= MOST_EXPLAINED:
        return np.arange(dim)
    return np.unique(np.concatenate([vector.places for vector in vectors]))


def feature_names(encoder: SideEncoder | None, vectors: Sequence[Encoded]) -> list[str | None]:
    """Return the names of the explained places of encoded vectors, such as `genres=Comedy`, `title=sea` or `age=34`.

    The constant and the dimensions of `vector` columns have the name None. The number of a `numerical` column is part
    of the name only if there is a single vector, because several vectors share a place but differ in the number.
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
