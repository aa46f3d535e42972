"""The weight of an interaction, from the table to the answers: weights, events, duplicates and age."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.errors import WeightOutOfRange
from svc.model import codec
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import Cleansing, InteractionSchema
from svc.settings import Settings
from svc.training.data.interactions import HiddenRows, Interactions, from_frame
from svc.training.data.split import SplitPlan, split
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.metrics import user_scores
from svc.training.judging.rankers import ScoreRanker
from svc.training.run import TrainOptions, train

Make = Callable[..., LoadedRecipe]
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
    """First and last go by time. The matrix has one entry for each pair with any rule."""
    found = from_frame(ROWS, WEIGHTED, Cleansing(dedup=dedup), with_times=True)
    assert found.matrix().data.tolist() == expected
    assert len(found) == (4 if dedup == "none" else 3)


@pytest.mark.parametrize("dedup", ["sum", "max", "count", "keep_last", "keep_first", "none"])
def test_without_weights_the_matrix_is_binary_unless_rows_are_counted(dedup: Any) -> None:
    """The matrix is binary as ever, unless the recipe asks how often."""
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


def test_events_have_weights_and_excluded_ones_hide() -> None:
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
    """No model may recommend them, so they would lower every score."""
    users, items = np.zeros(4, np.int32), np.arange(4, dtype=np.int32)
    hidden = HiddenRows(users[:1], np.array([3], np.int32), None, np.array([True]))
    data = Interactions(users, items, None, ["a"], list("wxyz"), {}, hidden=hidden)
    found = split(data, SplitPlan("leave_one_out", 0.1, 1.0, 1))
    assert found.n_heldout == 0
    assert found.hidden is not None
    assert found.hidden.toarray().tolist() == [[0, 0, 0, 1]]


def test_weights_are_split_with_their_pairs() -> None:
    """Training and held-out entries together are the whole weighted matrix, with any order of rows and columns."""
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
    found = split(data, SplitPlan("time_user", 0.3, 1.0, 1, keep_times=True))
    again = found.train.tolil()
    again[found.val_offset :] += found.heldout
    assert abs(again.tocsr() - data.matrix()[found.order]).max() < 1e-6
    assert found.times is not None
    assert found.times.indices.tolist() == found.train.indices.tolist()
    assert data.latest().indices.tolist() == data.matrix().indices.tolist()


def test_weighted_metrics_equal_values_computed_by_hand() -> None:
    """The user chose two items of weight 3 and 1, and the heavier one has the second place."""
    truth = sparse.csr_matrix(np.array([[0, 3.0, 1.0, 0]]))
    found = user_scores([[0, 1, 3]], truth)
    gain = 3 / np.log2(3)
    assert found["recall"].tolist() == [0.75]
    assert found["hit"].tolist() == [1.0]
    assert found["map"].tolist() == [0.5 * 3 / 4]
    assert found["ndcg"][0] == pytest.approx(gain / (3 + 1 / np.log2(3)))


def test_weights_of_one_change_no_metric() -> None:
    """Weighted and plain metrics agree for equal weights and rankings of any length."""
    rng = np.random.default_rng(9)
    truth = sparse.csr_matrix((rng.random((60, 30)) < 0.2).astype(float) * 2.5)
    truth = truth[np.diff(truth.indptr) > 0]
    rankings = [rng.permutation(30)[: rng.integers(0, 12)].tolist() for _ in range(truth.shape[0])]
    plain, weighted = user_scores(rankings, (truth > 0).astype(float)), user_scores(rankings, truth)
    for name, scores in plain.items():
        np.testing.assert_allclose(weighted[name], scores, atol=1e-12)


def test_only_a_weighted_evaluation_uses_weights() -> None:
    """One ranking is scored in both ways."""
    truth = sparse.csr_matrix(np.array([[9.0, 1.0, 0.0]]))
    unseen = sparse.csr_matrix((1, 3))
    scores = np.array([[0.0, 1.0, 0.5]])
    ranker = ScoreRanker(lambda rows: scores[rows], unseen)
    recall = [
        Evaluator(truth, offset=0, cutoff=1, weighted=weighted).metrics(ranker)["recall"] for weighted in (False, True)
    ]
    assert recall == [0.5, 0.1]


def _table(path: Path, *, drift: bool) -> Path:
    """Return users who like half of the catalogue early, the other half late, and hide one item of the late half."""
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


def _run(loaded: LoadedRecipe) -> tuple[dict[str, Any], Any]:
    result = train(loaded, TrainOptions(run_id="r1", dev_unsigned=True), Settings(), Progress())
    assert result.artifact is not None
    parsed = read_verified(result.artifact, development_keys(), Settings())[1]
    model = codec.decode(parsed.payload)
    model.ready()
    return parsed.header, model


SCHEMA = {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"}


@pytest.mark.parametrize(
    "algorithm", ["IALS", "CosineKNN", "TopPop", "RP3beta", "DenseSLIM", "TruncatedSVD", "SLIM", "EDLAE", "Transitions"]
)
def test_weights_change_every_model_and_hidden_items_are_never_recommended(
    make_recipe: Make, tmp_path: Path, algorithm: str
) -> None:
    """Other weights of the same events train another model. Hidden items stay out with include_seen too."""
    ratings = _table(tmp_path / "events.csv", drift=False)
    rankings = []
    for buy in (1, 50):
        loaded = make_recipe(
            ratings=ratings,
            schema={**SCHEMA, "event_column": "event"},
            cleansing={"event_weights": {"view": 1, "buy": buy, "hide": "exclude"}, "dedup": "sum"},
            training={"algorithms": [algorithm], "n_trials": 1, "cutoff": 5, "split": {"scheme": "leave_one_out"}},
        )
        _, model = _run(loaded)
        answers = []
        for user in range(0, 120, 7):
            query = model.prepare_recommend(user_id=f"u{user}", user_features=None, limit=40, include_seen=True).query
            ranking = model.rank([query])[0]
            assert len(ranking.items) == 39
            assert model.item_ids.index(f"i{38 + user % 2}") not in ranking.items
            answers.append((ranking.items.tolist(), ranking.scores.tolist()))
            alone = model.rank([model.known_user(model.user_ids.index(f"u{user}"), limit=40)])[0]
            assert model.item_ids.index(f"i{38 + user % 2}") not in alone.items
        rankings.append(answers)
    assert rankings[0] != rankings[1]


def test_without_these_keys_the_artifact_has_no_trace_of_them(make_recipe: Make) -> None:
    """Neither header nor payload changes."""
    head, model = _run(make_recipe(training={"algorithms": ["TopPop"], "n_trials": 1, "cutoff": 5}))
    assert "hidden" not in model.__getstate__()
    assert model.history.weights is None
    assert "half_life" not in head["best_params"]


def test_the_search_finds_a_half_life_if_tastes_change(make_recipe: Make, tmp_path: Path) -> None:
    """Tastes change once, halfway. The header has the winner's half-life."""
    loaded = make_recipe(
        ratings=_table(tmp_path / "drift.csv", drift=True),
        schema={**SCHEMA, "event_column": "event"},
        cleansing={"event_weights": {"view": 1, "buy": 1, "hide": "exclude"}},
        training={
            "algorithms": ["TopPop"],
            "n_trials": 10,
            "cutoff": 5,
            "split": {"scheme": "time_global", "heldout_ratio": 0.2},
            "time_decay": {"half_life": ["none", "30d", "7d"]},
        },
    )
    head, _ = _run(loaded)
    assert head["tuning"]["completed"] == 3
    assert head["best_params"]["half_life"] in {"30d", "7d"}
    assert head["evaluation"]["ndcg"] == head["best_score"]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1e-50], "the weight of 'a' and 'x'|is 1e-50"),
        ([3e38, 3e38], "is (inf|6e\\+38)"),
        ([1e39], "is 1e\\+39"),
    ],
)
def test_weights_that_single_precision_cannot_hold_are_refused(weights: list[float], words: str) -> None:
    """They are too small or too large, alone or summed. The smallest float32 is accepted."""
    rows = [("a", "x", weight, 1) for weight in weights]
    cleansing = Cleansing(dedup="sum")
    with pytest.raises(WeightOutOfRange, match=words):
        from_frame(frame(rows, "u", "i", "w", "t"), WEIGHTED, cleansing, with_times=False).matrix()
    least = from_frame(frame([("a", "x", 1.5e-45, 1)], "u", "i", "w", "t"), WEIGHTED, cleansing, with_times=False)
    assert least.matrix().data.tolist() == [pytest.approx(1.4e-45, rel=0.01)]
