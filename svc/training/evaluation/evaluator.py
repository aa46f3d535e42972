"""Score a trained recommender on held-out interactions, with irspack's own metrics.

irspack's `Evaluator` spends most of its time sorting whole score rows, and far more where a similarity matrix
has the wrong memory order. Here only what can be among the best is sorted; the metrics are computed by the same
irspack code from the resulting rankings.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from irspack.evaluation._core_evaluator import evaluate_list_vs_list
from numpy.typing import NDArray
from scipy import sparse

from svc.training.evaluation.intervals import PER_USER, user_scores
from svc.training.evaluation.ties import TieOrder

METRICS = ("ndcg", "map", "recall", "hit", "precision", "gini_index", "entropy", "appeared_item", "catalog_coverage")
_BLOCK_BYTES = 2 << 20
"""Scores of so many bytes at once stay in the cache of a core while they are ranked."""
_SCORE_DIGITS = 12

Rows = NDArray[np.int64]
Scores = NDArray[Any]
Rankings = list[list[int]]
"""The best items of each of some users, best first."""
Scorer = Callable[[Rows], Scores]
"""(r,) ascending rows of the training matrix to their scores, (r, items), free to overwrite."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """All METRICS of `rankings`; row u of `truth` has what the user of ranking u chose.

    `scores` are the (users,) scores by each metric of PER_USER, whose means `metrics` has. `longer` are the same
    rankings with more items, where more were asked for.
    """

    metrics: dict[str, float]
    rankings: Rankings
    truth: sparse.csr_matrix
    scores: dict[str, NDArray[np.float64]]
    longer: Rankings

    def by_user(self, metric: str) -> NDArray[np.float64]:
        """(evaluated users,) scores of each evaluated user, whose mean `metrics` has."""
        return self.scores[metric]

    def at_cutoffs(self, cutoffs: Sequence[int]) -> dict[int, dict[str, float]]:
        """Metrics that are means over users, at each of `cutoffs`, none above the length of `longer`."""
        return {
            cutoff: {
                name: round(float(scores.mean()), _SCORE_DIGITS)
                for name, scores in user_scores([ranking[:cutoff] for ranking in self.longer], self.truth).items()
            }
            for cutoff in cutoffs
        }


class Evaluator:
    """Evaluates the rankings of validation users by their held-out items.

    `heldout` is (v, items), one row for each validation user, and row r of it belongs to row `offset + r` of the
    training matrix. Users without held-out items count for nothing. Ties in scores are broken by a random order of
    each user that `seed` decides and the data does not (see ties.py). With `weighted` the values of `heldout` count
    in the metrics of PER_USER; without it they become 1, so that no figure about them can count otherwise.
    """

    def __init__(
        self, heldout: sparse.csr_matrix, *, offset: int, cutoff: int, seed: int = 0, weighted: bool = False
    ) -> None:
        self.weighted = weighted
        self.heldout = self._counted(heldout)
        self.offset = offset
        self.cutoff = cutoff
        self._ties = TieOrder(heldout.shape[0], heldout.shape[1], seed)

    def sample(self, n_users: int, seed: int) -> Evaluator:
        """At most `n_users` of the validation users; the same ones for the same seed."""
        with_items = np.flatnonzero(np.diff(self.heldout.indptr))
        if len(with_items) <= n_users:
            return self
        rows = np.random.default_rng([seed, 3]).permutation(with_items)[:n_users]
        is_sampled = np.zeros(self.heldout.shape[0], dtype=bool)
        is_sampled[rows] = True
        sampled = sparse.diags(is_sampled.astype(np.float32)) @ self.heldout
        sampled.eliminate_zeros()
        return self.of(sampled)

    def of(self, heldout: sparse.csr_matrix) -> Evaluator:
        """An evaluator of the same users by other held-out items, with the rows and columns of these."""
        other = copy.copy(self)
        other.heldout = self._counted(heldout)
        return other

    def _counted(self, heldout: sparse.csr_matrix) -> sparse.csr_matrix:
        """`heldout` with the value by which each item counts."""
        if self.weighted or (heldout.data == 1).all():
            return heldout
        counted = heldout.copy()
        counted.eliminate_zeros()
        counted.data = np.ones_like(counted.data)
        return counted

    @property
    def evaluated_users(self) -> NDArray[np.int64]:
        """(j,) rows of `heldout` that hold anything, ascending: the users whom scores are about."""
        self.heldout.eliminate_zeros()
        return np.flatnonzero(np.diff(self.heldout.indptr))

    def evaluate(self, scorer: Scorer, seen: sparse.csr_matrix, *, longest: int = 0) -> Evaluation:
        """Rank once, and return rankings and metrics. `seen` is the training matrix; its items are not recommended.

        Rankings of `longest` items are kept too, where that is more than the cutoff.
        """
        longer = self._rankings(scorer, seen, max(self.cutoff, longest), self.evaluated_users)
        return self._evaluation([ranking[: self.cutoff] for ranking in longer], longer)

    def complete(self, scorer: Scorer, seen: sparse.csr_matrix, sample: Evaluator, ranked: Rankings) -> Evaluation:
        """As `evaluate`, where the users of `sample` have been `ranked` by the same scorer already."""
        evaluated, by_user = self.evaluated_users, dict(zip(sample.evaluated_users.tolist(), ranked, strict=True))
        others = evaluated[~np.isin(evaluated, sample.evaluated_users)]
        by_user.update(zip(others.tolist(), self._rankings(scorer, seen, self.cutoff, others), strict=True))
        rankings = [by_user[row] for row in evaluated.tolist()]
        return self._evaluation(rankings, rankings)

    def score(self, rankings: Rankings, metric: str) -> float:
        """The metric of the rankings of the evaluated users; one of PER_USER costs less than all METRICS."""
        if metric not in PER_USER:
            return self._evaluation(rankings, rankings).metrics[metric]
        scores = user_scores(rankings, self.heldout[self.evaluated_users])[metric]
        return round(float(scores.mean()), _SCORE_DIGITS)

    def scores_of_users(self, scorer: Scorer, seen: sparse.csr_matrix, metric: str) -> NDArray[np.float64]:
        """(evaluated users,) scores by one of PER_USER alone, which costs less than all METRICS."""
        return user_scores(self.rankings(scorer, seen), self.heldout[self.evaluated_users])[metric]

    def metrics(self, scorer: Scorer, seen: sparse.csr_matrix) -> dict[str, float]:
        """All METRICS at the cutoff."""
        rankings = self.rankings(scorer, seen)
        return self._evaluation(rankings, rankings).metrics

    def _evaluation(self, rankings: Rankings, longer: Rankings) -> Evaluation:
        truth = self.heldout[self.evaluated_users]
        truths = [truth.indices[begin:end].tolist() for begin, end in pairwise(truth.indptr.tolist())]
        n_items = truth.shape[1]
        metrics = evaluate_list_vs_list(rankings, truths, n_items, 1).as_dict()
        metrics["catalog_coverage"] = metrics["appeared_item"] / n_items
        scores = user_scores(rankings, truth)
        metrics.update({name: values.mean() for name, values in scores.items() if len(values)})
        rounded = {name: round(float(metrics[name]), _SCORE_DIGITS) for name in METRICS}
        return Evaluation(rounded, rankings, truth, scores, longer)

    def rankings(self, scorer: Scorer, seen: sparse.csr_matrix) -> Rankings:
        """The best items of each evaluated user, best first; fewer than the cutoff where fewer are unseen."""
        return self._rankings(scorer, seen, self.cutoff, self.evaluated_users)

    def _rankings(self, scorer: Scorer, seen: sparse.csr_matrix, size: int, users: Rows) -> Rankings:
        return [ranking for _, best in self._ranked(scorer, seen, size, users) for ranking in best]

    def pools(
        self, scorer: Scorer, seen: sparse.csr_matrix, size: int
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        """For each evaluated user the columns of the `size` best items, best first, and their scores."""
        for scores, best in self._ranked(scorer, seen, size, self.evaluated_users):
            for row, ranking in zip(scores, best, strict=True):
                yield np.array(ranking, dtype=np.int32), row[ranking].astype(np.float64)

    def _ranked(
        self, scorer: Scorer, seen: sparse.csr_matrix, size: int, users: Rows
    ) -> Iterator[tuple[Scores, Rankings]]:
        """These evaluated `users` by blocks: their scores of all items, and their `size` best items."""
        step = self._rows_per_block()
        for begin in range(0, len(users), step):
            rows = users[begin : begin + step]
            scores = scorer(self.offset + rows)
            _mask(scores, seen[self.offset + rows])
            yield scores, _best(scores, size, self._ties, rows)

    def _rows_per_block(self) -> int:
        return int(max(16, min(1024, _BLOCK_BYTES // (4 * max(self.heldout.shape[1], 1)))))


def scorer_of(recommender: Any) -> Scorer:
    """Scores by `recommender`, a trained irspack object, with the vectors that training gave to its users."""
    trainer = getattr(recommender, "trainer", None)
    if hasattr(trainer, "core_trainer"):
        users, items = recommender.get_user_embedding(), recommender.get_item_embedding()
        return lambda rows: users[rows] @ items.T
    if hasattr(recommender, "score_"):
        return lambda rows: np.repeat(recommender.score, len(rows), axis=0)
    scorer: Scorer = recommender.get_score
    return scorer


def _mask(scores: Scores, seen: sparse.csr_matrix) -> None:
    rows = np.repeat(np.arange(seen.shape[0]), np.diff(seen.indptr))
    scores[rows, seen.indices] = -np.inf


def _best(scores: Scores, k: int, ties: TieOrder, users: NDArray[np.int64]) -> Rankings:
    """For each row the columns of its `k` best scores, best first; masked ones never; ties as `users` break them.

    Column j is dealt to group j mod g. At least k scores reach the k-th largest group maximum, so only groups that
    reach it are searched. Where many groups share that bound, as with the zeros of a sparse model, only entries above
    it are sorted, and the rest is filled with the first entries at the bound in the user's order.
    """
    b, n = scores.shape
    groups = min(n, max(512, 8 * k))
    depth = n // groups
    head = scores[:, : depth * groups].reshape(b, depth, groups)
    tail = np.pad(scores[:, depth * groups :], ((0, 0), (0, (depth + 1) * groups - n)), constant_values=-np.inf)
    maxima = np.maximum(np.maximum.reduce(head, axis=1), tail)
    kth_largest = max(groups - k, 0)
    bound = np.partition(maxima, kth_largest, axis=1)[:, kth_largest]
    wide = np.isneginf(bound) | (np.count_nonzero(maxima >= bound[:, np.newaxis], axis=1) > 2 * k)
    floor = np.where(wide, np.nextafter(bound, np.inf, dtype=bound.dtype), bound)
    rows, group = np.divmod(np.flatnonzero(maxima >= floor[:, np.newaxis]), groups)
    values = np.concatenate([head[rows, :, group], tail[rows, group][:, np.newaxis]], axis=1)
    at, layer = np.divmod(np.flatnonzero(values >= floor[rows, np.newaxis]), depth + 1)
    rows, columns, values = rows[at], group[at] + layer * groups, values[at, layer]
    order = _best_first(values, rows, columns, ties, users)
    ends = np.searchsorted(rows[order], np.arange(b + 1)).tolist()
    ranked = columns[order].tolist()
    best = [ranked[begin : min(begin + k, end)] for begin, end in pairwise(ends)]
    short = np.asarray([row for row in np.flatnonzero(wide & (bound > -np.inf)) if len(best[row]) < k], dtype=np.int64)
    if len(short):
        for row, columns in zip(short, _first_equal(scores, bound, short, k, ties, users), strict=True):
            best[row] += columns[: k - len(best[row])]
    return best


def _best_first(
    values: Scores, rows: NDArray[np.int64], columns: NDArray[np.int64], ties: TieOrder, users: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The order of entries by row, then by falling value; equal values as the user of the row breaks ties.

    Most values have no equal, so positions in the users' orders, which cost most, are computed for the others alone.
    """
    order = np.argsort(-values)
    order = order[np.argsort(rows[order].astype(np.uint16), kind="stable")]  # a radix sort: there are few rows
    is_equal = (rows[order[1:]] == rows[order[:-1]]) & (values[order[1:]] == values[order[:-1]])
    if not is_equal.any():
        return order
    among = order[np.append(is_equal, False) | np.append(False, is_equal)]
    positions = np.zeros(len(order), dtype=np.int64)
    positions[among] = ties.ranks(users[rows[among]], columns[among])
    return np.lexsort((positions, -values, rows))


def _first_equal(  # noqa: PLR0917 - all of them are about the same rows
    scores: Scores, bound: Scores, rows: NDArray[np.int64], k: int, ties: TieOrder, users: NDArray[np.int64]
) -> Iterator[list[int]]:
    """For each of `rows` the first columns, at least k if there are so many, that hold its bound, in its user's order.

    Each user's order is followed for a limited number of steps, which is enough for most; the remaining users are
    searched completely.
    """
    n = scores.shape[1]
    visited = ties.first(users[rows], max(64, 2 * k))
    at_bound = scores[rows[:, np.newaxis], np.minimum(visited, n - 1)] == bound[rows, np.newaxis]
    at_bound &= visited < n
    for row, order, equal in zip(rows, visited, at_bound, strict=True):
        columns = order[equal]
        if len(columns) < k:
            tied = np.flatnonzero(scores[row] == bound[row])
            columns = tied[np.argsort(ties.ranks(np.full(len(tied), users[row]), tied))[:k]]
        yield columns.tolist()
