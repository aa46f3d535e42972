"""The algorithm Transitions, compared with its formula over dense arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import RecipeError
from svc.training.fitting.algorithms import transitions
from svc.training.fitting.algorithms.transitions import MAX_GAPS_NS, TransitionsRecommender
from tests import planned
from tests.training.runs import Make, opened, run, training

N_USERS, N_ITEMS = 30, 12
HOUR_NS = 3_600 * 10**9


def histories(seed: int, *, distinct_times: int = 40) -> sparse.csr_matrix:
    """Return times of random choices, (users, items), in hours since a fixed moment, many of them equal."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((N_USERS, N_ITEMS)) < 0.5
    chosen[3] = False  # a user without items
    chosen[:, 5] = False  # an item that nobody has
    times = chosen * (rng.integers(1, distinct_times + 1, chosen.shape) * HOUR_NS)
    return sparse.csr_matrix(times.astype(np.int64))


def formula(
    times: NDArray[np.int64],
    *,
    max_steps: int,
    backward: float,
    max_gap: str,
    same_time: float,
    source_exponent: float,
    target_exponent: float,
    top_k: int,
) -> NDArray[np.float64]:
    """Return the weights by their definition, pair by pair."""
    counts, gap_ns = np.zeros((N_ITEMS, N_ITEMS)), MAX_GAPS_NS[max_gap]
    for history in times:
        moments = np.unique(history[history > 0])
        for i in np.flatnonzero(history):
            for j in np.flatnonzero(history):
                steps = np.searchsorted(moments, history[j]) - np.searchsorted(moments, history[i])
                near = gap_ns is None or abs(history[j] - history[i]) <= gap_ns
                if 0 < abs(steps) <= max_steps and near:
                    counts[i, j] += (1.0 if steps > 0 else backward) / abs(steps)
                elif steps == 0 and i != j:
                    counts[i, j] += same_time
    sums = counts.sum(axis=1, keepdims=True) ** source_exponent * counts.sum(axis=0, keepdims=True) ** target_exponent
    weights = np.divide(counts, sums, out=np.zeros_like(counts), where=counts > 0)
    for row in weights:
        row[np.argsort(-row, kind="stable")[top_k:]] = 0.0
    return weights


@hypothesis.given(
    seed=st.integers(0, 10_000),
    max_steps=st.integers(1, 20),
    backward=st.sampled_from([0.0, 0.5, 1.0]),
    max_gap=st.sampled_from(sorted(MAX_GAPS_NS)),
    same_time=st.sampled_from([0.0, 0.5, 1.0]),
    source_exponent=st.floats(0, 1),
    target_exponent=st.floats(0, 1),
    distinct_times=st.sampled_from([1, 3, 40, 2_000]),
)
@hypothesis.settings(max_examples=40)
def test_the_weights_equal_the_formula(  # noqa: PLR0917 - the parameters of the algorithm
    seed: int,
    max_steps: int,
    backward: float,
    max_gap: str,
    same_time: float,
    source_exponent: float,
    target_exponent: float,
    distinct_times: int,
) -> None:
    """Weights agree for any parameters and times, equal times included."""
    times = histories(seed, distinct_times=distinct_times)
    expected = formula(
        times.toarray(),
        max_steps=max_steps,
        backward=backward,
        max_gap=max_gap,
        same_time=same_time,
        source_exponent=source_exponent,
        target_exponent=target_exponent,
        top_k=N_ITEMS,
    )
    trained = TransitionsRecommender(
        (times > 0).astype(np.float64),
        times=times,
        max_steps=max_steps,
        backward=backward,
        max_gap=max_gap,
        same_time=same_time,
        source_exponent=source_exponent,
        target_exponent=target_exponent,
        top_k=N_ITEMS,
    ).learn()
    np.testing.assert_allclose(trained.W.toarray(), expected, rtol=1e-9, atol=1e-12)


def test_the_largest_weights_of_each_item_are_kept() -> None:
    """The comparison ignores columns whose weights differ only by rounding."""
    times = histories(7)
    every = TransitionsRecommender((times > 0).astype(float), times=times, top_k=N_ITEMS).learn().W.toarray()
    kept = TransitionsRecommender((times > 0).astype(float), times=times, top_k=4).learn().W.toarray()
    for row, strongest in zip(every, kept, strict=True):
        np.testing.assert_array_equal(np.sort(strongest)[::-1][:4], np.sort(row)[::-1][:4])
        assert np.count_nonzero(strongest) == min(4, np.count_nonzero(row))


def test_the_size_of_blocks_does_not_change_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory limit decides only how many items are counted at once."""
    times = histories(3)
    at_once = TransitionsRecommender((times > 0).astype(float), times=times, backward=0.5, same_time=0.5).learn().W
    monkeypatch.setattr(transitions, "_MOST_PAIRS", 50)
    in_blocks = TransitionsRecommender((times > 0).astype(float), times=times, backward=0.5, same_time=0.5).learn().W
    np.testing.assert_array_equal(at_once.toarray(), in_blocks.toarray())


def test_the_score_of_a_history_is_the_sum_of_its_items_weights() -> None:
    """As in any item-weight model, a score is the sum of the matrix values times the weights."""
    times = histories(11)
    matrix = (times > 0).astype(np.float64) * 2.0
    trained = TransitionsRecommender(matrix, times=times).learn()
    np.testing.assert_allclose(trained.get_score(np.array([0, 4])), matrix[[0, 4]].toarray() @ trained.W.toarray())


def test_equal_times_leave_no_weights() -> None:
    """If all choices have one time, no item follows another."""
    times = (histories(1) > 0).astype(np.int64) * HOUR_NS
    assert TransitionsRecommender((times > 0).astype(float), times=times.tocsr()).learn().W.nnz == 0


CHAIN_ITEMS = 60


def write_chain(path: Path, *, shuffled: bool = False) -> Path:
    """Write histories of a Markov chain, in which the next item follows in four of five cases."""
    rng = np.random.default_rng(1)
    lines = ["user_id,item_id,ts"]
    for user in range(300):
        item, history = int(rng.integers(CHAIN_ITEMS)), []
        while len(history) < 8:
            if item not in history:
                history.append(item)
            item = (item + 1) % CHAIN_ITEMS if rng.random() < 0.8 else int(rng.integers(CHAIN_ITEMS))
        if shuffled:
            rng.shuffle(history)
        lines += [f"u{user},i{chosen},{1_600_000_000 + step}" for step, chosen in enumerate(history)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def chain_training(*algorithms: str) -> dict[str, Any]:
    split = {"scheme": "leave_one_out"}
    return training(algorithms=list(algorithms), n_trials=3 * len(algorithms), split=split, recency="off")


def test_transitions_win_on_a_markov_chain_and_not_on_shuffled_histories(make_recipe: Make, tmp_path: Path) -> None:
    """On the chain, their score is at least 1.3 times that of the best algorithm that ignores order.

    The artifact has item weights like a neighbour model, and answers for a history alone.
    """
    scores = {}
    for shuffled in (True, False):
        ratings = write_chain(tmp_path / f"{shuffled}.csv", shuffled=shuffled)
        result = run(make_recipe(ratings=ratings, training=chain_training("RP3beta", "Transitions")))
        model, header = opened(result)
        best = header["tuning"]["best_per_algorithm"]
        scores[shuffled] = best["TransitionsRecommender"]["score"] / best["RP3betaRecommender"]["score"]
    assert scores[False] > 1.3
    assert scores[True] < 1.1
    assert header["best_class"] == "TransitionsRecommender"
    query = planned.related(model, seed_items=["i10"], item_features=None, user_features=None, limit=1).query
    assert model.rank([query])[0].items.tolist() == [model.item_ids.index("i11")]


def test_without_a_time_column_the_recipe_is_refused(make_recipe: Make) -> None:
    """The message names the algorithm and the missing field."""
    with pytest.raises(RecipeError, match=r"TransitionsRecommender .* needs schema\.time_column"):
        make_recipe(
            schema={"user_column": "user_id", "item_column": "item_id"},
            training={"algorithms": ["Transitions"], "n_trials": 1, "cutoff": 5},
        )
