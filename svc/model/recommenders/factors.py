"""Models that score by the inner product of a user vector and an item vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.coldstart import LeastSquares
from svc.model.columns.feature_values import Encoded
from svc.model.explain import Contributions, Source
from svc.model.history import History
from svc.model.ranking.query import Query, Ranking, Trained
from svc.model.ranking.rerank import Similar
from svc.model.ranking.steps import Steps
from svc.model.recommenders.base import Scorer, Side, excluded_columns, grouped, rank_in_groups
from svc.model.recommenders.factor_index import FactorIndex, blocks, gram
from svc.model.recommenders.products import product_of_one, row_sums
from svc.model.recommenders.scan import Layout, Wanted, error_bound, scan
from svc.model.recommenders.similar import cosines
from svc.model.recommenders.users import Moments, UserScores, moments_of

Matrix = NDArray[np.float64]
CELLS_AT_ONCE = 1 << 19
"""The most numbers in seed vectors that are processed at once. Bounds the memory for a batch of long histories."""


@dataclass(eq=False, repr=False)
class FactorScorer(Scorer):
    """Base class of factor models. `users`, (n_users, K) float32, are the user vectors, `index` the item vectors.

    Values of interactions change the vectors computed from histories, but not the trained vectors of known users.
    """

    kind: ClassVar[str] = "factors"
    explains_by_profile: ClassVar[bool] = True

    users: NDArray[np.float32]
    index: FactorIndex

    @property
    def n_items(self) -> int:
        return self.index.n_items

    def ready(self) -> None:
        self.index.ready()

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        return self.search(queries, self.vectors(queries), history)

    def vectors(self, queries: Sequence[Query]) -> Matrix:
        """Return the user vectors for the queries, (B, K): the trained vectors of known users, else `embed_cold`."""
        if len(queries) == 1:
            (query,) = queries
            return self.users[[query.user]].astype(np.float64) if query.user >= 0 else self.embed_cold(queries)
        users = np.array([query.user for query in queries], dtype=np.intp)
        trained = np.flatnonzero(users >= 0)
        vectors = np.empty((len(queries), self.users.shape[1]))
        vectors[trained] = self.users[users[trained]]
        if len(trained) < len(queries):
            unseen = np.flatnonzero(users < 0)
            vectors[unseen] = self.embed_cold([queries[row] for row in unseen.tolist()])
        return vectors

    def search(self, queries: Sequence[Query], vectors: Matrix, history: History) -> list[Ranking]:
        """Return the rankings for the queries, whose user vectors are `vectors`, (B, K)."""
        return scan(self.index.layout, vectors, [wanted_of(query, history) for query in queries])

    def scores_of_users(self, history: History) -> Callable[[int], UserScores]:  # noqa: ARG002
        # No closure, because workers get this function by pickle.
        return partial(self._scores_of_column, self.scores_towards())

    def _scores_of_column(self, scores_towards: Callable[[NDArray[np.float64]], UserScores], column: int) -> UserScores:
        return scores_towards(self.index.vectors(np.array([column], dtype=np.int32))[0])

    def scores_towards(self) -> Callable[[NDArray[np.float64]], UserScores]:
        """Return a function that maps the vector of an item, (K,), to its scores for all training users."""
        squares = [np.vecdot(vectors, vectors).max(initial=0.0) for vectors in self._blocks_of_users()]
        return partial(self._scores_towards, float(np.sqrt(max(squares))))

    def _scores_towards(self, longest: float, vector: NDArray[np.float64]) -> UserScores:
        """Return all users' scores of the item with this `vector`, (K,), and a bound of their error.

        `longest` is the largest norm of a user vector, from which the bound follows.
        """
        components = self.users.shape[1]
        # float32 for all users, with a bound of the error. Only users who may be among the best are scored exactly.
        look = product_of_one(vector[:components].astype(np.float32), self.users).astype(np.float64)
        error = error_bound(len(vector), longest * float(np.linalg.norm(vector)))
        return UserScores(
            look + vector[components:].sum(),
            error,
            lambda rows: row_sums(_with_bias(self.users[rows], len(vector)) * vector),
        )

    def moments_of_users(self, history: History) -> Moments:  # noqa: ARG002
        mean, covariance = self.index.moments()
        parts = [(vectors @ mean, np.vecdot(vectors @ covariance, vectors)) for vectors in self._blocks_of_users()]
        means, variances = (np.concatenate(own) for own in zip(*parts, strict=True))
        return moments_of(means, variances)

    def _blocks_of_users(self) -> Iterator[Matrix]:
        """Yield the vectors of all training users as `_with_bias` returns them."""
        for part in blocks(self.users):
            yield _with_bias(part, self.index.factors.shape[1])

    def similar(self, items: NDArray[np.int32]) -> Steps[Similar]:
        """Return cosines of the item vectors."""
        yield
        return cosines(self.index.vectors(items))

    @abstractmethod
    def embed_cold(self, queries: Sequence[Query]) -> Matrix:
        """Return vectors, (B, K), of users outside the training data, described by seeds or features."""


def _with_bias(users: NDArray[np.float32], components: int) -> Matrix:
    """Return user vectors in float64, (m, components), padded with a 1 if item vectors have a bias component."""
    # The bias of an item counts once for every user, as if each user vector ended with a 1.
    vectors = np.ones((len(users), components))
    vectors[:, : users.shape[1]] = users
    return vectors


@dataclass(eq=False, repr=False)
class IALSScorer(FactorScorer):
    """Implicit alternating least squares. The vector of an unseen user is the exact solution of least squares."""

    STORED_NAMES: ClassVar[dict[str, str]] = {"least_squares": "placing"}

    least_squares: LeastSquares

    def ready(self) -> None:
        super().ready()
        # Needed only for items that features describe, and it reads the vectors of all users.
        user_gram = None if self.least_squares.item_weights is None else self._gram_of_users()
        self.least_squares.ready(gram(self.index.factors), user_gram)

    def _gram_of_users(self) -> NDArray[np.float64]:
        return gram(self.users)

    def feature_dim(self, side: Side) -> int | None:
        return self.least_squares.feature_dim(side)

    def embed_cold(self, queries: Sequence[Query]) -> Matrix:
        groups = grouped(queries, _Kind.of)
        if len(queries) == 1:
            return self._place(queries, next(iter(groups)))
        vectors = np.empty((len(queries), self.users.shape[1]))
        for kind, rows in groups.items():
            step = max(1, CELLS_AT_ONCE // ((kind.seeds + kind.dislikes) * vectors.shape[1] + 1))
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                vectors[part] = self._place([queries[row] for row in part], kind)
        return vectors

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions:  # noqa: ARG002
        """Return the addends of scores by the vector that is solved from the query's history.

        Dislikes have no addends, but change the addends of the other items. See Hu, Koren and Volinsky, "Collaborative
        Filtering for Implicit Feedback Datasets" (2008), section 5.
        """
        return self.contributions_to(query, self.index.vectors(items))

    def contributions_to(self, query: Query, vectors: Matrix) -> Contributions:
        """Return `contributions` for items with these vectors, (m, K)."""
        of_seeds, of_described, of_features = self.least_squares.addends(
            vectors,
            self.index.vectors(query.seeds),
            query.seed_weights,
            query.seed_features,
            None if query.user_features is None else Encoded.of(query.user_features),
            dislikes=None
            if query.dislike_weights is None
            else (self.index.vectors(query.dislikes), query.dislike_weights),
        )
        others: dict[Source, Matrix | None] = {"user": of_features, "item": of_described}
        given = {source: addends for source, addends in others.items() if addends is not None}
        return Contributions(query.seeds, of_seeds, others=given)

    def _place(self, queries: Sequence[Query], kind: _Kind) -> Matrix:
        """Return the user vectors of queries of one `kind`."""
        features = np.array([query.user_features for query in queries], dtype=np.float64) if kind.described else None
        # Features alone need no system of equations, only one product with a map made at load time.
        if features is not None and not kind.seeds and not kind.dislikes:
            return self.least_squares.users_from_features([Encoded.of(vector) for vector in features])
        priors = None
        if kind.trained and len(self.users):
            priors = np.array([self._prior_of(query.trained) for query in queries if query.trained is not None])
        weights = np.array([query.seed_weights for query in queries]) if kind.weighted else None
        against = None
        if kind.dislikes:
            columns = np.array([query.dislikes for query in queries], dtype=np.int32)
            against = self.index.vectors(columns), np.array([query.dislike_weights for query in queries])
        seeds = self._seed_vectors(queries)
        return self.least_squares.users_from_seeds(seeds, features, weights, against, priors=priors)

    def _prior_of(self, trained: Trained) -> NDArray[np.float64]:
        """Return the prior of a training user, which the artifact lacks, from the user's vector and history."""
        profile = trained.profile
        seeds = self.index.vectors(profile.columns)
        return self.least_squares.prior_of(self.users[trained.user], seeds, profile.weights)

    def _seed_vectors(self, queries: Sequence[Query]) -> Matrix:
        """Return the item vectors of the seeds of queries that all have S seeds, (B, S, K)."""
        # One lookup for the whole batch. Items known by features alone have no row to look up.
        if not any(query.seed_features for query in queries):
            columns = np.array([query.seeds for query in queries], dtype=np.int32)
            return self.index.vectors(columns)
        from_features = self.least_squares.items_from_features
        pairs = [(self.index.vectors(query.seeds), from_features(query.seed_features)) for query in queries]
        return np.array([np.concatenate(known_and_unseen) for known_and_unseen in pairs])


class ColdStartScorer(IALSScorer):
    """iALS for users outside the training data, so it stores no user vectors.

    `user_gram`, UᵀU of the trained user vectors, (K, K) float64, is needed to compute item vectors from features.
    """

    def __init__(self, index: FactorIndex, least_squares: LeastSquares, user_gram: NDArray[np.float64]) -> None:
        super().__init__(np.empty((0, index.factors.shape[1]), dtype=np.float32), index, least_squares)
        self.user_gram = user_gram

    @classmethod
    def of(cls, scorer: IALSScorer) -> ColdStartScorer:
        """Return the part of `scorer` that answers for users outside the training data."""
        return cls(scorer.index, scorer.least_squares, gram(scorer.users))

    def _gram_of_users(self) -> NDArray[np.float64]:
        return self.user_gram


def wanted_of(query: Query, history: History) -> Wanted:
    """Return the limit of a query, and the items that it excludes and allows."""
    return Wanted(query.limit, excluded_columns(query, history), query.allowed, query.unordered)


class _Kind(NamedTuple):
    """The shape of a query: the numbers of seeds and dislikes, and the optional parts that it has.

    Queries of one kind are computed together, with arrays of one shape.
    """

    seeds: int
    described: bool
    weighted: bool
    dislikes: int
    trained: bool

    @classmethod
    def of(cls, query: Query) -> _Kind:
        return cls(
            len(query.seeds) + len(query.seed_features),
            query.user_features is not None,
            query.seed_weights is not None,
            len(query.dislikes),
            query.trained is not None,
        )


@dataclass(eq=False, repr=False)
class SVDScorer(FactorScorer):
    """Truncated SVD. The vector of a user outside the training data is the projection of the user's history.

    `scales`, (n_items,) float32 by column, multiply the item vectors in a projection. None: 1.
    """

    ALWAYS_STORED: ClassVar[frozenset[str]] = frozenset({"scales"})
    scales: NDArray[np.float32] | None = None

    def embed_cold(self, queries: Sequence[Query]) -> Matrix:
        return np.array([self._history_vectors(query)[1].sum(axis=0) for query in queries])

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions:  # noqa: ARG002
        columns, vectors = self._history_vectors(query)
        return Contributions(columns, self.index.vectors(items) @ vectors.T, n_disliked=len(query.dislikes))

    def _history_vectors(self, query: Query) -> tuple[NDArray[np.int32], Matrix]:
        """Return the columns of the history and of the dislikes, and their addends to the user vector, (h, K)."""
        columns, weights = query.concatenate_signed()
        vectors = self.index.vectors(columns)
        if self.scales is not None:
            vectors *= self.scales[columns, np.newaxis]
        return columns, vectors if weights is None else vectors * weights[:, np.newaxis]


class BPRScorer(FactorScorer):
    """Bayesian personalized ranking. The last component of each item vector is the bias of the item.

    It cannot compute the vector of a user outside the training data. Queries with seeds are answered by the cosine
    between the mean direction of the seeds and the item vectors.
    """

    explains_by_profile: ClassVar[bool] = False
    reads_dislikes: ClassVar[bool] = False

    _cosines: Layout

    def ready(self) -> None:
        super().ready()
        self._cosines = self.index.cosines()

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        """Return one ranking per query.

        Items are scored by inner product plus bias for a known user, and by cosine for seeds.
        """

        def rank(cosine: bool, some: Sequence[Query]) -> list[Ranking]:
            layout = self._cosines if cosine else self.index.layout
            # The last component of an item is its bias, which 1 adds to the score. Cosines ignore it.
            bias = np.full((len(some), 1), 0.0 if cosine else 1.0)
            vectors = np.concatenate([self.vectors(some), bias], axis=1)
            return scan(layout, vectors, [wanted_of(query, history) for query in some])

        # Products and cosines are scanned over different layouts.
        return rank_in_groups(queries, lambda query: query.user < 0, rank)

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions | None:  # noqa: ARG002
        """Return the addends of scores by the mean direction of the seeds.

        Returns None for a known user, because the vector was trained as a whole and is not a sum over the history.
        """
        if query.user >= 0:
            return None
        seeds, vectors = self.index.vectors(query.seeds)[:, :-1], self.index.vectors(items)[:, :-1]
        length = float(np.linalg.norm(_weigh(_directions(seeds), query).sum(axis=0)))
        addends = _directions(vectors) @ _weigh(_directions(seeds), query).T
        return Contributions(query.seeds, addends / length if length else addends)

    def similar(self, items: NDArray[np.int32]) -> Steps[Similar]:
        """Return cosines of the item vectors without their biases."""
        yield
        return cosines(self.index.vectors(items)[:, :-1])

    def embed_cold(self, queries: Sequence[Query]) -> Matrix:
        """Return the mean directions of the seeds, scaled to length 1 so that scores are cosines."""
        return np.array([_mean_direction(self.index.vectors(query.seeds)[:, :-1], query) for query in queries])


def _weigh(vectors: Matrix, query: Query) -> Matrix:
    """Return the vectors of the seeds, (s, K), times their weights."""
    return vectors if query.seed_weights is None else vectors * query.seed_weights[:, np.newaxis]


def _directions(vectors: Matrix) -> Matrix:
    """Return the rows scaled to length 1. Rows of zeros stay unchanged."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, np.newaxis]
    directions: Matrix = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return directions


def _mean_direction(vectors: Matrix, query: Query) -> NDArray[np.float64]:
    """Return the mean direction of the seeds, (K,), scaled to length 1, or zero if no seed has a direction."""
    total: NDArray[np.float64] = _weigh(_directions(vectors), query).sum(axis=0)
    length = float(np.sqrt(total @ total))
    return total / length if length else total
