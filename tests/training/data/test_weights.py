"""Weights of interactions by column, event, age and position in a history, and recent popularity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from svc.errors import WeightOutOfRange
from svc.model.codec import encode
from svc.model.model import Model
from svc.model.ranking.item_sets import ItemSet
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import Cleansing, InteractionSchema
from svc.recipe.serving_schema import Popular
from svc.recipe.training_schema import Split, Training
from svc.training.data import fetch, weights
from svc.training.data.interactions import HiddenRows, Interactions, from_rows
from svc.training.data.split import split
from svc.training.data.weights import in_order, positions_of, recent_choices, weigh_rows
from svc.training.data.where import kept_rows
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.metrics import user_scores
from svc.training.judging.rankers import ScoreRanker
from tests import planned
from tests.planned import UNRESTRICTED
from tests.training.data.test_interactions import from_frame, recipe_of
from tests.training.runs import (
    SCHEMA,
    Log,
    Make,
    header,
    opened,
    payload,
    records_of,
    run,
    task_of,
    training,
    write_tastes,
)

DAY = 86_400
WEIGHTED = InteractionSchema(user_column="u", item_column="i", time_column="t", time_unit="s", weight_column="w")
EVENTS = InteractionSchema(user_column="u", item_column="i", event_column="e")


def frame(rows: list[tuple[Any, ...]], *columns: str) -> pd.DataFrame:
    found = pd.DataFrame(rows, columns=list(columns))
    return found.assign(u=found["u"].astype("category"), i=found["i"].astype("category"))


ROWS = frame([("a", "x", 2.0, 3), ("a", "x", 5.0, 1), ("a", "y", 1.5, 2), ("b", "x", 4.0, 9)], "u", "i", "w", "t")


@pytest.mark.parametrize(
    ("dedup", "expected"),
    [
        ("sum", [7.0, 1.5, 4.0]),
        ("max", [5.0, 1.5, 4.0]),
        ("count", [2.0, 1.0, 1.0]),
        ("keep_last", [2.0, 1.5, 4.0]),
        ("keep_first", [5.0, 1.5, 4.0]),
        ("none", [7.0, 1.5, 4.0]),
    ],
)
def test_several_interactions_of_a_pair_become_one_weight(dedup: Any, expected: list[float]) -> None:
    """With any rule, the matrix has one entry for each pair. First and last are chosen by time."""
    found = from_frame(ROWS, WEIGHTED, Cleansing(dedup=dedup), with_times=True)
    assert found.matrix().data.tolist() == expected
    assert len(found) == (4 if dedup == "none" else 3)


@pytest.mark.parametrize("dedup", ["sum", "max", "count", "keep_last", "keep_first", "none"])
def test_without_weights_the_matrix_is_binary_unless_rows_are_counted(dedup: Any) -> None:
    """The rules `sum`, `count` and `none` count rows."""
    plain = InteractionSchema(user_column="u", item_column="i")
    found = from_frame(ROWS, plain, Cleansing(dedup=dedup), with_times=False)
    counted = dedup in {"sum", "count", "none"}
    assert found.matrix().data.tolist() == ([2.0, 1.0, 1.0] if counted else [1.0, 1.0, 1.0])
    assert (found.weights is not None) == (dedup in {"sum", "count"})


def test_unusable_weights_are_dropped_with_their_count() -> None:
    """Missing values, words, zero, negative numbers and infinity are unusable."""
    rows = [("a", "x", 1.0), ("a", "y", None), ("a", "z", "two"), ("b", "x", 0), ("b", "y", -1), ("b", "z", np.inf)]
    found = from_frame(frame(rows, "u", "i", "w"), WEIGHTED, Cleansing(), with_times=False)
    assert found.dropped == {"bad_weights": 5}
    assert found.item_ids == ["x"]


def test_events_have_weights_and_excluded_events_hide_their_items() -> None:
    """An excluded event is no interaction. Events that the recipe does not list are dropped."""
    rows = [("a", "x", "view"), ("a", "x", "buy"), ("a", "y", " hide "), ("a", "y", "view"), ("b", "y", "click"),
            ("b", "x", None), ("c", "x", "hide"), ("b", "x", "view")]  # fmt: skip
    weights = {"view": 1, "buy": 10, "hide": "exclude"}
    cleansing = Cleansing(event_weights=weights, dedup="sum")
    found = from_frame(frame(rows, "u", "i", "e"), EVENTS, cleansing, with_times=False)
    assert (found.user_ids, found.item_ids) == (["a", "b"], ["x", "y"])
    assert found.matrix().toarray().tolist() == [[11.0, 1.0], [1.0, 0.0]]
    assert found.dropped == {"excluded_events": 2, "unlisted_events": 2, "duplicates": 1}
    hidden = found.hidden_matrix()
    assert hidden is not None
    assert hidden.toarray().tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_hidden_pairs_are_not_held_out_and_do_not_train() -> None:
    """No model may recommend a hidden pair, so holding it out would lower every score."""
    users, items = np.zeros(4, np.int32), np.arange(4, dtype=np.int32)
    hidden = HiddenRows(users[:1], np.array([3], np.int32), None, np.array([True]))
    data = Interactions(users, items, None, ["a"], list("wxyz"), {}, hidden=hidden)
    found = split(data, Split(scheme="leave_one_out", heldout_ratio=0.1, seed=1))
    assert found.n_heldout == 0
    assert found.hidden is not None
    assert found.hidden.toarray().tolist() == [[0, 0, 0, 1]]


def test_weights_are_split_with_their_pairs() -> None:
    """For any order of rows and columns, training and held-out entries together are the whole weighted matrix."""
    rng = np.random.default_rng(3)
    rows = sparse.random(30, 20, 0.4, random_state=1).tocoo()
    weights = rng.random(rows.nnz).astype(np.float32) + 1
    times = rng.permutation(rows.nnz) * 10**9
    ids = [[f"{side}{n}" for n in range(size)] for side, size in (("u", 30), ("i", 20))]
    data = Interactions(
        rows.row.astype(np.int32),
        rows.col.astype(np.int32),
        times,
        *ids,
        {},
        weights=weights,
        reference=int(times.max()),
    )
    found = split(data, Split(scheme="time_user", heldout_ratio=0.3, seed=1), keep_times=True)
    again = found.train.tolil()
    again[found.val_offset :] += found.heldout
    assert abs(again.tocsr() - data.matrix()[found.order]).max() < 1e-6
    assert found.times is not None
    assert found.times.indices.tolist() == found.train.indices.tolist()
    assert data.latest().indices.tolist() == data.matrix().indices.tolist()


def test_weighted_metrics_equal_values_computed_by_hand() -> None:
    """The user chose two items, of weight 3 and of weight 1. The ranking has the item of weight 3 in second place."""
    truth = sparse.csr_matrix(np.array([[0, 3.0, 1.0, 0]]))
    found = user_scores([[0, 1, 3]], truth)
    gain = 3 / np.log2(3)
    assert found["recall"].tolist() == [0.75]
    assert found["hit"].tolist() == [1.0]
    assert found["map"].tolist() == [0.5 * 3 / 4]
    assert found["ndcg"][0] == pytest.approx(gain / (3 + 1 / np.log2(3)))


def test_equal_weights_change_no_metric() -> None:
    """Weighted and plain metrics agree for rankings of any length."""
    rng = np.random.default_rng(9)
    truth = sparse.csr_matrix((rng.random((60, 30)) < 0.2).astype(float) * 2.5)
    truth = truth[np.diff(truth.indptr) > 0]
    rankings = [rng.permutation(30)[: rng.integers(0, 12)].tolist() for _ in range(truth.shape[0])]
    plain, weighted = user_scores(rankings, (truth > 0).astype(float)), user_scores(rankings, truth)
    for name, scores in plain.items():
        np.testing.assert_allclose(weighted[name], scores, atol=1e-12)


def test_only_a_weighted_evaluation_uses_weights() -> None:
    """The recall of one ranking is 0.5 without weights, and 0.1 with them."""
    truth = sparse.csr_matrix(np.array([[9.0, 1.0, 0.0]]))
    unseen = sparse.csr_matrix((1, 3))
    scores = np.array([[0.0, 1.0, 0.5]])
    ranker = ScoreRanker(lambda rows: scores[rows], unseen)
    recall = [
        Evaluator(truth, offset=0, cutoff=1, weighted=weighted).evaluate(ranker).metrics["recall"]
        for weighted in (False, True)
    ]
    assert recall == [0.5, 0.1]


def _table(path: Path, *, drift: bool) -> Path:
    """Return a table of users who like half of the catalogue early and the other half late.

    Each hides one late item.
    """
    rng = np.random.default_rng(2)
    lines = ["user_id,item_id,ts,event"]
    for user in range(120):
        for step in range(16):
            late = step >= 8 if drift else rng.random() < 0.5
            item = (20 if late else 0) + 2 * int(rng.integers(0, 10)) + user % 2
            event = "buy" if rng.random() < 0.3 else "view"
            lines.append(f"u{user},i{item},{1_600_000_000 + step * 30 * DAY + user},{event}")
        lines.append(f"u{user},i{38 + user % 2},{1_600_000_000 + 20 * 30 * DAY},hide")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("algorithm", ["IALS", "CosineKNN", "TopPop", "DenseSLIM", "TruncatedSVD", "Transitions"])
def test_weights_change_every_model_and_hidden_items_are_never_recommended(
    make_recipe: Make, tmp_path: Path, algorithm: str
) -> None:
    """Other weights of the same events train another model. Hidden items stay out even with `include_seen`."""
    ratings = _table(tmp_path / "events.csv", drift=False)
    rankings = []
    for buy in (1, 50):
        loaded = make_recipe(
            ratings=ratings,
            schema={**SCHEMA, "event_column": "event"},
            cleansing={"event_weights": {"view": 1, "buy": buy, "hide": "exclude"}, "dedup": "sum"},
            training=training(algorithm, split={"scheme": "leave_one_out"}),
        )
        model, _ = opened(run(loaded))
        answers = []
        for user in range(0, 120, 7):
            query = planned.recommend(model, user_id=f"u{user}", user_features=None, limit=40, include_seen=True).query
            ranking = model.rank([query])[0]
            assert len(ranking.items) == 39
            assert model.item_ids.index(f"i{38 + user % 2}") not in ranking.items
            answers.append((ranking.items.tolist(), ranking.scores.tolist()))
            alone = model.rank([planned.known_user(model, model.user_ids.index(f"u{user}"), limit=40)])[0]
            assert model.item_ids.index(f"i{38 + user % 2}") not in alone.items
        rankings.append(answers)
    assert rankings[0] != rankings[1]


def test_the_search_finds_a_half_life_if_tastes_change(make_recipe: Make, tmp_path: Path) -> None:
    """All tastes change once, at half of the time. The header has the half-life of the winner."""
    loaded = make_recipe(
        ratings=_table(tmp_path / "drift.csv", drift=True),
        schema={**SCHEMA, "event_column": "event"},
        cleansing={"event_weights": {"view": 1, "buy": 1, "hide": "exclude"}},
        training=training(
            "TopPop",
            n_trials=10,
            split={"scheme": "time_global", "heldout_ratio": 0.2},
            time_decay={"half_life": ["none", "30d", "7d"]},
        ),
    )
    head = header(run(loaded).artifact)
    assert head["tuning"]["completed"] == 3
    assert head["best_params"]["half_life"] in {"30d", "7d"}
    assert head["evaluation"]["ndcg"] == head["best_score"]


@pytest.mark.parametrize(
    ("weights", "dedup", "words"),
    [
        ([1e-50], "sum", "is 1e-50"),
        ([1e-46, 1e-46], "max", "is 1e-46"),
        ([3e38, 3e38], "sum", "is 6e\\+38"),
        ([3e38, 3e38], "none", "add up to is inf"),
        ([1e39], "keep_first", "user 'a' and item 'x'"),
    ],
)
def test_weights_that_single_precision_cannot_hold_are_refused(weights: list[float], dedup: Any, words: str) -> None:
    """A weight or a sum may be too small or too large. The smallest float32 is accepted."""
    rows = [("a", "x", weight, 1) for weight in weights]
    cleansing = Cleansing(dedup=dedup)
    with pytest.raises(WeightOutOfRange, match=words):
        from_frame(frame(rows, "u", "i", "w", "t"), WEIGHTED, cleansing, with_times=False).matrix()
    least = from_frame(frame([("a", "x", 1.5e-45, 1)], "u", "i", "w", "t"), WEIGHTED, cleansing, with_times=False)
    assert least.matrix().data.tolist() == [pytest.approx(1.4e-45, rel=0.01)]


NOW_S = 1_700_000_000
SCHEMES = ["random", "time_user", "leave_one_out", "time_global"]
MONTH = {"half_life": "30d"}


def test_a_weight_halves_with_each_half_life_of_its_age() -> None:
    """The latest event keeps its full weight. A very old item keeps a tiny weight, because it is still a seen item."""
    matrix = sparse.csr_matrix(np.array([[8.0, 8.0], [4.0, 1.0]], np.float32))
    days = np.array([0, 7, 14, 69_999], np.int64)
    times = sparse.csr_matrix((-days * DAY * 10**9, matrix.indices, matrix.indptr), shape=matrix.shape)
    found = weights.decay_matrix(matrix, times, {"half_life": "7d"}).toarray()
    assert found[:, 0].tolist() == [8.0, 1.0]
    assert found[0, 1] == 4.0
    assert 0 < found[1, 1] < 1e-5
    assert weights.decay_matrix(matrix, times, {"half_life": "none"}) is matrix
    assert weights.decay_matrix(matrix, times, {}) is matrix


@pytest.mark.parametrize(
    ("days", "reference", "ages"),
    [
        ([-3, -1, 400], -1, [2, 0, -1]),
        ([-3, -1, 0], -1, [2, 0, -1]),
        ([-400, -3, -3, -1], -3, [397, 0, 0, -2]),
        ([1, 2, 400], 0, [0, 0, 0]),
        ([-1, 2, 400], -1, [0, -1, -1]),
        ([-1], -1, [0]),
    ],
    ids=["one in the future", "none in the future", "one long ago", "all in the future", "two in the future", "one"],
)
def test_ages_count_from_the_usual_last_row_before_the_start_of_the_training(
    days: list[int], reference: int, ages: list[int]
) -> None:
    """One row in 1,000, and at least one, may be later. A warning has the number of rows in the future, and one."""
    rows = [("u", item, 1.0, NOW_S + day * DAY) for item, day in zip("wxyz", days, strict=False)]
    data = frame(rows, "u", "i", "w", "t")
    found = from_frame(data, WEIGHTED, Cleansing(), with_times=True, started_ns=NOW_S * 10**9)
    assert found.reference == (NOW_S + reference * DAY) * 10**9
    assert (-found.latest().toarray() // (DAY * 10**9)).tolist() == [ages]
    n_future = sum(day > 0 for day in days)
    assert (0 if found.future is None else found.future.count) == n_future
    if found.future is not None:
        row = next(place for place, day in enumerate(days, 1) if day > 0)
        assert f"'t' holds '{NOW_S + days[row - 1] * DAY}' in data row {row}" in found.future.detail


def _aged_table(path: Path, stray: int | str) -> Path:
    """Return sixty users with twelve items each in the year before `NOW_S`. The first row has the time `stray`."""
    rng = np.random.default_rng(4)
    rows = [
        (f"u{user}", f"i{item}", NOW_S - int(rng.integers(0, 365)) * DAY - user)
        for user in range(60)
        for item in rng.choice(30, size=12, replace=False)
    ]
    data = pd.DataFrame(rows, columns=["user_id", "item_id", "ts"]).astype({"ts": object})
    data.loc[0, "ts"], data.loc[12, "ts"] = stray, NOW_S
    data.to_csv(path, index=False)
    return path


def _recipe(make_recipe: Make, tmp_path: Path, scheme: str, stray: int, **changes: Any) -> LoadedRecipe:
    split = {"scheme": scheme, "heldout_ratio": 0.2, "test_user_ratio": 1.0}
    return make_recipe(
        ratings=_aged_table(tmp_path / "stray.csv", stray),
        schema=SCHEMA,
        training=training("TopPop", split=split, time_decay=MONTH, **changes),
    )


def _oldest_age_s(matrix: sparse.csr_matrix) -> float:
    """Return the age in seconds of the smallest weight of a binary matrix, for a half-life of a month."""
    return float(-np.log2(matrix.data.min()) * 30 * DAY)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("stray", [NOW_S, 4_070_908_800], ids=["no future row", "a row of 2099"])
def test_the_final_training_decays_rows_of_the_search_as_the_search_did(
    make_recipe: Make, tmp_path: Path, scheme: str, stray: int
) -> None:
    """The search and the final training count ages from the same time.

    With the split `time_global`, the search counts ages from its cut-off instead.
    """
    task = task_of(_recipe(make_recipe, tmp_path, scheme, stray))
    searched = task.holdout.decay_matrix(MONTH)
    final = task.matrix(MONTH)[task.split.order][:, task.split.item_order]
    both = np.asarray(final[searched.nonzero()]).ravel()
    if scheme == "time_global":
        times = task.data.interactions.times
        assert times is not None
        cutoff = np.sort(times)[int(0.8 * (len(times) - 1))]
        assert _oldest_age_s(searched) == pytest.approx((cutoff - times.min()) / 1e9, rel=1e-4)
        assert _oldest_age_s(final) == pytest.approx(NOW_S - times.min() / 1e9, rel=1e-4)
    else:
        np.testing.assert_array_equal(searched.data, both)


def test_a_sample_of_users_has_the_reference_time_of_all_users(make_recipe: Make, tmp_path: Path) -> None:
    """Weights of users outside the sample therefore decay like those of users inside it."""
    task = task_of(_recipe(make_recipe, tmp_path, "time_user", NOW_S + 400 * DAY, sample_users=20))
    assert task.data.sample is not None
    assert 0 not in task.data.sample.rows
    sampled, all_users = task.matrix(MONTH), task.matrix(MONTH, all_users=True)
    assert abs(all_users[task.data.sample.rows] - sampled).nnz == 0


@pytest.mark.usefixtures("without_drawing")
def test_a_row_in_the_far_future_acts_like_a_row_at_the_last_event(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """The payloads are equal. Log, header and report have a warning."""
    payloads, heads = [], []
    report = tmp_path / "report.html"
    for stray in (NOW_S, 4_070_908_800):
        artifact = run(_recipe(make_recipe, tmp_path, "time_user", stray), report=report).artifact
        payloads.append(payload(artifact))
        heads.append(header(artifact))
    assert payloads[0] == payloads[1]
    (warning,) = records_of(log, "future_times")
    assert (warning["log_level"], warning["count"]) == ("warning", 1)
    assert "'ts' holds '4070908800' in data row 1," in warning["detail"]
    assert "future_times" not in heads[0]["data_stats"]
    assert heads[1]["data_stats"]["future_times"] == 1
    assert "later than the start of the training" in report.read_text(encoding="utf-8")


def times(rng: np.random.Generator) -> sparse.csr_matrix:
    """Return random times, many of them equal, with some empty rows."""
    dense = rng.integers(1, 6, (20, 12)) * (rng.random((20, 12)) < 0.4)
    dense[[0, 7, 19]] = 0
    return sparse.csr_matrix(dense.astype(np.int64))


def test_positions_count_within_each_row() -> None:
    """Positions equal their definition, row by row."""
    latest = times(np.random.default_rng(1))
    positions = positions_of(latest)
    order, ties = in_order(positions)
    for row in range(latest.shape[0]):
        part = slice(latest.indptr[row], latest.indptr[row + 1])
        own = latest.data[part]
        moments = sorted(set(own.tolist()), reverse=True)
        assert positions.data[part].tolist() == [moments.index(time) for time in own.tolist()]
        oldest_first = latest.data[order[part]]
        assert oldest_first.tolist() == sorted(own.tolist())
        assert ties[part].tolist() == [
            place > 0 and oldest_first[place - 1] == time for place, time in enumerate(oldest_first)
        ]


def test_rows_are_weighted_alike_alone_and_together() -> None:
    """Each entry is multiplied by exp(−δ · position), whether a row is alone or with others."""
    latest = times(np.random.default_rng(2))
    matrix = latest.astype(np.float32)
    positions = positions_of(latest)
    found = weigh_rows(matrix, positions, 0.3)
    np.testing.assert_allclose(found.data, matrix.data * np.exp(-0.3 * positions.data))
    rows = np.array([2, 5, 11])
    assert (weigh_rows(matrix, positions, 0.3, rows) != found[rows]).nnz == 0


START_S = 1_700_000_000
RULES = [{"half_life": "7d"}, {"window": "30d"}, {"half_life": "12h", "window": "4w"}]
Row = tuple[int, int, int]


def latest_ages(rows: list[Row]) -> dict[tuple[int, int], int]:
    """Return the seconds from the latest row of each user and item to the start of the training."""
    latest: dict[tuple[int, int], int] = {}
    for user, item, time_s in rows:
        latest[user, item] = max(latest.get((user, item), time_s), time_s)
    return {pair: max(0, START_S - time_s) for pair, time_s in latest.items()}


def brute_force(rows: list[Row], n_items: int, rule: Popular) -> list[float]:
    """Return the count of each item by the definition, row by row."""
    counts = [0.0] * n_items
    for (_, item), age_s in sorted(latest_ages(rows).items(), key=lambda pair: -pair[1]):
        if rule.window_s is None or age_s <= rule.window_s:
            counts[item] += 1.0 if rule.half_life_s is None else 2.0 ** (-age_s / rule.half_life_s)
    return counts


def counted(rows: list[Row], n_items: int, rule: Popular) -> np.ndarray:
    users, items, times = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    codes = users.astype(np.int32), items.astype(np.int32)
    return recent_choices(*codes, times * 10**9, n_items, rule, started_ns=START_S * 10**9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(-60 * DAY, 5 * DAY)), min_size=1),
    st.sampled_from(RULES),
)
def test_recent_counts_equal_brute_force_up_to_one_factor(rows: list[Row], rule: dict[str, Any]) -> None:
    """Each user counts once for an item. A row in the future counts as one at the start of the training."""
    shifted, popular = [(user, item, START_S + offset) for user, item, offset in rows], Popular(**rule)
    counts, expected = counted(shifted, 7, popular), brute_force(shifted, 7, popular)
    largest = max(counts)
    assert counts * max(expected) == pytest.approx(np.array(expected) * largest, rel=1e-9)
    assert largest > 0 or max(expected) == 0


def test_equal_ages_count_equally_in_any_order_of_rows() -> None:
    """The counts agree in all bits. Rounding errors would otherwise order items of equal popularity."""
    ages = [3.1, 14.7, 0.2, 9.9, 30.3, 1.1]
    rows = [(user, 0, int(START_S - age * DAY)) for user, age in enumerate(ages)]
    rows += [(user, 1, int(START_S - age * DAY)) for user, age in enumerate(reversed(ages))]
    counts = counted(rows, 2, Popular(half_life="7d"))
    assert counts[0] == counts[1]


def test_counts_depend_on_the_start_of_the_training_only_by_the_window() -> None:
    """Two trainings on the same rows write the same bytes. Without a window, rows of decades ago still count."""
    times = np.array([0, 5, 10], dtype=np.int64) * 10**9
    codes = np.arange(3, dtype=np.int32)
    starts = [20 * 10**9, 2 * 10**18]
    first, second = (recent_choices(codes, codes, times, 3, Popular(half_life="1h"), started_ns=at) for at in starts)
    assert first.tolist() == second.tolist() == sorted(first.tolist())
    assert first[2] == 1.0
    windows = [recent_choices(codes, codes, times, 3, Popular(window="1h"), started_ns=at) for at in starts]
    assert [found.tolist() for found in windows] == [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("stray", [4_070_908_800, 3_600, START_S], ids=["2099", "1970", "late"])
def test_one_row_of_any_time_keeps_the_order_of_all_other_items_by_recent_choices(stray: int) -> None:
    """The counts of other items do not round to 0 beside an item that was chosen decades later."""
    rows = [(user, user, START_S - (9_000 - 3 * user) * DAY) for user in range(8)]
    order = counted(rows, 9, Popular(half_life="1d")).argsort()[-8:]
    found = counted([*rows, (8, 8, stray)], 9, Popular(half_life="1d"))
    assert [item for item in found.argsort().tolist() if item != 8] == order.tolist()
    assert (found[:8] > 0).all()


@pytest.mark.parametrize("dedup", ["keep_first", "keep_last", "none", "count"])
def test_the_latest_row_counts_with_any_dedup(dedup: Any) -> None:
    """`a` was chosen long ago and yesterday, and `b` three days ago. The popularity of `a` counts from yesterday."""
    days = [("u1", "a", -50), ("u1", "b", -3), ("u1", "a", -1), ("", "c", -1)]
    rows = pd.DataFrame(days, columns=["user_id", "item_id", "ts"]).astype(
        {"user_id": "category", "item_id": "category"}
    )
    rows["ts"] = START_S + rows["ts"] * DAY
    schema = InteractionSchema(user_column="user_id", item_column="item_id", time_column="ts", time_unit="s")
    recipe = recipe_of(schema, Cleansing(dedup=dedup), Training(), popular=Popular(half_life="1d"))
    found = from_rows(kept_rows(rows, None), recipe, started_ns=START_S * 10**9)
    assert found.popularity is not None
    assert dict(zip(found.item_ids, found.popularity.tolist(), strict=True)) == {"a": 1.0, "b": 0.25}


def most_chosen(model: Model, **asked: Any) -> list[str]:
    prepared = planned.popular(model, limit=60, restriction=UNRESTRICTED._replace(**asked))
    return [model.item_ids.at(column) for column in model.rank([prepared.query])[0].items.tolist()]


@pytest.mark.parametrize("rule", [{"half_life": "2d"}, {"window": "6d"}, {"half_life": "90min", "window": "6d"}])
def test_a_trained_model_ranks_by_recent_popularity(
    rule: dict[str, Any], make_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Popular lists and the fallback use recent counts. Everything else is as without `serving.popular`.

    Ties, and items without a row in the window, follow the counts of all choices, then the training order.
    """
    start_s = 1_600_000_000 + 12 * DAY
    monkeypatch.setattr(fetch.time, "time_ns", lambda: start_s * 10**9)
    table = write_tastes(tmp_path / "tastes.csv")
    blocks = {"ratings": table, "training": training()}
    plain, _ = opened(run(make_recipe(**blocks)))
    model, head = opened(run(make_recipe(**blocks, serving={"popular": rule})))

    popular, counts = Popular(**rule), dict.fromkeys(plain.item_ids.all(), 0.0)
    ages_s = start_s - pd.read_csv(table).groupby(["user_id", "item_id"])["ts"].max()
    for (_, item), age_s in ages_s.sort_values(ascending=False).items():
        if popular.window_s is None or age_s <= popular.window_s:
            counts[item] += 1.0 if popular.half_life_s is None else 2.0 ** (-age_s / popular.half_life_s)
    expected = sorted(counts, key=lambda item: -counts[item])  # stable, and items stand most chosen first
    assert most_chosen(model) == expected != most_chosen(plain)
    few = ["i7", "i1", "i30"]
    assert most_chosen(model, allowed=ItemSet.of_columns(model.item_ids.indices(few), 60)) == [
        item for item in expected if item in few
    ]
    asked = planned.recommend(model, user_id="nobody", user_features=None, limit=60, fallback=True)
    assert model.rank([asked.query])[0].items.tolist() == [model.item_ids.index(item) for item in expected]

    assert head["popular"] == rule
    assert model.item_ids.all() == plain.item_ids.all()
    assert model.popularity is not None
    assert plain.popularity is None
    del model.popularity
    assert b"".join(encode(model)) == b"".join(encode(plain))
