"""Ordered histories: all ways to request a ranking give the same bits, which equal the formula with exp(-δk)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from svc.export.request import ExportRequest
from svc.export.run import score_all
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import IALSScorer, SVDScorer
from svc.training.data.user_sample import solve_users
from svc.training.fitting.algorithms.transitions import TransitionsRecommender
from svc.training.fitting.export import to_scorer
from svc.training.fitting.train import with_diagonal
from tests.families import N_ITEMS, N_USERS, family
from tests.library.test_answers import both

pytestmark = pytest.mark.anyio

PARTS = {
    "IALS": ("IALS",),
    "SVD": ("SVD",),
    "neighbours": ("neighbours",),
    "dense weights": ("dense_weights",),
    "transitions": ("transitions",),
    "blend": ("SVD", "neighbours"),
    "blend of three": ("IALS", "transitions", "dense_weights"),
    "blend without factors": ("transitions", "neighbours"),
}
Events = list[tuple[int, int, float]]
"""Item, time and weight of each choice of one user."""
Scores = NDArray[np.float64]


def draw_events(rng: random.Random) -> list[Events]:
    """Return distinct items for every user. Several share a time."""
    return [
        [(item, rng.randint(0, 6), rng.choice((0.5, 1.0, 2.0))) for item in rng.sample(range(N_ITEMS), 1 + user)]
        for user in range(N_USERS)
    ]


def matrix_of(rows: list[Scores]) -> sparse.csr_matrix:
    return sparse.csr_matrix(np.array(rows))


def transitions(events: list[Events], rng: random.Random) -> Any:
    """Return a trained model of transitions with weights of items on themselves."""
    times = np.zeros((N_USERS, N_ITEMS))
    for user, own in enumerate(events):
        for item, time, _ in own:
            times[user, item] = 1 + time
    seen = sparse.csr_matrix(times)
    trained = TransitionsRecommender(seen.sign(), times=seen.astype(np.int64), max_steps=3, backward=0.5).learn()
    trained._W = with_diagonal(trained._W, rng.choice((0.0, 0.3, 3.0)))
    return to_scorer(trained, "TransitionsRecommender")


def counted(events: Events, recency: float) -> Scores:
    """Return the weight of each item, (items,): its weights times exp(-δk), with k the rank of its latest time."""
    latest = {item: max(time for other, time, _ in events if other == item) for item, _, _ in events}
    moments = sorted(set(latest.values()), reverse=True)
    row = np.zeros(N_ITEMS)
    for item, _, weight in events:
        row[item] += weight * np.exp(-recency * moments.index(latest[item]))
    return row


def textbook(scorer: Any, row: Scores, prior: Scores) -> Scores:
    """Return the scores, (items,), of one part for a history of weights `row` and a user with the features `prior`."""
    if scorer.kind == "neighbours":
        return row @ sparse.csr_matrix((scorer.weights, scorer.columns, scorer.offsets), shape=2 * row.shape).toarray()
    if scorer.kind == "dense_weights":
        return row @ scorer.weights.astype(np.float64)
    items = scorer.index.vectors(np.arange(N_ITEMS, dtype=np.int32))
    if isinstance(scorer, SVDScorer):
        return row @ items @ items.T
    solver, chosen, values = scorer.least_squares, items[row > 0], row[row > 0]
    r = solver.regularization(len(chosen), N_ITEMS)
    left = solver.alpha0 * items.T @ items + r * np.eye(items.shape[1]) + (chosen.T * values) @ chosen
    return items @ np.linalg.solve(left, values @ chosen + r * prior @ solver.user_weights)


def expected(scorer: Any, recency: float, events: Events, prior: Scores) -> Scores:
    """Return the scores of a model for these events."""
    row = counted(events, recency)
    if not isinstance(scorer, BlendScorer):
        return textbook(scorer, row, prior)
    scores = [textbook(part, row, prior) for part in (scorer.factors, *scorer.sums) if part is not None]
    total = np.zeros(N_ITEMS)
    for weight, of_part in zip(scorer.weights, scores, strict=True):
        total += weight * of_part / of_part.std() if of_part.std() > 0 else 0.0
    return total


def ordered_model(name: str, events: list[Events], rng: random.Random) -> tuple[Model, float]:
    """Return a model of that name over these histories, and its recency."""
    scorers = [transitions(events, rng) if part == "transitions" else family(part).scorer for part in PARTS[name]]
    recency = rng.choice((0.1, 0.7, 2.0))
    factors = next((part for part in scorers if isinstance(part, IALSScorer | SVDScorer)), None)
    if factors is not None:
        none_of_features = sparse.csr_matrix((N_USERS, 4)) if isinstance(factors, IALSScorer) else None
        weighed = matrix_of([counted(own, recency) for own in events])
        solve_users(factors, weighed, none_of_features)
    in_order = [sorted(own, key=lambda event: event[1]) for own in events]
    history = History(
        np.cumsum([0, *map(len, events)]),
        np.array([item for own in in_order for item, _, _ in own], dtype=np.int32),
        np.array([weight for own in in_order for _, _, weight in own], dtype=np.float32),
        recency=recency,
        ties=np.array(
            [place > 0 and own[place - 1][1] == own[place][1] for own in in_order for place in range(len(own))]
        ),
    )
    scorer = scorers[0]
    if len(scorers) > 1:
        weights = tuple(rng.choice((0.3, 0.5)) for _ in scorers)
        scorer = BlendScorer(factors, tuple(scorers[factors is not None :]), weights, np.empty((len(weights), 0)))
        scorer.ready()
        scorer.measure(history)
    model = Model(
        user_ids=IdTable.from_ids([f"u{user}" for user in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i{item}" for item in range(N_ITEMS)]),
        history=history,
        scorer=scorer,
        features=family("IALS").features if isinstance(scorer, IALSScorer) else None,
        repeats=rng.random() < 0.5,
    )
    model.ready()
    return model, recency


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PARTS)
async def test_all_ways_to_rank_a_history_give_the_bits_of_the_formula(name: str, seed: int) -> None:
    """Users, histories and features get these scores in single requests, batches, exports and Python."""
    rng = random.Random(f"{name} {seed}")
    events = draw_events(rng)
    model, recency = ordered_model(name, events, rng)
    exported = score_all(model, ExportRequest(output="", limit=N_ITEMS), iter([np.arange(N_USERS, dtype=np.int32)]), 1)
    of_export = next(iter(exported))
    ends = np.cumsum(of_export.counts)
    async with both(model) as (client, shop):
        asked: list[tuple[dict[str, Any], Scores]] = []
        for user in range(seed, N_USERS, 4):
            given = [(rng.randrange(N_ITEMS), rng.choice((1.0, 1.0, 2.5))) for _ in range(rng.randint(1, 5))]
            later = [(item, 100 + place, weight) for place, (item, weight) in enumerate(given)]
            history = {"history": [{"item_id": f"i{item}", "weight": weight} for item, weight in given]}
            prior = np.zeros(4)
            asked += [
                ({"user_id": f"u{user}"}, expected(model.scorer, recency, events[user], prior)),
                (history, expected(model.scorer, recency, later, prior)),
            ]
            joined = expected(model.scorer, recency, [*events[user], *later], prior)
            asked.append(({"user_id": f"u{user}", **history}, joined))
            if model.features is not None and model.features.user is not None:
                described = {"tag": rng.choice("ab"), "age": rng.randint(20, 60)}
                own, _ = model.features.user.encode(described)
                of_features = {"user_features": described, **history}
                asked.append((of_features, expected(model.scorer, recency, later, own)))
        bodies = [{"limit": N_ITEMS, **body} for body, _ in asked]
        batch = await client.post("/v1/recipes/r:batch-recommend", {"requests": bodies})
        for body, (_, scores), together in zip(bodies, asked, batch.json["results"], strict=True):
            single = await client.post("/v1/recipes/r:recommend", body)
            items = [(item["item_id"], item["score"]) for item in single.json["items"]]
            assert items == [(item["item_id"], item["score"]) for item in together["items"]]
            frame = shop.recommend(**body)
            assert items == list(zip(frame["item_id"], frame["score"], strict=True))
            columns = [int(item[1:]) for item, _ in items]
            np.testing.assert_allclose(
                [score for _, score in items], scores[columns], rtol=1e-5, atol=1e-5 * np.abs(scores).max()
            )
            assert len(items) == N_ITEMS if model.repeats else len(items) < N_ITEMS
            if body.keys() == {"limit", "user_id"}:
                user = int(body["user_id"][1:])
                part = slice(ends[user] - of_export.counts[user], ends[user])
                assert columns == of_export.items[part].tolist()
                assert [score for _, score in items] == of_export.scores[part].tolist()
