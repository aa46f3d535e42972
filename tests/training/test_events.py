"""Events in whole trainings and judgements: what the judge ranks is what a server answers, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from svc.model.model import Model
from svc.model.ranker.page_ranker import REORDERED, PageRanker
from svc.model.ranking.query import Ranking
from svc.recipe.training_schema import Scheme, Split
from svc.training.data.interactions import Interactions
from svc.training.data.split import SplitMatrices, order_items, split
from svc.training.data.weights import positions_of
from svc.training.fitting.export import assemble, fold_in_users
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.recency import HistoryOrder
from svc.training.judging.task import Holdout
from svc.training.ranker.learn import OrderedRanker
from tests import planned
from tests.model.ranker.records import random_ranker
from tests.training.data.test_split_events import SCHEMES, Event, cleaned, events_of, expected
from tests.training.judging.test_task import BUILDER, TRIALS

CUTOFF, RATIO = 12, 0.4
SIZES = {"n_users": 40, "n_items": 60, "n_rows": 1500, "n_times": 400}


def table(seed: int) -> list[Event]:
    """Return random events. First each user and item occurs once, in the order of their ids in the cleaned table."""
    first = [Event(f"u{n % 40}", f"i{n}", "view", 0) for n in range(60)]
    return [*first, *(row._replace(time=1 + row.time) for row in events_of(seed, **SIZES))]


def holdout_of(parts: SplitMatrices) -> Holdout:
    evaluator = Evaluator(parts.heldout, offset=parts.val_offset, cutoff=CUTOFF)
    assert parts.times is not None
    order = HistoryOrder(positions_of(parts.times))
    evaluators = Evaluators.of(evaluator, "ndcg", 1)
    return Holdout(
        parts.train, evaluators, {}, times=parts.times, hidden=parts.hidden, order=order, seen_choices=parts.seen
    )


def in_split(matrix: Any, data: Interactions, parts: SplitMatrices, whole: Interactions) -> sparse.csr_matrix:
    """Return `matrix`, (users, items) of `data`, in the rows and columns of the split of `whole`."""
    row_of = {whole.user_ids[user]: row for row, user in enumerate(parts.order.tolist())}
    column_of = {whole.item_ids[item]: column for column, item in enumerate(parts.item_order.tolist())}
    found = matrix.tocoo()
    rows = [row_of[data.user_ids[row]] for row in found.row.tolist()]
    columns = [column_of[data.item_ids[column]] for column in found.col.tolist()]
    moved = sparse.csr_matrix((found.data, (rows, columns)), shape=parts.train.shape)
    moved.sort_indices()
    return moved


def before_of(rows: list[Event], scheme: Scheme, parts: SplitMatrices, whole: Interactions) -> list[Event]:
    """Return the rows that a training at that time would have had, including hidden ones."""
    if scheme == "random":
        held = {
            (whole.user_ids[parts.order[parts.val_offset + row]], whole.item_ids[parts.item_order[column]])
            for row, column in zip(*(part.tolist() for part in parts.heldout.nonzero()), strict=True)
        }
        hidden = {(row.user, row.item) for row in rows if row.event == "no"}
        pairs = {(row.user, row.item) for row in rows if row.event != "no"}
        assert held
        unused = pairs & hidden  # a hidden pair may have been drawn, and is then not trained on
        return [row for row in rows if (row.user, row.item) not in held | unused or row.event == "no"]
    wanted = expected(rows, ["buy"], scheme, RATIO, timed=True)
    choices = {id(row) for row in wanted.before}
    return [row for row in rows if id(row) in choices or (row.event == "no" and (row.user, row.item) in wanted.hidden)]


def served_model(
    trial: TrialRecord,
    rows: list[Event],
    parts: SplitMatrices,
    whole: Interactions,
    ranker: PageRanker | None = None,
) -> Model:
    """Return the model that a training of only `rows` serves, with the users and items of the split."""
    data = cleaned(rows, ["buy"], None)
    matrix = in_split(data.matrix(), data, parts, whole)
    latest = data.latest()
    latest.data = latest.data - latest.data.min() + 1  # no time is an explicit zero
    ages = in_split(latest, data, parts, whole)
    ages.data = ages.data - ages.data.max()
    hidden = data.hidden_matrix()
    is_ordered = trial.recency or (ranker is not None and ranker.record.ordered)
    positions = positions_of(ages) if is_ordered else None
    scorer = train_trial(BUILDER, trial, matrix, {}, ages)
    fold_in_users(trial, scorer, [(matrix, None)], positions, features=None)
    seen = data.seen_matrix()
    return assemble(
        scorer,
        user_ids=[f"u{row}" for row in range(matrix.shape[0])],
        item_ids=[f"i{column}" for column in range(matrix.shape[1])],
        X=matrix,
        features=None,
        hidden=None if hidden is None else in_split(hidden, data, parts, whole),
        positions=positions,
        recency=trial.recency,
        seen=in_split(seen, data, parts, whole),
        ranker=ranker,
    )


def drawn(scheme: Scheme, seed: int) -> tuple[list[Event], Interactions, SplitMatrices]:
    rows = table(seed)
    if scheme == "random":
        rows = [row for row in rows if row.event != "no"]
    whole = cleaned(rows, ["buy"], ["buy"])
    plan = Split(scheme=scheme, heldout_ratio=RATIO, seed=1)
    return rows, whole, order_items(split(whole, plan, keep_times=True), 1)


@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_judged_pages_are_those_of_a_server_that_trained_on_the_same_rows(scheme: Scheme, name: str) -> None:
    """Items and scores have the same bits, also in a learned order, which reads the weights of the events.

    Items that were only viewed or carted are on some pages.
    """
    trial, n_met = TRIALS[name], 0
    for seed in range(2):
        rows, whole, parts = drawn(scheme, seed)
        holdout = holdout_of(parts)
        trained = train_trial(BUILDER, trial, holdout.train, {}, holdout.times)
        ranker = holdout.ranker_of(trained, trial)
        model = served_model(trial, before_of(rows, scheme, parts, whole), parts, whole)
        users = parts.val_offset + holdout.evaluators.full.evaluated_users
        assert len(users) > 10
        for row, page in zip(users.tolist(), ranker.pools(users, CUTOFF), strict=True):
            (answer,) = model.rank([planned.recommend(model, user_id=f"u{row}", limit=CUTOFF).query])
            assert page[0].tolist() == answer.items.tolist()
            assert page[1].tobytes() == answer.scores.tobytes()
            n_met += len(np.intersect1d(answer.items, model.history.items(row)))
        is_ordered = scheme != "random"
        learned = random_ranker(np.random.default_rng(seed), 60, ordered=is_ordered, weighs=True)
        model = served_model(trial, before_of(rows, scheme, parts, whole), parts, whole, learned)
        own = holdout.ranker_of(trained, trial, ordered=is_ordered)
        pools, reads = own.pools(users, REORDERED), False
        judged = OrderedRanker(own, learned, {}, own.model.history).reorder(users, pools, CUTOFF)
        for row, pool, page in zip(users.tolist(), pools, judged, strict=True):
            query = planned.recommend(model, user_id=f"u{row}", limit=CUTOFF).query
            (answer,) = model.rank([query])
            assert page == answer.items.tolist()
            ranking, history = learned.page(query, Ranking(*pool), own.model.history), own.model.history
            assert ranking.scores.tobytes() == answer.scores.tobytes()
            reads |= (
                ranking.items.tolist()
                != learned.page(query, Ranking(*pool), replace(history, weights=None)).items.tolist()
            )
        assert reads
    assert n_met or name == "TransitionsRecommender"
