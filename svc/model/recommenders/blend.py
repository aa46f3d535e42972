"""Models whose score is a weighted sum of the scores of other models, each divided by its deviation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.explain import Contributions
from svc.model.history import History
from svc.model.ranking.query import Query, Ranking
from svc.model.recommenders.base import Profile, Side, best_items, excluded_columns, is_few, profile
from svc.model.recommenders.blend_scan import (
    NormedLayout,
    Plan,
    choose_plan,
    default_plan,
    first_looks,
    scan_behind,
    scan_sum,
)
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import MANY_FROM, gram
from svc.model.recommenders.factor_scan import Wanted
from svc.model.recommenders.factors import IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.rounded import RoundedItems
from svc.model.stored import Stored

FactorPart = IALSScorer | SVDScorer
SumPart = NeighbourScorer | DenseWeightsScorer
Values = NDArray[np.float64]
PROBED, PROBED_LIMIT = 16, 10
"""Number of users whose rankings decide which scan is cheaper, and the limit of each of these rankings."""
SCORES_AT_ONCE, LEAST_AT_ONCE = 1 << 23, 32
"""Scores that are held in memory at once while several queries are ranked, 32 MiB of float32; but those of at least so
many queries, for which one product takes much less time than one for each."""


class BlendScorer(Stored):
    """Σ weight · score / deviation over the parts: at most one factor model, and any number of item-weight models.

    The deviation is that of a user's scores over all items. Those of the training users are stored, `deviations`,
    (parts, n_users) float64, the factor part first, as in `weights`; for others they follow from the covariance of the
    item vectors, or from the sums of item weights. Users given by features are scored by the factor part alone: the
    other parts know only items. `recencies`, in the order of `weights`, are there where the parts weigh histories
    differently; else every part sees them as they are weighed for all.
    """

    kind: ClassVar[str] = "blend"
    reads_values: ClassVar[bool] = True
    explains_by_profile: ClassVar[bool] = True

    recencies: tuple[float, ...] = ()

    _covariance: Values
    _norms: Values
    _plan: Plan
    _rounded: RoundedItems | None = None

    def __init__(
        self,
        factors: FactorPart | None,
        sums: tuple[SumPart, ...],
        weights: tuple[float, ...],
        deviations: Values,
    ) -> None:
        self.factors = factors
        self.sums = sums
        self.weights = weights
        self.deviations = deviations

    @classmethod
    def of(
        cls, factors: FactorPart | None, sums: Sequence[SumPart], weights: Sequence[float], history: History | None
    ) -> BlendScorer:
        """A blend with the deviations of the users of `history`, the training histories; None: not measured yet."""
        scorer = cls(factors, tuple(sums), tuple(weights), np.empty((len(weights), 0)))
        scorer.ready()
        if history is not None:
            scorer.measure(history)
            scorer.choose_plan(history)
        return scorer

    def measure(self, history: History) -> None:
        """Compute the deviations of the users of `history`. The scorer must be ready."""
        from threadpoolctl import threadpool_limits

        self.deviations = np.empty((len(self.weights), len(history)))
        # As in a server: a product of two vectors takes microseconds, and waiting for a second thread milliseconds.
        with threadpool_limits(limits=1, user_api="blas"):
            for user in range(len(history)):
                self.deviations[:, user] = self._deviations_of(Query(limit=1, user=user), history)

    @property
    def n_items(self) -> int:
        return (self.factors or self.sums[0]).n_items

    def ready(self) -> None:
        for part in self.sums:
            part.ready()
        if self.factors is None:
            return
        self.factors.ready()
        index = self.factors.index
        mean = index.factors.mean(axis=0, dtype=np.float64)
        self._covariance = gram(index.factors) / self.n_items - np.outer(mean, mean)
        self._norms = np.empty(self.n_items)
        for start in range(0, self.n_items, 4096):
            exact = index.factors[start : start + 4096].astype(np.float64)
            self._norms[start : start + 4096] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
        self._norms *= 1 + 1e-9
        self._plan = default_plan(self.n_items)

    def choose_plan(self, history: History) -> None:
        """Let some users, evenly spread over `history`, show which scan costs less. The scorer must be ready."""
        if self.factors is None:
            return
        users = range(0, len(history), max(1, len(history) // PROBED))
        asked = (Query(limit=PROBED_LIMIT, user=user) for user in users)
        probes = ((self._scaled(query), self._offsets(query, history), _wanted(query, history)) for query in asked)
        self._plan = choose_plan(self._index(), probes)
        self._rounded = None if self._plan.picks else RoundedItems.of(self.factors.index.factors)

    def feature_dim(self, side: Side) -> int | None:
        return None if self.factors is None else self.factors.feature_dim(side)

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        rankings: dict[int, Ranking] = {}
        described: list[int] = []
        together: list[int] = []
        for position, query in enumerate(queries):
            if self.factors is not None and _is_described(query):
                described.append(position)
            elif self._takes_head(len(queries)) and not _is_narrow(query):
                together.append(position)
            else:
                rankings[position] = self._rank(query, history)
        if described and self.factors is not None:
            ranked = self.factors.rank([self._of_part(queries[position], 0) for position in described], history)
            rankings.update(zip(described, ranked, strict=True))
        if together:
            ranked = self._rank_many([queries[position] for position in together], history)
            rankings.update(zip(together, ranked, strict=True))
        return [rankings[position] for position in range(len(queries))]

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions | None:
        """The contributions of every part, times its weight and divided by its deviation for the whole profile.

        The deviations are held fixed: those of a profile without one of its items would be others, so that removing the
        strongest reason may even raise a score.
        """
        if self.factors is not None and _is_described(query):
            return self.factors.contributions(self._of_part(query, 0), history, items)
        rows, _ = profile(query, history)
        addends = np.zeros((len(items), len(rows)))
        deviations = self._deviations_of(query, history) if query.user < 0 else self.deviations[:, query.user].tolist()
        parts: list[FactorPart | SumPart] = [*(() if self.factors is None else (self.factors,)), *self.sums]
        for number, (part, weight, deviation) in enumerate(zip(parts, self.weights, deviations, strict=True)):
            if deviation > 0:
                own = part.contributions(self._of_part(query, number), history, items)
                addends += own.of_columns * (weight / deviation)
        return Contributions(rows, addends)

    def similar(self, items: NDArray[np.int32]) -> Callable[[int], Values]:
        """Similarities by the factor part; without one, by the first part of item weights."""
        return (self.factors or self.sums[0]).similar(items)

    def _rank(self, query: Query, history: History) -> Ranking:
        offsets = self._offsets(query, history)
        if self.factors is None:
            items = best_items(offsets.copy(), query, history)
            return Ranking(items, offsets[items])
        return scan_sum(self._index(), self._scaled(query), offsets, _wanted(query, history))

    def _takes_head(self, n_queries: int) -> bool:
        """Whether so many queries begin with a product of all of them with the items of the largest norms."""
        return self.factors is not None and (n_queries >= MANY_FROM or not self._plan.picks)

    def _rank_many(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        """A first look for all queries, then each query alone, so that its arrays stay in the processor cache."""
        index, head, rankings = self._index(), self._plan.head, []
        step = max(LEAST_AT_ONCE, SCORES_AT_ONCE // head)
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            vectors = np.array([self._scaled(query) for query in part])
            looks = (
                first_looks(index.layout, vectors, head)
                if self._rounded is None
                else self._rounded.first_looks(vectors)
            )
            for query, vector, look in zip(part, vectors, looks, strict=True):
                rankings.append(
                    scan_behind(index, look, vector, self._offsets(query, history), _wanted(query, history))
                )
        return rankings

    def _index(self) -> NormedLayout:
        assert self.factors is not None, "without factors there is no index"
        return NormedLayout(self.factors.index.layout, self._norms)

    def _scaled(self, query: Query) -> Values:
        """The vector of the factor part times its share, (K,)."""
        vector = self._vector(query)
        is_trained = query.user >= 0
        deviation = float(self.deviations[0, query.user]) if is_trained else self._deviation_of(vector)
        scaled: Values = vector * (self.weights[0] / deviation if deviation > 0 else 0.0)
        return scaled

    def _offsets(self, query: Query, history: History) -> Values:
        """The weighted sum of the scores by the parts of item weights, (n,); by position where there are factors."""
        totals = self._totals(query, history)
        first = len(self.weights) - len(totals)
        offsets = None
        for part, total in enumerate(totals, start=first):
            deviation = float(self.deviations[part, query.user]) if query.user >= 0 else _deviation(total)
            total *= self.weights[part] / deviation if deviation > 0 else 0.0  # noqa: PLW2901 - in place
            offsets = total if offsets is None else np.add(offsets, total, out=offsets)
        return np.zeros(self.n_items) if offsets is None else offsets

    def _totals(self, query: Query, history: History) -> list[Values]:
        """The scores of all items, (n,), by each part of item weights; by position where there are factors."""
        positions = None if self.factors is None else self.factors.index.layout.positions
        profiles = self._profiles(query, history)
        return [part.totals(*own, positions) for part, own in zip(self.sums, profiles, strict=True)]

    def _profiles(self, query: Query, history: History) -> list[Profile]:
        """The profile of the query as each part of item weights sees it."""
        if not self.recencies:
            return [profile(query, history)] * len(self.sums)
        return [profile(query, history, recency) for recency in self.recencies[-len(self.sums) :]]

    def _of_part(self, query: Query, number: int) -> Query:
        """The query with its seeds weighed for that part."""
        return query.at_recency(self.recencies[number]) if self.recencies else query

    def _vector(self, query: Query) -> Values:
        assert self.factors is not None, "there are vectors only where there are factors"
        is_trained = query.user >= 0
        vector: Values = (
            self.factors.users[query.user].astype(np.float64)
            if is_trained
            else self.factors.embed_cold([self._of_part(query, 0)])[0]
        )
        return vector

    def _deviation_of(self, vector: Values) -> float:
        return float(np.sqrt(max(float(vector @ self._covariance @ vector), 0.0)))

    def _deviations_of(self, query: Query, history: History) -> list[float]:
        """Deviations of one user's scores by each part."""
        by_sums = [_deviation(total) for total in self._totals(query, history)]
        return by_sums if self.factors is None else [self._deviation_of(self._vector(query)), *by_sums]


def _is_described(query: Query) -> bool:
    """Whether features describe the user or an item of the history, which the factor part alone understands."""
    return query.user_features is not None or bool(query.seed_features)


def _is_narrow(query: Query) -> bool:
    return query.allowed is not None and is_few(query.allowed)


def _wanted(query: Query, history: History) -> Wanted:
    return Wanted(query.limit, excluded_columns(query, history), query.allowed)


def _deviation(scores: Values) -> float:
    mean = float(scores.sum()) / len(scores)
    return float(np.sqrt(max(float(scores @ scores) / len(scores) - mean * mean, 0.0)))
