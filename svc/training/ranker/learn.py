"""Learn a ranker that reorders the winner's pages, from the validation users, and judge whether it scores better.

The winner is the best model of the search. A page has the items that it ranks best for one user.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.model.history import History
from svc.model.ranker.page_ranker import REORDERED, PageRanker
from svc.model.ranking.query import Query, Ranking
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Rankings, Rows
from svc.training.judging.intervals import Change, paired_change
from svc.training.judging.rankers import ServedRanker, rank_ms
from svc.training.judging.task import Task
from svc.training.ranker.features import PageFeatures
from svc.training.ranker.fit import Pages, fit
from svc.training.ranker.record import EncodedTables, item_record, take_items, windows_within

CANDIDATES: Final = 100
"""The most items of a page on which the weights are fitted."""
LEAST_USERS: Final = 200
MOST_USERS: Final = 5_000
_DIGITS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """A fitted ranker and its cross-validated gain.

    - `ranker` is fitted on all pages. Its item record is that of the training part of the split.
    - `judges` has a ranker for each user on whose page `ranker` was fitted, by the user's row in the split. The user's
      own ranker was fitted without this page.
    - `history` has the histories of the users in the training part of the split.
    - `windows`, in days, and `tables` are inputs of the item record. `on` makes the final model's record from them.
    - `gain` is the change from the winner's score to that of its pages reordered by `judges`, and `scores` are both.
    - `n_users` is the number of pages, and `l2` the regularization of the weights.
    - `strengths` says how far each group of features moves items (see `_strengths`).
    - `seconds` is the time of learning and judging.
    """

    ranker: PageRanker
    judges: Mapping[int, PageRanker]
    history: History
    windows: tuple[int, ...]
    tables: EncodedTables
    gain: Change
    scores: tuple[float, float]
    n_users: int
    l2: float
    strengths: dict[str, float]
    seconds: float

    @property
    def ships(self) -> bool:
        """Return whether the ranker is better than the winner by more than chance."""
        # A ranker costs 0.3 to 0.5 ms a request, so it must prove its gain.
        return self.gain.low > 0.0

    def as_fields(self) -> dict[str, Any]:
        """Return the fields for the artifact's header. Weights and strengths are included only if the ranker ships."""
        gain = {name: round(getattr(self.gain, name), _DIGITS) for name in ("value", "low", "high")}
        fields = {"ships": self.ships, "gain": gain, "n_users": self.n_users, "l2": self.l2, "seconds": self.seconds}
        if not self.ships:
            return fields
        fields |= {"score_without": round(self.scores[0], _DIGITS), "score_with": round(self.scores[1], _DIGITS)}
        weights = zip(self.ranker.features, self.ranker.weights.tolist(), strict=True)
        rows = [{"name": own.name, "group": own.group, "weight": round(weight, _DIGITS)} for own, weight in weights]
        return {**fields, "groups": self.strengths, "features": rows}

    def over(self, task: Task, own: ServedRanker, winner: TrialRecord) -> OrderedRanker:
        """Return a ranker that orders pages like the new model, but by weights that were not fitted on these pages.

        `own` ranks by the `winner`, trained on the training part of the split.
        """
        return OrderedRanker(_in_order(task, own, winner), self.ranker, self.judges, self.history)

    def on(self, matrix: sparse.csr_matrix, ages: sparse.csr_matrix | None, items: NDArray[np.int64]) -> PageRanker:
        """Return a ranker with the same weights and an item record computed from `matrix`, for the final model.

        Column c of `matrix`, (users, items), is item `items[c]` of the interactions. `ages` has the time of each entry,
        in nanoseconds from the reference time. It is None if the record is not ordered.
        """
        record = item_record(matrix, ages, self.windows, take_items(self.tables, items))
        ranker = replace(self.ranker, record=record)
        ranker.ready()
        return ranker


def learn(task: Task, own: ServedRanker | None, winner: TrialRecord, tables: EncodedTables) -> Learned | None:
    """Learn how to reorder the winner's pages, from the validation users and their held-out items.

    `own` ranks by the `winner`, or is None if the winner could not be trained again. `tables` have rows in the order of
    the items of the interactions.

    Return None and log an event with the reason if `own` is None, if there are fewer than LEAST_USERS users, or if a
    ranking with the ranker takes longer than the recipe allows.
    """
    began = time.monotonic()
    training, holdout, parts = task.loaded.recipe.training, task.holdout, task.split
    seed = training.split.seed
    evaluator = holdout.evaluators.full.sample(MOST_USERS, seed)
    n_users = len(evaluator.evaluated_users)
    if own is None:
        _skip("the winner could not be trained a second time, so there are no pages to learn from")
        return None
    if n_users < LEAST_USERS:
        _skip(
            f"{n_users} validation users, fewer than the {LEAST_USERS} needed to tell a gain from chance: raise "
            "split.test_user_ratio, or train on more users"
        )
        return None
    ages = parts.times if task.loaded.recipe.orders_pages else None
    windows = windows_within(ages)
    record = item_record(parts.train, ages, windows, take_items(tables, parts.item_order))
    weighs = task.data.trained.divides_rows
    own = _in_order(task, own, winner)
    history = own.model.history
    users = evaluator.offset + evaluator.evaluated_users
    # One ranking serves the fit and the score before reordering, which may need a longer list.
    pools, rows = own.pools(users, max(CANDIDATES, evaluator.cutoff)), users.tolist()
    truth = evaluator.heldout[evaluator.evaluated_users]
    features = PageFeatures(record)
    raw = np.concatenate(
        [
            features.of(
                history.items(row), history.values(row) if weighs else None, items[:CANDIDATES], scores[:CANDIDATES]
            ).T
            for row, (items, scores) in zip(rows, pools, strict=True)
        ]
    )
    means, deviations = _standard(raw)
    raw -= means
    raw /= deviations
    pages = _pages(raw, [items[:CANDIDATES] for items, _ in pools], truth)
    fitted = fit(pages, seed=seed)
    ranker, *of_others = rankers = [
        PageRanker(record, weights.astype(np.float32), means, deviations, weighs)
        for weights in (fitted.weights, *fitted.of_others)
    ]
    for each in rankers:
        each.ready()
    judges = {row: of_others[part] for row, part in zip(rows, fitted.fold.tolist(), strict=True)}
    reordered = OrderedRanker(own, ranker, judges, history).reorder(users, pools, evaluator.cutoff)
    before = [items[: evaluator.cutoff].tolist() for items, _ in pools]
    scores_after, scores_before = (evaluator.by_user(shown, training.metric) for shown in (reordered, before))
    gain = paired_change(scores_after, scores_before, seed=seed)
    if training.max_rank_ms is not None:
        # Shallow: only the ranker differs, and `own.model` must go on ranking without it.
        model = copy(own.model)
        model.ranker = ranker
        model.ready()
        # The whole ranking is timed: going 50 items deep instead of 10 alone adds up to 60 µs at 41,000 items.
        if (needed_ms := rank_ms(model, users)) > training.max_rank_ms:
            _skip(f"a ranking with it takes {needed_ms:g} ms, more than training.max_rank_ms")
            return None
    seconds = round(time.monotonic() - began, 3)
    learned = Learned(
        ranker,
        judges,
        history,
        windows,
        tables,
        gain,
        (float(scores_before.mean()), float(scores_after.mean())),
        n_users,
        fitted.l2,
        _strengths(pages, ranker),
        seconds,
    )
    logs.emit(
        events.RANKER_JUDGED,
        ships=learned.ships,
        metric=training.metric,
        gain=learned.as_fields()["gain"],
        n_users=n_users,
        seconds=seconds,
    )
    return learned


def _skip(reason: str) -> None:
    logs.emit(events.RANKER_SKIPPED, reason=reason)


def _in_order(task: Task, own: ServedRanker, winner: TrialRecord) -> ServedRanker:
    """Return `own` with histories in the order of the final model's, because sums in another order have other bits."""
    if own.model.history.is_ordered or not task.loaded.recipe.orders_pages:
        return own
    return task.holdout.ranker_of(own.model.scorer, winner, ordered=True)


def _strengths(pages: Pages, ranker: PageRanker) -> dict[str, float]:
    """Return how far each group of features moves items within a page.

    This is the root mean square, over all items of all pages, of the difference between the group's part of an item's
    score and the mean of this part over the page.
    """
    counts = pages.is_item.sum(axis=1, keepdims=True)
    strengths: dict[str, float] = {}
    for group in dict.fromkeys(feature.group for feature in ranker.features):
        own = np.array([feature.group == group for feature in ranker.features])
        addends = np.where(pages.is_item, pages.features @ (ranker.weights * own), 0.0).astype(np.float64)
        means = addends.sum(axis=1, keepdims=True) / counts
        squares = np.where(pages.is_item, (addends - means) ** 2, 0.0)
        strengths[group] = round(float(np.sqrt(squares.sum() / counts.sum())), _DIGITS)
    return strengths


def _standard(rows: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean and the standard deviation of each feature, (F,). The deviation of a constant feature is 1.

    `rows`, (items of all pages, F), are the raw features.
    """
    means, deviations = rows.mean(axis=0), rows.std(axis=0)
    # Relative to the mean, because rounding gives even a constant feature a deviation above 0.
    varies = deviations > 1e-6 * np.maximum(np.abs(means), 1.0)
    return means.astype(np.float32), np.where(varies, deviations, 1.0).astype(np.float32)


def _pages(rows: NDArray[np.float64], items: list[NDArray[np.int32]], truth: sparse.csr_matrix) -> Pages:
    """Return the pages of users.

    `rows`, (items of all pages, F), are the standardized features, one page after the other. For each user, `items` has
    the columns of the items on the page, and `truth`, (users, items), the held-out items.
    """
    lengths = np.array([len(own) for own in items])
    is_item = np.arange(lengths.max()) < lengths[:, np.newaxis]
    table, chosen = np.zeros((*is_item.shape, rows.shape[1]), dtype=np.float32), np.zeros(is_item.shape)
    table[is_item] = rows
    owners = np.repeat(np.arange(len(items)), lengths)
    chosen[is_item] = np.asarray(truth[owners, np.concatenate(items)]).ravel()
    return Pages(table, is_item, chosen)


Pools = list[tuple[NDArray[np.int32], NDArray[np.float64]]]
"""The best items of each user by the winner, best first, with their scores."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRanker:
    """A ranker by the winner, `own`, that then reorders the best items of each user.

    The items of a user in `judges` are reordered by the ranker there, those of other users by `ranker`. `history` has
    the histories in the training part of the split, which these rankers read.
    """

    own: ServedRanker
    ranker: PageRanker
    judges: Mapping[int, PageRanker]
    history: History

    def excluding(self, pairs: sparse.csr_matrix) -> OrderedRanker:
        """Return the same ranker that also leaves out the items in `pairs`, (users, items) of the split."""
        return replace(self, own=self.own.excluding(pairs))

    def __call__(self, users: Rows, size: int) -> Rankings:
        return self.reorder(users, self.own.pools(users, max(size, REORDERED)), size)

    def reorder(self, users: Rows, pools: Pools, size: int) -> Rankings:
        """Return at most `size` items of each user's pool in `pools`, in the new order."""
        pages = []
        for row, (items, scores) in zip(users.tolist(), pools, strict=True):
            ranker, query = self.judges.get(row, self.ranker), Query(limit=size, user=row)
            pages.append(ranker.page(query, Ranking(items, scores), self.history).items.tolist())
        return pages
