"""Older interactions count less, by their age at the last event that is not in the future."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.progress import Progress
from svc.recipe.schema import Cleansing
from svc.settings import Settings
from svc.training.data import decay, fetch
from svc.training.data.interactions import from_frame
from svc.training.judging.task import Task, split_data
from svc.training.search import prepare
from tests.training.data.test_weights import DAY, SCHEMA, WEIGHTED, frame
from tests.training.test_run import Make, run

NOW_S = 1_700_000_000
SCHEMES = ["random", "time_user", "leave_one_out", "time_global"]
MONTH = {"half_life": "30d"}


def test_a_weight_halves_with_each_half_life_of_its_age() -> None:
    """The last event has its full weight. A very old one keeps a small weight, as it is still a seen item."""
    matrix = sparse.csr_matrix(np.array([[8.0, 8.0], [4.0, 1.0]], np.float32))
    days = np.array([0, 7, 14, 69_999], np.int64)
    times = sparse.csr_matrix((-days * DAY * 10**9, matrix.indices, matrix.indptr), shape=matrix.shape)
    found = decay.decay_matrix(matrix, times, {"half_life": "7d"}).toarray()
    assert found[:, 0].tolist() == [8.0, 1.0]
    assert found[0, 1] == 4.0
    assert 0 < found[1, 1] < 1e-5
    assert decay.decay_matrix(matrix, times, {"half_life": "none"}) is matrix
    assert decay.decay_matrix(matrix, times, {}) is matrix


@pytest.mark.parametrize(
    ("days", "reference", "ages"),
    [
        ([-3, -1, 400], -1, [2, 0, -1]),
        ([-3, -1, 0], 0, [3, 1, 0]),
        ([1, 2, 400], 0, [0, 0, 0]),
    ],
    ids=["one in the future", "none in the future", "all in the future"],
)
def test_ages_count_from_the_last_row_before_the_start_of_the_training(
    days: list[int], reference: int, ages: list[int]
) -> None:
    """Later rows have age 0, and are counted with an example."""
    rows = [("u", item, 1.0, NOW_S + day * DAY) for item, day in zip("xyz", days, strict=True)]
    data = frame(rows, "u", "i", "w", "t")
    found = from_frame(data, WEIGHTED, Cleansing(), with_times=True, started_ns=NOW_S * 10**9)
    assert found.reference == (NOW_S + reference * DAY) * 10**9
    assert (-found.latest().toarray() // (DAY * 10**9)).tolist() == [ages]
    n_future = sum(day > 0 for day in days)
    assert (0 if found.future is None else found.future.count) == n_future
    if found.future is not None:
        row = next(place for place, day in enumerate(days, 1) if day > 0)
        assert f"'t' holds '{NOW_S + days[row - 1] * DAY}' in data row {row}" in found.future.detail


def _table(path: Path, stray: int | str) -> Path:
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


def _training(**changes: Any) -> dict[str, Any]:
    split = {"scheme": "time_user", "heldout_ratio": 0.2, "test_user_ratio": 1.0}
    decay_by = {"time_decay": MONTH}
    return {"algorithms": ["TopPop"], "n_trials": 1, "cutoff": 5, "split": split, **decay_by, **changes}


def _task(make_recipe: Make, tmp_path: Path, scheme: str, stray: int, **training: Any) -> Task:
    split = {"scheme": scheme, "heldout_ratio": 0.2, "test_user_ratio": 1.0}
    loaded = make_recipe(
        ratings=_table(tmp_path / "stray.csv", stray), schema=SCHEMA, training=_training(split=split, **training)
    )
    found = fetch.load(loaded, Settings(), {}, Progress())
    return prepare.make_task(loaded, found, split_data(loaded, found), Settings())


def _oldest_age_s(matrix: sparse.csr_matrix) -> float:
    """Return the age of the smallest weight of a binary matrix, with a half-life of a month."""
    return float(-np.log2(matrix.data.min()) * 30 * DAY)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("stray", [NOW_S, 4_070_908_800], ids=["no future row", "a row of 2099"])
def test_the_final_training_decays_rows_of_the_search_as_the_search_did(
    make_recipe: Make, tmp_path: Path, scheme: str, stray: int
) -> None:
    """Both count ages from the same time. Under time_global, the search counts from its cut-off."""
    task = _task(make_recipe, tmp_path, scheme, stray)
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
    """Users outside the sample are then decayed as those inside."""
    task = _task(make_recipe, tmp_path, "time_user", NOW_S + 400 * DAY, sample_users=20)
    assert task.data.sample is not None
    assert 0 not in task.data.sample.rows
    sampled, all_users = task.matrix(MONTH), task.matrix(MONTH, all_users=True)
    assert abs(all_users[task.data.sample.rows] - sampled).nnz == 0


def test_a_row_in_the_far_future_acts_like_a_row_at_the_last_event(
    make_recipe: Make, tmp_path: Path, log: list[dict[str, Any]]
) -> None:
    """The payloads are equal. Log, header and report have a warning."""
    payloads, heads = [], []
    report = tmp_path / "report.html"
    for stray in (NOW_S, 4_070_908_800):
        loaded = make_recipe(ratings=_table(tmp_path / "stray.csv", stray), schema=SCHEMA, training=_training())
        artifact = run(loaded, report=report).artifact
        assert artifact is not None
        parsed = read_verified(artifact, development_keys(), Settings())[1]
        payloads.append(bytes(parsed.payload))
        heads.append(parsed.header)
    assert payloads[0] == payloads[1]
    (warning,) = [record for record in log if record["event"] == "future_times"]
    assert (warning["log_level"], warning["count"]) == ("warning", 1)
    assert "'ts' holds '4070908800' in data row 1," in warning["detail"]
    assert "future_times" not in heads[0]["data_stats"]
    assert heads[1]["data_stats"]["future_times"] == 1
    assert "later than the start of the training" in report.read_text(encoding="utf-8")
