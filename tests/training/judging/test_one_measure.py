"""`training.weighted_metric` weights held-out items in every figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.training.judging.metrics import PER_USER
from tests.training.runs import SCHEMA, Make, features_of, header, run, training


def _heavy_favourite(folder: Path) -> tuple[Path, Path]:
    """Write choices of eighty users and a user feature. All chose i0 with weight 1000, and seven of 29 other items."""
    rng = np.random.default_rng(8)
    lines = ["user_id,item_id,ts,w"]
    for user in range(80):
        others = rng.choice(np.arange(1, 30), size=7, replace=False)
        for step, item in enumerate(rng.permutation([0, *others])):
            lines.append(f"u{user},i{item},{1_600_000_000 + user * 1000 + step},{1000 if item == 0 else 1}")
    ratings, users = folder / "heavy.csv", folder / "users.csv"
    ratings.write_text("\n".join(lines) + "\n", encoding="utf-8")
    users.write_text("user_id,side\n" + "".join(f"u{n},{n % 2}\n" for n in range(80)), encoding="utf-8")
    return ratings, users


def _evaluated(make_recipe: Make, folder: Path, *, weighted: bool) -> dict[str, Any]:
    ratings, users = _heavy_favourite(folder)
    split = {"scheme": "time_user", "heldout_ratio": 0.3, "test": 0.2}
    loaded = make_recipe(
        ratings=ratings,
        schema={**SCHEMA, "weight_column": "w"},
        features=features_of(users, {"name": "side", "kind": "categorical"}, side="user"),
        training=training("IALS", weighted_metric=weighted, split=split),
    )
    found: dict[str, Any] = header(run(loaded, report=folder / "page.html").artifact)["evaluation"]
    return found


@pytest.mark.usefixtures("without_drawing")
@pytest.mark.parametrize("weighted", [False, True])
def test_the_breakdown_and_the_cold_start_weigh_like_the_score(
    make_recipe: Make, tmp_path: Path, *, weighted: bool
) -> None:
    """Metrics over all users equal the winner's score.

    With weights, the popularity baseline gets nearly full recall, because it ranks the item of weight 1000.
    """
    found = _evaluated(make_recipe, tmp_path, weighted=weighted)
    everybody = {row["metric"]: row["value"] for row in found["breakdown"] if row["group"] == "all"}
    assert {name: everybody[name] for name in PER_USER} == pytest.approx({name: found[name] for name in PER_USER})
    assert found["cutoffs"]["5"] == pytest.approx({name: found[name] for name in PER_USER})
    recall = found["cold_start"]["user"]["popularity"]["recall"]
    assert recall > 0.99 if weighted else recall < 0.5
