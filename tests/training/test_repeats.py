"""`training.repeats` in whole trainings: earlier choices are held out, scored and recommended again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from svc.artifact.keys import development_keys
from svc.export.request import ExportRequest
from svc.export.run import open_artifact, score_all
from svc.library.evaluation import evaluate
from svc.library.recommender import Recommender
from svc.model.ranking.query import Interaction
from svc.recipe.algorithms import ITEM_WEIGHTS
from svc.settings import Settings
from tests import planned
from tests.training.runs import Make, header, opened, payload, run
from tests.training.test_recency import recipe_blocks


def write_sessions(path: Path, seed: int = 0, n_users: int = 60, n_items: int = 40) -> Path:
    """Write sessions in which most clicks are on an item that the session has clicked before."""
    rng = np.random.default_rng(seed)
    lines = ["user_id,item_id,ts,w"]
    for user in range(n_users):
        clicks: list[int] = []
        for step in range(int(rng.integers(3, 12))):
            again = clicks and rng.random() < 0.6
            clicks.append(int(rng.choice(clicks[-3:])) if again else int(rng.integers(n_items)))
            lines.append(f"u{user},i{clicks[-1]},{1_600_000_000 + step},{rng.choice([0.5, 1.0, 2.0])}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("algorithms", [["DenseSLIM"], ["IALS", "CosineKNN", "Blend"]], ids=["DenseSLIM", "Blend"])
def test_repeated_items_are_scored_and_recommended(make_recipe: Make, tmp_path: Path, algorithms: list[str]) -> None:
    """Item-weight models search a self-weight. Answers, exports and Python include seen items by default."""
    data = write_sessions(tmp_path / "sessions.csv")
    off, on = (recipe_blocks(algorithms, weighted=False, repeats=repeats, n_trials=3) for repeats in (False, True))
    plain = header(run(make_recipe(ratings=data, **off)).artifact)
    result = run(make_recipe(ratings=data, **on))
    recommender = Recommender(open_artifact(str(result.artifact), development_keys(), Settings()))
    model, head = opened(result)
    assert head["repeats"] is True
    assert "repeats" not in plain
    assert head["best_score"] > 1.5 * plain["best_score"]
    searched = {name: trial["params"] for name, trial in head["tuning"]["best_per_algorithm"].items()}
    assert {name for name, params in searched.items() if "self_weight" in params} == set(ITEM_WEIGHTS) & set(searched)
    rows = np.arange(model.n_users, dtype=np.int32)
    (exported,) = score_all(model, ExportRequest(output="", limit=8), [rows], 1)
    n_seen = 0
    for row, columns, values in zip(
        rows.tolist(),
        np.split(exported.items, np.cumsum(exported.counts)[:-1]),
        np.split(exported.scores, np.cumsum(exported.counts)[:-1]),
        strict=True,
    ):
        user, seen = model.user_ids.at(row), set(model.history.items(row).tolist())
        n_seen += len(seen & set(columns.tolist()))
        table = recommender.recommend(user, limit=8)
        assert table["score"].tolist() == values.tolist()
        assert table["item_id"].tolist() == [model.item_ids.at(column) for column in columns.tolist()]
        without = recommender.recommend(user, limit=8, include_seen=False)
        assert not {model.item_ids.index(item) for item in without["item_id"]} & seen
    assert n_seen > model.n_users


def test_items_of_a_history_in_a_request_are_recommended_too(make_recipe: Make, tmp_path: Path) -> None:
    """A request has the history alone, or adds it to a known user.

    `svc.evaluate` skips no held-out row as already seen.
    """
    data = write_sessions(tmp_path / "sessions.csv")
    bounds = {"RP3beta": {"self_weight": [100, 100]}}
    blocks = recipe_blocks(["RP3beta"], weighted=False, repeats=True, n_trials=1, search_space=bounds, recency=0.5)
    result = run(make_recipe(ratings=data, **blocks))
    model, head = opened(result)
    assert head["best_params"]["self_weight"] == 100
    history = [Interaction("i3"), Interaction("i9")]
    for user in (None, "u3"):
        prepared = planned.recommend(model, user_id=user, user_features=None, limit=10, history=history)
        (ranking,) = model.rank([prepared.query])
        assert {"i9", "i3"} <= {model.item_ids.at(column) for column in ranking.items.tolist()}
    recommender = Recommender(open_artifact(str(result.artifact), development_keys(), Settings()))
    found = evaluate(recommender, pd.read_csv(data, dtype=str)[["user_id", "item_id"]])
    assert (found.n_seen, found.n_users) == (0, model.n_users)


@pytest.mark.parametrize(("dedup", "expected"), [("sum", 4.5), ("keep_last", 0.5)])
def test_the_final_model_joins_duplicates_by_the_recipe(
    make_recipe: Make, tmp_path: Path, dedup: str, expected: float
) -> None:
    """The dedup applies to weights of rows and to recency."""
    data = write_sessions(tmp_path / "sessions.csv")
    with data.open("a", encoding="utf-8") as file:
        file.write("own,i1,1600000000,1.0\nown,i1,1600000002,3.0\nown,i1,1600000003,0.5\nown,i2,1600000001,1.0\n")
    blocks = recipe_blocks(["RP3beta"], weighted=True, repeats=True, recency=0.3) | {
        "cleansing": {"dedup": dedup, "weight_scale": "raw"}
    }
    model, head = opened(run(make_recipe(ratings=data, **blocks)))
    user = model.user_ids.index("own")
    assert [model.item_ids.at(column) for column in model.history.items(user)] == ["i2", "i1"]
    assert model.history.values(user).tolist() == [1.0, expected]
    assert head["data_stats"]["n_rows"] > head["data_stats"]["n_interactions"]


def test_repeats_false_trains_the_same_payload_as_no_key(make_recipe: Make, tmp_path: Path) -> None:
    """The payloads have the same bytes."""
    data = write_sessions(tmp_path / "sessions.csv")
    plain, off = (recipe_blocks(["RP3beta"], weighted=False, **more) for more in ({}, {"repeats": False}))
    first, second = (payload(run(make_recipe(ratings=data, **blocks)).artifact) for blocks in (plain, off))
    assert first == second


def test_hidden_items_are_never_held_out_nor_shown(make_recipe: Make, tmp_path: Path) -> None:
    """The item of an excluded event stays hidden, however often it was chosen."""
    data = write_sessions(tmp_path / "sessions.csv")
    lines = data.read_text(encoding="utf-8").splitlines()
    rows = ["user_id,item_id,ts,w,event", *(f"{line},click" for line in lines[1:])]
    rows += [f"u{user},i{user % 40},1500000000,1.0,returned" for user in range(60)]
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    blocks: dict[str, Any] = recipe_blocks(["RP3beta"], weighted=False, repeats=True)
    blocks["schema"] = blocks["schema"] | {"event_column": "event"}
    blocks["cleansing"] = {"event_weights": {"click": 1.0, "returned": "exclude"}}
    model, _ = opened(run(make_recipe(ratings=data, **blocks)))
    for row in range(model.n_users):
        (ranking,) = model.rank([planned.known_user(model, row, limit=model.n_items)])
        returned = f"i{int(model.user_ids.at(row)[1:]) % 40}"
        assert model.item_ids.index(returned) not in ranking.items.tolist()
