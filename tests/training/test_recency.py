"""Recency in whole trainings: served scores are those of histories with weights exp(−δk)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from svc.errors import PayloadInvalid
from svc.export.request import ExportRequest
from svc.export.run import score_all
from svc.model import codec
from svc.model.load_model import check_sizes
from svc.model.model import Model
from svc.model.ranking.query import Interaction
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.incumbent import feature_trial_of
from svc.training.judging.recency import VALUES
from tests import planned
from tests.planned import Restriction
from tests.training.runs import BY_SCORE, Log, Make, features_of, header, opened, payload, run

DELTA = 0.4
N_USERS, N_ITEMS = 60, 30
SUMS = ("CosineKNN", "RP3beta", "DenseSLIM", "SLIM")
FACTORS = ("TruncatedSVD", "IALS")

Vector = np.ndarray
Events = list[tuple[str, int, float]]
"""Item, time and weight of one user's events."""


def write_events(path: Path, *, weighted: bool, ties: bool, seed: int = 1) -> dict[str, Events]:
    """Write the events of each user in random order. With `ties`, several events share a time."""
    rng = np.random.default_rng(seed)
    found: dict[str, Events] = {}
    lines = ["user_id,item_id,ts,w"]
    for user in range(N_USERS):
        items = rng.choice(N_ITEMS, int(rng.integers(3, 12)), replace=False)
        times = rng.permutation(len(items)) // (2 if ties else 1) + 1_600_000_000
        weights = rng.choice([0.5, 1.0, 3.0], len(items)) if weighted else np.ones(len(items))
        found[f"u{user}"] = [
            (f"i{item}", int(time), float(weight)) for item, time, weight in zip(items, times, weights, strict=True)
        ]
        lines += [f"u{user},{item},{time},{weight}" for item, time, weight in found[f"u{user}"]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return found


def recipe_blocks(algorithms: list[str], *, weighted: bool, **training: Any) -> dict[str, Any]:
    schema = {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"}
    return {
        "schema": schema | ({"weight_column": "w"} if weighted else {}),
        **({"cleansing": {"weight_scale": "raw"}} if weighted else {}),
        "training": {
            "algorithms": algorithms,
            "n_trials": len([name for name in algorithms if name != "Blend"]),
            "cutoff": 5,
            "parallelism": 1,
            "split": {"scheme": "leave_one_out"},
            **training,
        },
    }


def counted(known: Events, history: list[tuple[str, float]], delta: float = DELTA) -> dict[str, float]:
    """Return the weight of each item in a history: the sum of its weights times exp(−δk).

    k is the rank of the item's latest time, counted from the latest item.
    """
    latest, total = {}, {}
    behind = [(item, 10**12 + place, weight) for place, (item, weight) in enumerate(history)]
    for item, time, weight in sorted([*known, *behind], key=lambda event: event[1]):
        latest[item] = time
        total[item] = total.get(item, 0.0) + weight
    moments = sorted(set(latest.values()), reverse=True)
    return {item: total[item] * math.exp(-delta * moments.index(time)) for item, time in latest.items()}


def row_of(model: Model, counts: Mapping[str, float]) -> Vector:
    row = np.zeros(model.n_items)
    for item, count in counts.items():
        row[model.item_ids.index(item)] = count
    return row


def brute_force(model: Model, scorer: Any, row: Vector) -> Vector:
    """Return the score of every item for a history of weights `row`, (items,), by the definition of each model."""
    if scorer.kind == "neighbours":
        weights = np.zeros((model.n_items, model.n_items))
        for item in range(model.n_items):
            part = slice(scorer.offsets[item], scorer.offsets[item + 1])
            weights[item, scorer.columns[part]] = scorer.weights[part]
        return row @ weights
    if scorer.kind == "dense_weights":
        return row @ scorer.weights.astype(np.float64)
    if scorer.kind == "blend":
        parts = [scorer.factors, *scorer.sums] if scorer.factors else scorer.sums
        scores = [brute_force(model, part, row) for part in parts]
        return sum(weight * one / one.std() for weight, one in zip(scorer.weights, scores, strict=True))
    items = scorer.index.vectors(np.arange(model.n_items, dtype=np.int32))
    if not hasattr(scorer, "least_squares"):
        return row @ (items if scorer.scales is None else items * scorer.scales[:, np.newaxis]) @ items.T
    solver, chosen = scorer.least_squares, items[row > 0]
    r = solver.regularization(len(chosen), model.n_items)
    left = solver.alpha0 * items.T @ items + r * np.eye(items.shape[1]) + (chosen.T * row[row > 0]) @ chosen
    right = row[row > 0] @ chosen + (0.0 if solver.user_mean is None else r * solver.user_mean)
    return items @ np.linalg.solve(left, right)


def scores(model: Model, **asked: Any) -> Vector:
    asked = {"user_id": None, "user_features": None, **asked}
    prepared = planned.recommend(model, limit=model.n_items, include_seen=True, **asked)
    (ranking,) = model.rank([prepared.query])
    found = np.empty(model.n_items)
    found[ranking.items] = ranking.scores
    return found


def agree(found: Vector, expected: Vector) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


class Served(NamedTuple):
    """A trained model whose histories have recency DELTA, its header, and the events of its users."""

    model: Any
    header: Mapping[str, Any]
    events: dict[str, Events]


def trained(make_recipe: Make, path: Path, algorithms: list[str], *, detailed: bool, **training: Any) -> Served:
    """Return a trained model and its events. A blend wins if `algorithms` has it.

    With `detailed`, the events have weights, and some share a time.
    """
    events = write_events(path, weighted=detailed, ties=detailed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BY_SCORE, blend_first)
        blocks = recipe_blocks(algorithms, weighted=detailed, recency=DELTA, **training)
        model, head = opened(run(make_recipe(ratings=path, **blocks)))
    assert head["recency"] == model.history.recency == DELTA
    assert ("Blend" in algorithms) == (model.kind == "blend")
    return Served(model, head, events)


def blend_first(trials: list[TrialRecord]) -> list[TrialRecord]:
    return sorted(trials, key=lambda trial: (trial.algorithm != "BlendRecommender", trial.number))


@pytest.fixture(scope="module", params=[*SUMS, *FACTORS, "Blend"])
def served(
    request: pytest.FixtureRequest, make_shared_recipe: Make, tmp_path_factory: pytest.TempPathFactory
) -> Served:
    algorithms = ["IALS", "RP3beta", "DenseSLIM", "Blend"] if request.param == "Blend" else [request.param]
    return trained(make_shared_recipe, tmp_path_factory.mktemp("events") / "events.csv", algorithms, detailed=True)


def check_scores(served: Served, weight: float) -> None:
    """Compare the scores of known users, histories, both together, and repeated items with their definition."""
    model = served.model
    asked = [("i3", 1.0), ("i9", weight), ("i3", 1.0), ("i17", 1.0)]
    history = [Interaction(item, value) for item, value in asked]
    for user in ("u0", "u7"):
        known = served.events[user]
        for own, more in ((known, []), ([], asked), (known, asked), (known, [asked[0]])):
            expected = brute_force(model, model.scorer, row_of(model, counted(own, more)))
            agree(scores(model, user_id=user if own else None, history=history[: len(more)]), expected)


def test_every_algorithm_weights_histories_by_exp_of_minus_delta_k(served: Served) -> None:
    """Served scores follow the definition for rows with weights, of which several share a time."""
    check_scores(served, 2.0)


@pytest.mark.parametrize("algorithm", ["RP3beta", "IALS"])
def test_rows_without_weights_and_with_own_times_are_weighted_alike(
    make_recipe: Make, tmp_path: Path, algorithm: str
) -> None:
    check_scores(trained(make_recipe, tmp_path / "events.csv", [algorithm], detailed=False), 1.0)


def test_a_batch_and_explanations_agree_with_single_requests(served: Served) -> None:
    """A batch has the same bytes. The contributions of an explanation add up to 1."""
    model = served.model
    history = [Interaction("i3"), Interaction("i9", 2.0), Interaction("i3")]
    queries = [
        planned.recommend(
            model, user_id=user, user_features=None, limit=5, history=given, restriction=Restriction(explain=explain)
        ).query
        for user in (None, "u1", "u2")
        for given in ([], history)
        for explain in (0, 20)
        if user or given
    ]
    together = model.rank(queries)
    for query, ranking in zip(queries, together, strict=True):
        (alone,) = model.rank([query])
        assert alone.scores.tobytes() == ranking.scores.tobytes()
        assert len(ranking.because) == (len(ranking.items) if query.explain else 0)
        for because in ranking.because:
            assert abs(sum(share for _, share in because.reasons) + because.rest - 1) < 1e-9
            if served.header["algorithms"][0] != "IALSRecommender":  # whose prior has a share of its own
                assert abs(because.rest) < 1e-6


def test_an_export_has_the_bytes_of_single_requests(served: Served) -> None:
    """Exports and requests keep the order of histories, for every algorithm."""
    model = served.model
    rows = np.arange(model.n_users, dtype=np.int32)
    (part,) = score_all(model, ExportRequest(output="", limit=5), [rows], 1)
    ends = np.cumsum(part.counts)[:-1]
    for row, exported in zip(rows.tolist(), np.split(part.scores, ends), strict=True):
        prepared = planned.recommend(model, user_id=model.user_ids.at(row), user_features=None, limit=5)
        (ranking,) = model.rank([prepared.query])
        assert ranking.scores.tobytes() == exported.astype(np.float64).tobytes()


def test_recency_off_and_no_recency_train_the_same_model(make_recipe: Make, tmp_path: Path) -> None:
    """The model stores no order, and its header has no recency."""
    write_events(tmp_path / "events.csv", weighted=False, ties=False)
    found = set()
    for recency in ("off", 0):
        blocks = recipe_blocks(["RP3beta"], weighted=False, recency=recency)
        artifact = run(make_recipe(ratings=tmp_path / "events.csv", **blocks)).artifact
        assert "recency" not in header(artifact)
        found.add(payload(artifact))
    assert len(found) == 1


def write_chain(path: Path, *, shuffled: bool = False, n_users: int = 120, n_items: int = 60) -> Path:
    """Write histories in which each item is mostly followed by one of three others."""
    rng = np.random.default_rng(0)
    next_of = np.array([rng.choice(n_items, 3, replace=False) for _ in range(n_items)])
    lines = ["user_id,item_id,ts,w"]
    for user in range(n_users):
        items = [int(rng.integers(n_items))]
        while len(items) < 8:
            follows = [item for item in next_of[items[-1]].tolist() if item not in items]
            others = [item for item in range(n_items) if item not in items]
            items.append(int(rng.choice(follows if follows and rng.random() < 0.85 else others)))
        if shuffled:
            rng.shuffle(items)
        lines += [f"u{user},i{item},{1_600_000_000 + place},1" for place, item in enumerate(items)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.usefixtures("without_drawing")
def test_recency_wins_on_a_markov_chain_and_costs_nothing_on_shuffled_histories(
    make_recipe: Make, tmp_path: Path
) -> None:
    """On the chain, the best recency scores at least 1.3 times as much as recency 0."""
    found = {}
    for shuffled in (False, True):
        data = write_chain(tmp_path / f"{shuffled}.csv", shuffled=shuffled, n_users=250)
        for recency in ("search", "off"):
            blocks = recipe_blocks(["RP3beta"], weighted=False, recency=recency, cutoff=20)
            report = None if shuffled else tmp_path / "page.html"
            found[shuffled, recency] = header(run(make_recipe(ratings=data, **blocks), report=report).artifact)
    assert found[False, "search"]["recency"] > 0
    values = found[False, "search"]["evaluation"]["recency"]["values"]
    assert [row["recency"] for row in values] == list(VALUES)
    assert all(row["interval"][0] < row["score"] < row["interval"][1] for row in values)
    assert values[VALUES.index(found[False, "search"]["recency"])]["score"] == max(row["score"] for row in values)
    assert "recency" not in found[False, "off"]["evaluation"]
    assert found[False, "search"]["best_score"] > 1.3 * found[False, "off"]["best_score"]
    assert found[True, "search"]["best_score"] >= found[True, "off"]["best_score"]


def test_equal_times_give_a_recency_of_0(make_recipe: Make, tmp_path: Path) -> None:
    """All items have the same position, so all recencies score the same."""
    data = write_chain(tmp_path / "chain.csv")
    text = data.read_text(encoding="utf-8")
    data.write_text(re.sub(r",16\d{8},", ",1600000000,", text), encoding="utf-8")
    blocks = recipe_blocks(["RP3beta"], weighted=False, split={"scheme": "time_user", "heldout_ratio": 0.2})
    model, head = opened(run(make_recipe(ratings=data, **blocks)))
    assert "recency" not in head
    assert model.history.recency == 0.0


def test_rows_without_a_time_are_dropped_if_recency_is_searched(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """A random split, which needs no times, drops them, too."""
    data = write_chain(tmp_path / "chain.csv", n_users=40)
    with data.open("a", encoding="utf-8") as file:
        file.write("u0,i1,never,1\n")
    for recency, lost in ((0.5, [1]), ("off", [])):
        blocks = recipe_blocks(
            ["RP3beta"], weighted=False, recency=recency, split={"scheme": "random", "heldout_ratio": 0.3}
        )
        log.clear()
        assert run(make_recipe(ratings=data, **blocks)).exit_code == 0
        dropped = [record for record in log if record["event"] == "rows_dropped"]
        assert [record["count"] for record in dropped if record["reason"] == "bad_times"] == lost


def test_bounds_of_recency_apply_to_their_algorithm_only(make_recipe: Make, tmp_path: Path) -> None:
    """`search_space` narrows the recencies that are tried for this algorithm."""
    data = write_chain(tmp_path / "chain.csv", n_users=250)
    bounds = {"RP3beta": {"recency": [0.1, 0.3]}}
    blocks = recipe_blocks(["RP3beta", "CosineKNN"], weighted=False, search_space=bounds)
    best = header(run(make_recipe(ratings=data, **blocks)).artifact)["tuning"]["best_per_algorithm"]
    assert best["RP3betaRecommender"]["recency"] == 0.3
    assert best["CosineKNNRecommender"]["recency"] > 0.3


def ages_of(users: Iterable[str], folder: Path) -> dict[str, Any]:
    """Return the block `features` of users with an age, from 20 up in their order."""
    table = folder / "users.csv"
    table.write_text("\n".join(["user_id,age", *(f"{user},{20 + n}" for n, user in enumerate(users))]) + "\n")
    return features_of(table, {"name": "age", "kind": "numerical"}, side="user")


def test_features_of_a_known_user_are_the_prior_of_the_weighted_history(make_recipe: Make, tmp_path: Path) -> None:
    """A stored vector equals that of a cold start with the same features and history."""
    events = write_events(tmp_path / "events.csv", weighted=True, ties=True)
    blocks = recipe_blocks(["IALS"], weighted=True, recency=DELTA) | {"features": ages_of(events, tmp_path)}
    model, _ = opened(run(make_recipe(ratings=tmp_path / "events.csv", **blocks)))
    solver = model.scorer.least_squares
    items = model.scorer.index.vectors(np.arange(model.n_items, dtype=np.int32))
    asked = [("i3", 1.0), ("i9", 2.0), ("i3", 1.0)]
    for number, user in enumerate(["u0", "u1", "u2"]):
        age = {"age": 20 + number}
        features, _ = model.features.user.encode(age)
        history = [Interaction(item, weight) for item, weight in asked]
        cold = scores(model, user_features=age, history=history)
        stored = items @ model.scorer.users[model.user_ids.index(user)].astype(np.float64)
        for found, counts in ((stored, counted(events[user], [])), (cold, counted([], asked))):
            row = row_of(model, counts)
            chosen, values = items[row > 0], row[row > 0]
            r = solver.regularization(len(chosen), model.n_items)
            left = solver.alpha0 * items.T @ items + r * np.eye(items.shape[1]) + (chosen.T * values) @ chosen
            expected = items @ np.linalg.solve(left, values @ chosen + r * features @ solver.user_weights)
            agree(found, expected)


@pytest.mark.parametrize(("winners", "besides"), [(0.4, 0.0), (0.0, 1.5), (0.4, 0.4)])
def test_the_cold_start_model_weights_histories_by_its_own_recency(
    make_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winners: float, besides: float
) -> None:
    """The model, its header, and the trial that a refit reads from the header agree."""
    own = {"RP3betaRecommender": winners, "IALSRecommender": besides}
    monkeypatch.setattr(
        BY_SCORE,
        lambda trials: sorted(
            (replace(trial, recency=own[trial.algorithm]) for trial in trials), key=lambda trial: -len(trial.algorithm)
        ),
    )
    events = write_events(tmp_path / "events.csv", weighted=True, ties=True)
    blocks = recipe_blocks(["RP3beta", "IALS"], weighted=True) | {"features": ages_of(events, tmp_path)}
    result = run(make_recipe(ratings=tmp_path / "events.csv", **blocks))
    model, head = opened(result)
    assert (head["best_class"], head.get("recency", 0.0)) == ("RP3betaRecommender", winners)
    beside = feature_trial_of(head)
    assert beside is not None and beside.recency == besides
    assert model.history.recency_beside == (winners != besides)
    asked = [("i3", 1.0), ("i9", 2.0), ("i3", 1.0), ("i17", 1.0)]
    history = [Interaction(item, weight) for item, weight in asked]
    assert model.cold is not None
    for part, recency, known in ((model.scorer, winners, events["u0"]), (model.cold, besides, [])):
        expected = brute_force(model, part, row_of(model, counted(known, asked, recency)))
        agree(scores(model, user_id="u0" if known else None, history=history), expected)
    again = codec.decode(memoryview(payload(result.artifact)))
    if again.history.recency_beside:
        again.cold = None
        with pytest.raises(PayloadInvalid, match="second part, which weighs them by its own"):
            check_sizes(again)


def test_users_outside_the_sample_get_vectors_of_weighted_histories(make_recipe: Make, tmp_path: Path) -> None:
    """Users inside the sample get them, too."""
    algorithms = ["IALS", "RP3beta", "Blend"]
    found = trained(make_recipe, tmp_path / "events.csv", algorithms, detailed=True, sample_users=40)
    for user, events in found.events.items():
        expected = brute_force(found.model, found.model.scorer, row_of(found.model, counted(events, [])))
        agree(scores(found.model, user_id=user), expected)
