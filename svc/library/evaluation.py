"""`svc.evaluate`: measure a trained model on interactions that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from svc.cores import usable_cores
from svc.errors import TrainingError, UsageError
from svc.export.request import CHUNK, ExportRequest
from svc.export.run import score_all
from svc.library.controls import names_arguments
from svc.library.recommender import Recommender, load
from svc.library.tables import as_arrow, as_table, column_names, facts_table, require
from svc.names import METRIC_AT_CUTOFF
from svc.training.judging.intervals import CONFIDENCE
from svc.training.judging.metrics import PER_USER, TrainingCounts, breakdown, mean_popularity

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from svc.model.history import History
    from svc.model.model import Model


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The result of `svc.evaluate`.

    Attributes:
        scores: One row for each figure, with `group` (`all`, `activity`, `popularity` or `met_before`), its
            `part`, `metric`, `value` and `n_users`. Means over users also have `low` and `high`.
        cutoff: Items recommended to each user.
        n_users: Users who were judged.
        n_unknown_users: Users whom training did not see. They are left out.
        n_unknown_items: Interactions with items that training did not see. They count as misses.
        n_seen: Interactions with items that the user already had in training. They are left out. With
            `training.repeats` they are judged, and this number is 0.
        popularity_chosen: The number of users who had an item in training, averaged over the judged interactions.
            Unknown items have 0.
        popularity_trained: The average of these numbers over the interactions of the training.
    """

    scores: pd.DataFrame
    cutoff: int
    n_users: int
    n_unknown_users: int
    n_unknown_items: int
    n_seen: int
    popularity_chosen: float
    popularity_trained: float

    def _repr_html_(self) -> str:
        facts = {
            "users": self.n_users,
            "items for each": self.cutoff,
            "unknown users": self.n_unknown_users,
            "interactions with unknown items": self.n_unknown_items,
            "interactions of training": self.n_seen,
        }
        return facts_table("svc.Evaluation", facts, self.overall.round(4).to_html(index=False, border=0))

    @property
    def overall(self) -> pd.DataFrame:
        """The figures over all users: the metrics, `coverage` and `novelty`.

        Coverage is the share of all items that are recommended to at least one user. Novelty is the mean over the
        recommended items of −log2 of the share of users who had the item in training.
        """
        return self._of("all").drop(columns=["group", "part"])

    @property
    def by_activity(self) -> pd.DataFrame:
        """The metrics for thirds of the users, by the length of their training history: `few`, `some` and `many`."""
        return self._of("activity").drop(columns="group")

    @property
    def by_popularity(self) -> pd.DataFrame:
        """The metrics for groups of items: the popular `head`, the `middle`, and the `tail`.

        Each group has about a third of the training interactions. Its figures count only the items of the group, and
        the users who chose one of them.
        """
        return self._of("popularity").drop(columns="group")

    def _of(self, group: str) -> pd.DataFrame:
        return self.scores[self.scores["group"] == group].reset_index(drop=True)


@names_arguments
def evaluate(
    artifact: str | Path | Recommender,
    interactions: Any,
    metrics: Sequence[str] = PER_USER,
    *,
    cutoff: int = 20,
    user_column: str = "user_id",
    item_column: str = "item_id",
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Evaluation:
    """Judge a model by interactions that it was not trained on, such as those of the following weeks.

    Each user with an interaction to judge is recommended `cutoff` items. Items of the user's own history are left out,
    unless the model was trained with `training.repeats`, or `cleansing.seen` does not name their events.

    Args:
        artifact: A path or URI as for `svc.load`, with keys from the environment, a recommender, or a result of
            `svc.train`.
        interactions: A DataFrame as for `svc.train`. Repeated rows count once, and rows without an id do not count.
        metrics: As for `svc.compare`.
        cutoff: As for `svc.compare`.
        confidence: As for `svc.compare`.
        user_column: The column of user ids.
        item_column: The column of item ids.
        seed: The seed of the bootstrap.

    Raises:
        svc.errors.UsageError: An argument is invalid.
        svc.errors.TrainingError: No user can be judged.
        svc.errors.ConfigError: As `svc.load`.
        svc.errors.ArtifactError: As `svc.load`.
    """
    check_metrics(metrics, cutoff, confidence)
    interactions = id_columns(interactions, user_column, item_column)
    # A result of `svc.train` has a recommender.
    artifact = getattr(artifact, "recommender", artifact)
    recommender = artifact if isinstance(artifact, Recommender) else load(artifact)
    aligned = align(recommender.model, interactions[user_column], interactions[item_column])
    rankings = rank(recommender.model, aligned.rows, cutoff)
    scores = breakdown(rankings, aligned.truth, aligned.counts, metrics=metrics, seed=seed, confidence=confidence)
    return Evaluation(
        scores=pd.DataFrame(scores),
        cutoff=cutoff,
        n_users=len(aligned.rows),
        n_unknown_users=aligned.n_unknown_users,
        n_unknown_items=aligned.n_unknown_items,
        n_seen=aligned.n_seen,
        popularity_chosen=mean_popularity(aligned.truth.indices, aligned.counts.popularity),
        popularity_trained=mean_popularity(recommender.model.history.columns, aligned.counts.popularity),
    )


def id_columns(data: Any, user_column: str, item_column: str) -> pd.DataFrame:
    """Return a frame with at least the two id columns. Raises UsageError if `data` is not a table or lacks a column."""
    data = as_table(data, "interactions")
    columns = {"user_column": user_column, "item_column": item_column}
    require(columns, column_names(data, "interactions"), "interactions")
    if isinstance(data, pd.DataFrame):
        return data
    # Without this option, whole numbers beside missing values become floats, and the id "1" becomes "1.0".
    frame: pd.DataFrame = as_arrow(data, [*columns.values()], "interactions").to_pandas(integer_object_nulls=True)
    return frame


def check_metrics(metrics: Sequence[str], cutoff: int, confidence: float) -> None:
    """Raise UsageError for an unknown metric, a text instead of a list of metrics, or a number out of bounds."""
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        if metric not in PER_USER:
            ranked = METRIC_AT_CUTOFF.fullmatch(str(metric))
            meant = ""
            if ranked is not None and ranked[1] in PER_USER:
                meant = f"; write metrics=[{ranked[1]!r}], cutoff={ranked[2]}"
            raise UsageError(f"metrics: {metric!r} is none of {', '.join(PER_USER)}{meant}")
    if isinstance(metrics, str):
        raise UsageError(f"metrics: give a list, such as [{metrics!r}]")
    if not 1 <= cutoff <= 1000:
        raise UsageError(f"cutoff: {cutoff} is not within 1..1000")
    if not 0.0 < confidence < 1.0:
        raise UsageError(f"confidence: {confidence} is not between 0 and 1")


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """Interactions translated into users (rows) and items (columns) of a model.

    `rows` are the judged users. Row r of `truth` marks the items that the user `rows[r]` chose. The columns of items
    that the model does not know follow the columns of its own items. The numbers are those of `Evaluation`.
    """

    rows: NDArray[np.int32]
    truth: sparse.csr_matrix
    counts: TrainingCounts
    n_unknown_users: int
    n_unknown_items: int
    n_seen: int


def align(model: Model, users: pd.Series[Any], items: pd.Series[Any]) -> Aligned:
    """Translate interactions into rows and columns of the model.

    Interactions of unknown users are left out. So are items that are left out of the user's answers as seen.
    Raises TrainingError if no interaction is left.
    """
    pairs, n_unknown_users, n_strange = _pairs(model, users, items)
    seen = np.zeros(len(pairs), dtype=bool) if model.repeats else _is_in(model.history.of_seen(), pairs, model.n_items)
    fresh = pairs[~seen]
    rows, row_of_pair = np.unique(fresh[:, 0], return_inverse=True)
    if not len(rows):
        raise TrainingError("no user can be judged: no user from the training has a new interaction")
    shape = (len(rows), model.n_items + n_strange)
    lengths = np.diff(model.history.offsets)
    # Of the training, so that a metric does not depend on the rows that are judged.
    popularity = np.bincount(model.history.columns, minlength=model.n_items)
    met = None
    # Only then can a user be judged by an item of the own history.
    if model.history.is_seen is not None:
        is_met = _is_in(model.history, fresh, model.n_items).astype(np.float32)
        met = sparse.csr_matrix((is_met, (row_of_pair, fresh[:, 1])), shape=shape)
    return Aligned(
        rows=rows.astype(np.int32),
        truth=sparse.csr_matrix((np.ones(len(fresh), np.float32), (row_of_pair, fresh[:, 1])), shape=shape),
        counts=TrainingCounts(lengths[rows], popularity, model.n_users, met),
        n_unknown_users=n_unknown_users,
        n_unknown_items=int(np.count_nonzero(fresh[:, 1] >= model.n_items)),
        n_seen=int(np.count_nonzero(seen)),
    )


def _pairs(model: Model, users: pd.Series[Any], items: pd.Series[Any]) -> tuple[NDArray[np.int64], int, int]:
    """Return the distinct pairs of row and column, (n, 2), and the numbers of unknown users and unknown items.

    Pairs of unknown users and pairs without an id are left out. Unknown items get columns that follow the columns of
    the model.
    """
    # `astype(str)` makes the text "nan" of a missing id, so it is masked again.
    user_codes, user_names = pd.factorize(users.astype(str).where(users.notna()))
    item_codes, item_names = pd.factorize(items.astype(str).where(items.notna()))
    rows = model.user_ids.indices([str(name) for name in user_names]).astype(np.int64)
    columns = model.item_ids.indices([str(name) for name in item_names]).astype(np.int64)
    strange = columns < 0
    # A chosen item that no model can recommend is a miss, so it keeps a place in the truth.
    columns[strange] = model.n_items + np.arange(np.count_nonzero(strange))
    there = (user_codes >= 0) & (item_codes >= 0)
    # Repeated rows count once.
    pairs = np.unique(np.column_stack([rows[user_codes[there]], columns[item_codes[there]]]), axis=0)
    return pairs[pairs[:, 0] >= 0], int(np.count_nonzero(rows < 0)), int(np.count_nonzero(strange))


def _is_in(history: History, pairs: NDArray[np.int64], n_items: int) -> NDArray[np.bool_]:
    """Return whether the user of each pair has the item in `history`, (n,)."""
    # Only whether there is an entry matters, so one byte for each is enough.
    ones = np.ones(len(history.columns), np.int8)
    matrix = sparse.csr_matrix((ones, history.columns, history.offsets), shape=(len(history), n_items))
    found_in = np.zeros(len(pairs), dtype=bool)
    inside = pairs[:, 1] < n_items
    if inside.any():  # scipy returns a sparse matrix for no pairs
        found_in[inside] = np.asarray(matrix[pairs[inside, 0], pairs[inside, 1]]).ravel() > 0
    return found_in


def rank(model: Model, rows: NDArray[np.int32], cutoff: int) -> list[list[int]]:
    """Return the columns of the `cutoff` best items for each user in `rows`, best first, or fewer if fewer are left."""
    request = ExportRequest(output="", limit=cutoff)
    chunks = (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
    recommendations: list[list[int]] = []
    for part in score_all(model, request, chunks, usable_cores()):
        # The last sum is the end of the last ranking, which would begin an empty part.
        recommendations += [ranking.tolist() for ranking in np.split(part.items, np.cumsum(part.counts)[:-1])]
    return recommendations
