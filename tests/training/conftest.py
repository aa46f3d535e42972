"""Fixtures with small generated data: two groups of users with different tastes, and recipes over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from markupsafe import Markup

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
    """Write a feature table: even items belong to one group, odd items to the other."""
    lines = ["item_id,group,size"] + [f"i{item},{'even' if item % 2 == 0 else 'odd'},{item}" for item in range(n_items)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def recipe_in(folder: Path, *, ratings: Path | None = None, **blocks: Any) -> LoadedRecipe:
    """Load a recipe over generated ratings. A keyword argument replaces a whole top-level block."""
    data = ratings or write_ratings(folder / "ratings.csv")
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
    (folder / "out").mkdir(exist_ok=True)
    recipe.update(blocks)
    path = folder / "small.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return load_recipe(path, {}, settings=Settings())


@pytest.fixture
def make_recipe(tmp_path: Path) -> Callable[..., LoadedRecipe]:
    """Return a function that loads recipes in a folder of the test."""
    return partial(recipe_in, tmp_path)


@pytest.fixture(scope="module")
def make_shared_recipe(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedRecipe]:
    """Return a function that loads a recipe in a folder of the module. Its tests share one training."""
    return partial(recipe_in, tmp_path_factory.mktemp("shared"))


def leave_plots_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the plots of reports empty. Drawing all plots of a page takes longer than a training."""
    monkeypatch.setattr(
        "svc.training.report.plots._svg", lambda _, label, *__, **___: Markup(f'<svg aria-label="{label}"></svg>')
    )


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_plots_empty(monkeypatch)


@pytest.fixture
def make_ratings(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes ratings to a named file. It takes the arguments of `write_ratings`."""
    return lambda name, **arguments: write_ratings(tmp_path / name, **arguments)


@pytest.fixture
def items_csv(tmp_path: Path) -> Path:
    """Write a feature table of the items."""
    return write_items(tmp_path / "items.csv")


@pytest.fixture
def log() -> Any:
    """Return the records that the test emits, as dictionaries."""
    with structlog.testing.capture_logs() as records:
        yield records
