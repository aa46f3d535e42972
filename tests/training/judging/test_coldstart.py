"""The measurement of cold starts: rankings of unseen ids by features, beside a popularity baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from irspack.recommenders import IALSRecommender
from scipy import sparse

from svc.model.features import NumberColumn, SideEncoder, TokenColumn
from svc.model.ids import IdTable
from svc.training.data.features import FittedSide
from svc.training.fitting.export import to_scorer
from svc.training.fitting.train import train_epochs
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.coldstart import (
    N_BINS,
    evaluate_cold_start,
    intervals_of_draws,
    ranker_of_held,
    search_work,
    shared_values,
    training_work,
)
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task
from tests.training.runs import Log, Make, features_of, task_of, training


@pytest.mark.parametrize("nu", [0.0, 1.0])
@pytest.mark.parametrize("loss", ["IALSPP", "ORIGINAL"])
def test_rankings_are_those_of_irspack_with_cholesky(nu: float, loss: str) -> None:
    """Rankings agree for both sides, both losses and both scalings of the regularization."""
    rng = np.random.default_rng(3)
    matrix = sparse.csr_matrix((rng.random((50, 40)) < 0.2).astype(np.float32))
    users, items = rng.random((50, 3)).astype(np.float32), rng.random((40, 4)).astype(np.float32)
    trained = train_epochs(
        IALSRecommender(
            matrix, n_components=6, alpha0=0.2, reg=0.05, nu=nu, loss_type=loss, solver_type="CHOLESKY", n_threads=1,
            user_features=users, item_features=items, lambda_user_feature=1.0, lambda_item_feature=1.0,
        ),
        4,
    )  # fmt: skip
    served = to_scorer(trained, "IALSRecommender")
    for side, features, expected in (
        ("user", users, trained.compute_user_embedding_from_features(users) @ trained.get_item_embedding().T),
        ("item", items, trained.get_user_embedding() @ trained.compute_item_embedding_from_features(items).T),
    ):
        ranker = ranker_of_held(side, served, sparse.csr_matrix(features))  # type: ignore[arg-type]
        ranked = np.array(ranker(np.arange(len(expected)), expected.shape[1]))
        assert (np.sort(ranked, axis=1) == np.arange(expected.shape[1])).all()
        assert (np.diff(np.take_along_axis(expected, ranked, axis=1), axis=1) < 2e-5).all()


def _task(make_recipe: Make, tmp_path: Path, columns: dict[str, list[str]], kind: str) -> Task:
    """Return a task over film-like data with these feature columns. Popular items come first in the table."""
    rng = np.random.default_rng(4)
    n_users, n_items = 300, 120
    chance = 1.0 / np.arange(2, n_items + 2)
    lines = ["user_id,item_id,ts"]
    for user in range(n_users):
        liked = rng.choice(n_items, size=8, replace=False, p=chance / chance.sum())
        lines += [f"u{user},i{item},{user * 100 + step}" for step, item in enumerate(liked)]
    (tmp_path / "r.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [f"i{item}," + ",".join(values[item] for values in columns.values()) for item in range(n_items)]
    (tmp_path / "f.csv").write_text("\n".join(["item_id," + ",".join(columns), *rows]) + "\n", encoding="utf-8")
    features = features_of(tmp_path / "f.csv", *({"name": name, "kind": kind} for name in columns))
    split = {"heldout_ratio": 0.2}
    return task_of(make_recipe(ratings=tmp_path / "r.csv", features=features, training=training("IALS", split=split)))


def _trial(strength: float) -> TrialRecord:
    params = {"n_components": 8, "alpha0": 0.1, "reg": 0.05, "lambda_item_feature": strength}
    return TrialRecord(0, "IALSRecommender", params, "complete", 0.1, {}, 4, 1.0)


def _search() -> SearchResult:
    """Return the result of a search with one short trial."""
    return SearchResult([_trial(1.0)], seconds=1.0, n_orphaned=0)


@pytest.mark.parametrize("strength", [1.0, 1e6])
def test_features_of_pure_noise_show_no_skill(make_recipe: Make, tmp_path: Path, strength: float) -> None:
    """The measurement finds no lead if noise is overfitted, and none if all unseen items are tied."""
    noise = np.random.default_rng(8).normal(size=(2, 120))
    task = _task(make_recipe, tmp_path, {"a": [f"{x}" for x in noise[0]], "b": [f"{x}" for x in noise[1]]}, "numerical")
    cold = evaluate_cold_start(task, _trial(strength), _search())["item"]
    assert (cold["n_draws"], cold["n_held"], cold["n_interactions"]) == (10, 120, 300 * 8)
    low, high = cold["intervals"]["model"]
    assert low <= cold["random"]["ndcg"] <= high
    low, high = cold["intervals"]["popularity"]
    assert low <= cold["random"]["ndcg"] <= high


def test_a_feature_that_predicts_popularity_shows_skill(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """The baseline reads popularity from bins of the number, the model from its encoded value.

    An event has the scores of both.
    """
    task = _task(make_recipe, tmp_path, {"rank": [str(item) for item in range(120)]}, "numerical")
    cold = evaluate_cold_start(task, _trial(1.0), _search())["item"]
    for name in ("model", "popularity"):
        assert cold["intervals"][name][0] > cold["intervals"]["random"][1], name
    low, high = cold["intervals"]["lead_over_popularity"]
    assert low < cold["model"]["ndcg"] - cold["popularity"]["ndcg"] < high
    (event,) = (record for record in log if record["event"] == "cold_start_evaluated")
    assert (event["side"], event["metric"]) == ("item", "ndcg")
    assert (event["score"], event["popularity_score"]) == (cold["model"]["ndcg"], cold["popularity"]["ndcg"])


def test_the_baseline_sees_the_few_items_that_differ_from_most(make_recipe: Make, tmp_path: Path) -> None:
    """Nine items in ten share a number, and the popular ones differ. The baseline scores above random rankings."""
    numbers = [str(1 + item) if item < 12 else "0" for item in range(120)]
    task = _task(make_recipe, tmp_path, {"stars": numbers}, "numerical")
    cold = evaluate_cold_start(task, _trial(1.0), _search())["item"]
    assert cold["intervals"]["popularity"][0] > cold["intervals"]["random"][1]


def test_a_side_is_skipped_for_its_work_and_not_for_the_clock(make_recipe: Make, tmp_path: Path) -> None:
    """The limit is half of the work of the search. Ten trainings of 4,000 epochs exceed that of a few short trials.

    Measured durations do not matter, because a busy machine would lengthen them.
    """
    task = _task(make_recipe, tmp_path, {"a": ["x"] * 60 + ["y"] * 60}, "categorical")
    long = replace(_trial(1.0), epochs=4000, params={**_trial(1.0).params, "n_components": 128})
    assert "skipped" in evaluate_cold_start(task, long, _search())["item"]
    slow = replace(_trial(1.0), seconds=36_000.0)
    busy = SearchResult([slow], seconds=0.0, n_orphaned=0)
    assert evaluate_cold_start(task, slow, busy) == evaluate_cold_start(task, _trial(1.0), _search())


def test_a_longer_search_allows_a_longer_measurement() -> None:
    """The limit is half of the work of the complete iALS trials. Pruned trials and other algorithms do not count."""
    matrix = sparse.csr_matrix(np.ones((30, 20), np.float32))
    long = replace(_trial(1.0), epochs=40)
    others = [replace(long, state="pruned"), replace(long, algorithm="TopPopRecommender")]
    result = SearchResult([long, long, *others], seconds=1.0, n_orphaned=0)
    assert search_work(result, matrix) == 2 * training_work(long, matrix) == 20 * training_work(_trial(1.0), matrix)


def fitted(*columns: Any, rows: list[list[float]]) -> FittedSide:
    """Return an encoded side: its columns, and `rows` with a constant at the end."""
    matrix = sparse.csr_matrix(np.array([[*row, 1.0] for row in rows]))
    return FittedSide(SideEncoder(columns), matrix)


TAG = TokenColumn("tag", "multi_label", IdTable.from_ids(["a", "b"]))
AGE = NumberColumn("age", mean=0.0, deviation=1.0, low=-9.0, high=9.0)


def test_two_ids_share_a_token_if_both_have_it() -> None:
    """The constant does not count as a shared value."""
    values = shared_values(fitted(TAG, rows=[[1, 0], [1, 1], [0, 0]]), np.arange(3))
    assert values.toarray().tolist() == [[1, 0], [1, 1], [0, 0]]


def test_numbers_are_shared_by_deciles_of_the_known_ids() -> None:
    """Each id is in one bin. Ids with neighbouring numbers share a bin, however far apart these numbers are."""
    rows = [[float(n * n)] for n in range(100)]
    values = shared_values(fitted(AGE, rows=rows), np.arange(100)).toarray()
    assert values.sum(axis=1).tolist() == [1.0] * 100
    assert values.shape[1] == N_BINS
    assert values.sum(axis=0).tolist() == [10.0] * N_BINS
    assert (np.diff(values.argmax(axis=1)) >= 0).all()


@pytest.mark.parametrize("usual", [0.0, 5.0, 10.0], ids=["lowest", "in the middle", "highest"])
def test_a_number_that_most_share_has_a_bin_of_its_own(usual: float) -> None:
    """Smaller and larger numbers are in other bins."""
    rows = [[float(n)] for n in range(11) if n != usual] + [[usual]] * 90
    values = shared_values(fitted(AGE, rows=rows), np.arange(100)).toarray()
    many, few = values[-1], values[:10]
    assert (values[10:] == many).all()
    assert not (few == many).all(axis=1).any()


def test_a_number_of_an_unknown_id_falls_into_a_bin_of_known_ids() -> None:
    """Numbers below the lowest and above the highest fall into the outer bins."""
    rows = [[float(n)] for n in range(100)] + [[-7.0], [1000.0], [55.5]]
    values = shared_values(fitted(AGE, rows=rows), np.arange(100)).toarray()
    assert values[100:].argmax(axis=1).tolist() == [0, N_BINS - 1, 5]


def test_without_columns_nothing_is_shared() -> None:
    """A constant column counts as no column."""
    flat = NumberColumn("age", mean=0.0, deviation=0.0, low=0.0, high=0.0)
    assert shared_values(fitted(flat, rows=[[], []]), np.arange(2)).shape == (2, 0)


def test_intervals_of_scores_over_few_folds_stay_within_0_to_1() -> None:
    """Those of differences may be negative. A single fold has no interval."""
    few = np.array([0.0, 0.0, 0.9])
    spans = intervals_of_draws(
        {"model": few, "lead_over_popularity": few - 0.3, "known_change": few * 9, "one": few[:1]}
    )
    assert spans["model"] == [0.0, 1.0]
    assert spans["lead_over_popularity"][0] < 0.0
    assert spans["known_change"][1] > 1.0
    assert "one" not in spans
