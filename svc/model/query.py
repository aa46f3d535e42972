"""What a ranking is asked for and what comes back, in rows and columns of the training matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_ITEMS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


class Encoded(NamedTuple):
    """An encoded feature vector without its zeros: a batch of requests may describe thousands of items.

    `places`, (z,), are those of the `values`, (z,), among `dim`.
    """

    places: NDArray[np.intp]
    values: NDArray[np.float64]
    dim: int

    @classmethod
    def of(cls, vector: NDArray[np.float64]) -> Encoded:
        places = np.flatnonzero(vector)
        return cls(places, vector[places], len(vector))

    def dense(self) -> NDArray[np.float64]:
        vector = np.zeros(self.dim)
        vector[self.places] = self.values
        return vector


class Query(NamedTuple):
    """One ranking to make. Exactly one of `user`, `seeds`/`seed_features` or `user_features` leads it.

    `user` is a row of the training matrix: its history is the profile. `seeds` are known item columns,
    (s,) int32, and `seed_features` describe items never seen: together they are the history of an imagined
    user. `user_features` is an encoded vector, (user dim,) float64: alone a cold start, beside seeds a prior.
    `exclude` are item columns that must not come back, (e,) int32; unless `include_seen`, the history of `user`
    must not either. `limit` is the most items to return.
    """

    limit: int
    user: int = -1
    seeds: NDArray[np.int32] = NO_ITEMS
    seed_features: tuple[Encoded, ...] = ()
    user_features: NDArray[np.float64] | None = None
    exclude: NDArray[np.int32] = NO_ITEMS
    include_seen: bool = False


class Ranking(NamedTuple):
    """Item columns, (k,) int32, by falling score, and their scores, (k,) float64. Ties: lower column first."""

    items: NDArray[np.int32]
    scores: NDArray[np.float64]


class Prepared(NamedTuple):
    """A query, with the feature keys of the request that named no declared column."""

    query: Query
    ignored_features: tuple[str, ...]
