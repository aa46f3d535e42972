"""Models whose score is the inner product of a user vector and an item vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.coldstart import LeastSquares
from svc.model.history import History
from svc.model.query import Query, Ranking
from svc.model.recommenders.base import Side, left_out
from svc.model.recommenders.factor_index import FactorIndex, gram
from svc.model.stored import Stored

Matrix = NDArray[np.float64]
CELLS_AT_ONCE = 1 << 19
"""Numbers of the seeds' vectors that are worked on at once, so that a batch of long seed lists takes little memory."""


class FactorScorer(Stored, ABC):
    """User vectors, (n_users, K) float32 in training order, and the index of the item vectors."""

    kind: ClassVar[str] = "factors"
    reads_values: ClassVar[bool] = False

    def __init__(self, users: NDArray[np.float32], index: FactorIndex) -> None:
        self.users = users
        self.index = index

    @property
    def n_items(self) -> int:
        return self.index.n_items

    def ready(self) -> None:
        self.index.ready()

    def feature_dim(self, side: Side) -> int | None:  # noqa: ARG002
        return None

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        if len(queries) == 1:
            (query,) = queries
            known_user = query.user >= 0
            vectors = self.users[[query.user]].astype(np.float64) if known_user else self.imagine(queries)
            return self.index.search(vectors, [query.limit], [left_out(query, history)])
        users = np.array([query.user for query in queries], dtype=np.intp)
        known = np.flatnonzero(users >= 0)
        vectors = np.empty((len(queries), self.users.shape[1]))
        vectors[known] = self.users[users[known]]
        if len(known) < len(queries):
            others = np.flatnonzero(users < 0)
            vectors[others] = self.imagine([queries[row] for row in others.tolist()])
        banned = [left_out(query, history) for query in queries]
        return self.index.search(vectors, [query.limit for query in queries], banned)

    @abstractmethod
    def imagine(self, queries: Sequence[Query]) -> Matrix:
        """Vectors, (B, K), of users who are not in the training data but described by seeds or features."""


class IALSScorer(FactorScorer):
    """Implicit alternating least squares: an imagined user stands where training would have put it."""

    def __init__(self, users: NDArray[np.float32], index: FactorIndex, placing: LeastSquares) -> None:
        super().__init__(users, index)
        self.placing = placing

    def ready(self) -> None:
        super().ready()
        user_gram = None if self.placing.item_weights is None else gram(self.users)
        self.placing.ready(gram(self.index.factors), user_gram)

    def feature_dim(self, side: Side) -> int | None:
        return self.placing.feature_dim(side)

    def imagine(self, queries: Sequence[Query]) -> Matrix:
        groups = _alike(queries)
        if len(queries) == 1:
            return self._place(queries, *next(iter(groups)))
        vectors = np.empty((len(queries), self.users.shape[1]))
        for (seeds, prior), rows in groups.items():
            step = max(1, CELLS_AT_ONCE // (seeds * vectors.shape[1] + 1))
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                vectors[part] = self._place([queries[row] for row in part], seeds, prior)
        return vectors

    def _place(self, queries: Sequence[Query], seeds: int, prior: bool) -> Matrix:
        """Vectors of queries that all have that many seeds, and features of the user or not."""
        features = np.array([query.user_features for query in queries], dtype=np.float64) if prior else None
        if features is not None and not seeds:
            return self.placing.users_from_features(features)
        return self.placing.users_from_seeds(self._seed_vectors(queries), features)

    def _seed_vectors(self, queries: Sequence[Query]) -> Matrix:
        """Item vectors of queries with as many seeds each, (B, S, K)."""
        if not any(query.seed_features for query in queries):
            columns = np.array([query.seeds for query in queries], dtype=np.int32)
            return self.index.vectors(columns)
        return np.array([self._described(query) for query in queries])

    def _described(self, query: Query) -> Matrix:
        known = self.index.vectors(query.seeds)
        if not query.seed_features:
            return known
        described = np.array([encoded.dense() for encoded in query.seed_features])
        return np.concatenate([known, self.placing.items_from_features(described)])


def _alike(queries: Sequence[Query]) -> dict[tuple[int, bool], list[int]]:
    """Places of the queries by their number of seeds and whether they have features of the user."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for place, query in enumerate(queries):
        n_seeds = len(query.seeds) + len(query.seed_features)
        groups.setdefault((n_seeds, query.user_features is not None), []).append(place)
    return groups


class SVDScorer(FactorScorer):
    """Truncated SVD: an imagined user is the projection of its history."""

    def imagine(self, queries: Sequence[Query]) -> Matrix:
        return np.array([self.index.vectors(query.seeds).sum(axis=0) for query in queries])


class BPRScorer(FactorScorer):
    """Bayesian personalized ranking, with item biases as the last component of the item vectors.

    It cannot place new users; seeds are answered by the cosine between their mean direction and the items' vectors.
    """

    def ready(self) -> None:
        self.index.ready(cosine=True)

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        """Known users by inner product and bias, seeds by cosine."""
        rankings: dict[int, Ranking] = {}
        for related in (False, True):
            places = [place for place, query in enumerate(queries) if (query.user < 0) == related]
            if places:
                chosen = [queries[place] for place in places]
                rankings.update(zip(places, self._rank(chosen, history, cosine=related), strict=True))
        return [rankings[place] for place in range(len(queries))]

    def _rank(self, queries: Sequence[Query], history: History, *, cosine: bool) -> list[Ranking]:
        components = self.users.shape[1]
        vectors = np.zeros((len(queries), components + 1))
        if cosine:
            vectors[:, :components] = self.imagine(queries)
        else:
            vectors[:, :components] = self.users[[query.user for query in queries]]
            vectors[:, components] = 1.0
        banned = [left_out(query, history) for query in queries]
        return self.index.search(vectors, [query.limit for query in queries], banned, cosine=cosine)

    def imagine(self, queries: Sequence[Query]) -> Matrix:
        """The mean directions of the seeds, scaled to length 1 so that scores are cosines."""
        return np.array([_mean_direction(self.index.vectors(query.seeds)[:, :-1]) for query in queries])


def _mean_direction(vectors: Matrix) -> NDArray[np.float64]:
    """(K,), of length 1, or zero if nothing has a direction."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    total: NDArray[np.float64] = (vectors[norms > 0] / norms[norms > 0, np.newaxis]).sum(axis=0)
    length = float(np.sqrt(total @ total))
    return total / length if length else total
