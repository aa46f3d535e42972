"""Small tables and short histories: enough users are judged, or it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import structlog
import yaml

import svc
from tests.project.test_docs import ROOT, blocks
from tests.tables.tables import SPLIT, TRAINING, both_accept, both_refuse, choices, tried, write_csv

TIMED = {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"}


def timed(rows: list[tuple[str, str]]) -> list[tuple[str, str, int]]:
    return [(user, item, 1_700_000_000 + 60 * number) for number, (user, item) in enumerate(rows)]


@pytest.mark.parametrize(
    ("schema", "line"),
    [({}, "{scheme: random, heldout_ratio: 0.2}"), ({"schema": TIMED}, "{scheme: leave_one_out}")],
)
def test_short_histories_are_judged_by_a_split_that_fits_them(
    tmp_path: Path, schema: dict[str, Any], line: str
) -> None:
    """No default split holds out a tenth of five items. With the line as the recipe's own split, the model is equal."""
    write_csv(tmp_path / "rows.csv", timed(choices()), "user_id,item_id,ts")
    first = tried(tmp_path, training=TRAINING, **schema)
    model = both_accept(first)
    hint = first.hint("few_judged_users")
    assert "only 0 of 24 users have items to hold out" in hint
    assert f"judges 24 by `training.split: {line}`" in hint
    assert first.log[-1]["event"] == "train_done"
    second = tried(tmp_path, training={**TRAINING, "split": yaml.safe_load(line)}, **schema)
    assert second.is_silent("few_judged_users")
    assert both_accept(second).recommend("u1").equals(model.recommend("u1"))
    assert second.model is not None and second.model.header["best_score"] == model.header["best_score"]
    assert model.header["split"]["scheme"] == second.model.header["recipe"]["training"]["split"].get("scheme", "random")
    assert "split" not in second.model.header


@pytest.mark.parametrize(
    "own", [{"scheme": "random"}, {"scheme": "random", "heldout_ratio": 0.4, "test_user_ratio": 0.2}]
)
def test_a_split_of_its_own_is_never_changed(tmp_path: Path, own: dict[str, Any]) -> None:
    """What judges more is only named, and judges more if it is written."""
    rows = choices(n_each=5) + [(f"long{n}", f"i{item}") for n in range(2) for item in range(12)]
    write_csv(tmp_path / "rows.csv", rows)
    first = tried(tmp_path, training={**TRAINING, "split": own})
    hint = first.hint("few_judged_users")
    n_few = int(hint.split("only ")[1].split()[0])
    assert both_accept(first).header["evaluation"]["n_users"] == 26
    assert first.model is not None and first.model.header["evaluation"]["n_scored_users"] == n_few < 10
    line = hint.split("`training.split: ")[1].split("`")[0]
    second = tried(tmp_path, training={**TRAINING, "split": yaml.safe_load(line)})
    assert second.is_silent("few_judged_users")
    assert both_accept(second).header["evaluation"]["n_scored_users"] == 26


def test_four_users_of_many_decide_nothing_unsaid(tmp_path: Path) -> None:
    """Baskets: under `time_user` only few customers have ten items."""
    rows = choices(n_users=300, n_each=3) + [(f"big{n}", f"i{item}") for n in range(4) for item in range(12)]
    write_csv(tmp_path / "rows.csv", timed(rows), "user_id,item_id,ts")
    own = {"scheme": "time_user", "heldout_ratio": 0.1}
    result = tried(tmp_path, schema=TIMED, training={**TRAINING, "split": own})
    both_accept(result)
    assert "only 4 of 304 users" in result.hint("few_judged_users")
    assert "`training.split: {scheme: leave_one_out}` judges 304" in result.hint("few_judged_users")
    default = tried(tmp_path, schema=TIMED, training=TRAINING)
    assert "judges 304" in default.hint("few_judged_users")


def test_enough_users_keep_the_default(tmp_path: Path) -> None:
    """A hundred judged users of a few hundred are enough."""
    write_csv(tmp_path / "rows.csv", choices(n_users=120, n_each=10, n_items=30))
    result = tried(tmp_path, training=TRAINING)
    assert "split" not in both_accept(result).header
    assert result.is_silent("few_judged_users")


def test_single_choices_end_with_what_is_missing(tmp_path: Path) -> None:
    """No split helps users who have one item each."""
    write_csv(tmp_path / "rows.csv", choices(n_users=40, n_each=1))
    result = tried(tmp_path, training=TRAINING)
    assert "zero_score: no interaction is held out" in result.error
    assert "No user has two items" in result.error


def test_the_recipe_of_the_readme_trains_on_300_rows(tmp_path: Path) -> None:
    """README says what data must have: 20 items, and users with two of them."""
    rng = np.random.default_rng(1)
    rows = [(f"u{u}", f"b{(7 * u + i) % 40}") for u in range(75) for i in rng.choice(9, 4, replace=False)]
    shown = {block.language: block.text for block in blocks(ROOT / "README.md")}
    recipe = yaml.safe_load(shown["yaml"])
    write_csv(tmp_path / "rows.csv", timed(rows), shown["csv"].splitlines()[0])
    recipe = {**recipe, "source": {"type": "csv", "path": "rows.csv"}, "output": {"path": "shop.svc"}}
    recipe["training"] = {**recipe["training"], "n_trials": 4, "parallelism": 1}
    result = tried(tmp_path, **recipe)
    assert len(both_accept(result).recommend("u1")) == 10
    assert "{scheme: leave_one_out}" in result.hint("few_judged_users")


def test_a_frame_of_users_with_eight_choices_trains_with_every_default(tmp_path: Path) -> None:
    """`svc.train(frame)` judges all of them, and `svc.compare` too."""
    rows = pd.DataFrame(choices(n_users=60, n_each=8, n_items=30), columns=["user_id", "item_id"])
    fast = {"algorithms": ["TopPop", "CosineKNN"], "n_trials": 2}
    with structlog.testing.capture_logs() as log:
        result = svc.train(rows, progress=False, **fast)
    (warned,) = [record["message"] for record in log if record.get("code") == "few_judged_users"]
    assert "judges 60 by `training.split: {scheme: random, heldout_ratio: 0.125}`" in warned
    assert len(result.recommender.recommend("u1", limit=3)) == 3
    compared = svc.compare([result, {"algorithms": ["TopPop"], "n_trials": 1}], rows, seeds=1, progress=False)
    assert len(compared) == 2


def gone(path: str) -> dict[str, Any]:
    return {"source": {"type": "csv", "path": path}, "id_column": "user_id"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"training": {**TRAINING, "split": SPLIT, "cutoff": 13}}, "lower it to 12 or less"),
        ({"cleansing": {"min_users": 25}}, "24 users where at least 25 are needed"),
        ({"cleansing": {"min_users": 24, "forget": gone("gone.csv")}}, "23 users where at least 24 are needed"),
        ({"cleansing": {"forget": gone("lost.csv")}}, "lost.csv"),
        ({"cleansing": {"min_interactions": 90}}, "Lower cleansing.min_interactions"),
        (
            {"training": {**TRAINING, "split": {"scheme": "random", "heldout_ratio": 0.01}, "sample_users": 3}},
            "which judges 3 users",
        ),
    ],
)
def test_data_that_no_training_can_use_is_refused_before(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    """`svc validate` gives the error of `svc train` if the first rows are all rows."""
    write_csv(tmp_path / "rows.csv", choices())
    write_csv(tmp_path / "gone.csv", [("u7",)], "user_id")
    result = tried(tmp_path, **changed)
    assert reason in both_refuse(result)
    assert any(reason in line for line in result.checks)


def test_the_first_file_of_a_folder_is_not_the_whole_table(tmp_path: Path) -> None:
    """Each day has too few users, and all days together have enough."""
    (tmp_path / "days").mkdir()
    for day in range(3):
        write_csv(tmp_path / "days" / f"{day}.csv", choices()[day::3])
    folder = {"type": "csv", "path": "days"}
    both_accept(tried(tmp_path, source=folder, cleansing={"min_rows": 100}))
