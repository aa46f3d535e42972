"""In every model, the number of users orders items with equal scores, and then the training order."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import svc
from tests.serving.artifacts import SIGNING_KEYS

N_ITEMS = 60
ALGORITHMS = (
    "IALS",
    "CosineKNN",
    "RP3beta",
    "DenseSLIM",
    "TruncatedSVD",
    "TopPop",
    "SLIM",
    "Transitions",
    *(("BPRFM",) if find_spec("lightfm") else ()),
)


def interactions() -> pd.DataFrame:
    """Return two groups of users with their own items, so that a neighbour model scores half of the items 0.

    Items of few users come first, some rows are repeated, and most counts of users occur several times.
    """
    rng = np.random.default_rng(4)
    rows = [
        (user, 2 * item + user % 2)
        for item in range(N_ITEMS // 2)
        for user in range(50)
        if rng.random() < (1 + item // 3) / 12 or user // 2 == item % 25
    ]
    frame = pd.DataFrame(rows * 2, columns=["user_id", "item_id"])
    hours = np.concatenate([rng.permutation(len(rows)), len(rows) + rng.permutation(len(rows))])
    return frame.assign(time=pd.Timestamp("2026-01-01") + pd.to_timedelta(hours, unit="h"))


def trained(folder: Path, *algorithms: str, **training: Any) -> svc.Recommender:
    interactions().to_csv(folder / "rows.csv", index=False)
    recipe = {
        "name": "shop",
        "source": {"type": "csv", "path": str(folder / "rows.csv")},
        "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "time"},
        "training": {"algorithms": list(algorithms), "n_trials": 3, "cutoff": 5, "parallelism": 1, **training},
        "output": {"path": str(folder / "shop.svc")},
    }
    (folder / "shop.yaml").write_text(str(recipe))
    return svc.load(svc.train(folder / "shop.yaml", keys=SIGNING_KEYS).artifact, keys=SIGNING_KEYS)


def expected_order() -> list[str]:
    """Return items by descending number of distinct users, then by first appearance."""
    rows = interactions()
    counts = rows.groupby("item_id", sort=False)["user_id"].nunique()
    return [str(item) for item in counts.sort_values(ascending=False, kind="stable").index]


def check(recommender: svc.Recommender) -> int:
    """Compare every ranking with a sort by score and `expected_order`, and return the number of ties."""
    order = expected_order()
    assert recommender.items() == order
    place = {item: number for number, item in enumerate(order)}
    users = recommender.users()
    many = recommender.recommend_many(users, limit=N_ITEMS)
    related = [recommender.related([item], limit=N_ITEMS) for item in order[::9]]
    pages = [*(page for _, page in many.groupby("user_id", sort=False)), *related]
    for user, page in [*zip(users, pages, strict=False)][::7]:
        alone = recommender.recommend(user, limit=N_ITEMS)
        assert alone["item_id"].tolist() == page["item_id"].tolist()
    for page in pages:
        keys = [(-score, place[item]) for item, score in zip(page["item_id"], page["score"], strict=True)]
        assert keys == sorted(keys)
    return sum(int((np.diff(page["score"]) == 0).sum()) for page in pages)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_item_of_more_users_comes_first_among_equal_scores(tmp_path: Path, algorithm: str) -> None:
    """Neighbour models have many ties, in single answers, batches and related items."""
    ties = check(trained(tmp_path, algorithm))
    assert ties or algorithm in {"IALS", "TruncatedSVD", "BPRFM", "DenseSLIM"}


@pytest.mark.parametrize("parts", [("CosineKNN", "RP3beta"), ("TruncatedSVD", "CosineKNN")], ids="-".join)
def test_a_blend_breaks_ties_by_number_of_users(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """This holds for a blend with and without a factor model."""
    recommender = trained(tmp_path, *parts, "Blend", n_trials=8)
    check(recommender)
