"""Small data with learnable tastes, and recipes over it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from svc.recipe.load import LoadedRecipe, load_recipe
from svc.settings import Settings


def write_ratings(path: Path, *, n_users: int = 80, n_items: int = 40, seed: int = 0) -> Path:
    """Write ratings of two groups of users, each with its own half of the items."""
    rng = np.random.default_rng(seed)
    lines = ["user_id,item_id,ts"]
    for user in range(n_users):
        half = np.arange(n_items // 2) * 2 + user % 2
        for step, item in enumerate(rng.choice(half, size=min(12, len(half)), replace=False)):
            lines.append(f"u{user},i{item},{1_600_000_000 + user * 1000 + step}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_items(path: Path, n_items: int = 40) -> Path:
    """Write a feature table in which even items are of one group, odd ones of the other."""
    lines = ["item_id,group,size"] + [f"i{item},{'even' if item % 2 == 0 else 'odd'},{item}" for item in range(n_items)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def make_recipe(tmp_path: Path) -> Callable[..., LoadedRecipe]:
    """Load a recipe over generated ratings. Keyword arguments replace whole top-level blocks."""

    def make(*, ratings: Path | None = None, **blocks: Any) -> LoadedRecipe:
        data = ratings or write_ratings(tmp_path / "ratings.csv")
        recipe: dict[str, Any] = {
            "name": "small",
            "source": {"type": "csv", "path": str(data)},
            "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
            "training": {
                "algorithms": ["IALS", "TopPop", "CosineKNN"],
                "n_trials": 5,
                "cutoff": 5,
                "split": {"scheme": "time_user", "heldout_ratio": 0.3},
            },
            "output": {"path": "out/small.svc"},
        }
        (tmp_path / "out").mkdir(exist_ok=True)
        recipe.update(blocks)
        path = tmp_path / "small.yaml"
        path.write_text(json.dumps(recipe), encoding="utf-8")
        return load_recipe(path, {}, settings=Settings())

    return make


@pytest.fixture
def make_ratings(tmp_path: Path) -> Callable[..., Path]:
    """Write other ratings: a file name, and the arguments of `write_ratings`."""
    return lambda name, **arguments: write_ratings(tmp_path / name, **arguments)


@pytest.fixture
def items_csv(tmp_path: Path) -> Path:
    """Write a feature table of the items."""
    return write_items(tmp_path / "items.csv")


@pytest.fixture
def log() -> Any:
    """Return the records that a test emits, as dictionaries."""
    with structlog.testing.capture_logs() as records:
        yield records
