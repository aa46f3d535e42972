"""Small tables with the troubles of real ones, and what svc says of them before and in a training."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import structlog
import yaml

import svc
from svc.cli.validate import check_new_items
from svc.progress import Progress
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.training.outcome import TrainingOutcome
from svc.training.run import TrainOptions, train
from svc.training.validate import validate

KEYS = f"k:{'ab' * 32}"
SETTINGS = Settings(signing_keys=KEYS)
COLUMNS = {"user_column": "user_id", "item_column": "item_id"}
TRAINING = {"algorithms": ["CosineKNN"], "n_trials": 1, "cutoff": 5, "parallelism": 1, "ranker": "off"}
SPLIT = {"scheme": "random", "heldout_ratio": 0.4}


def choices(n_users: int = 24, n_each: int = 5, n_items: int = 12) -> list[tuple[str, str]]:
    """Return rows of users who each choose several items, neighbours in a circle."""
    return [
        (f"u{user}", f"i{(user + step) % n_items}") for user in range(n_users) for step in range(n_each)
    ]  # fmt: skip


def write_csv(path: Path, rows: Sequence[Sequence[Any]], header: str = "user_id,item_id") -> Path:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_table(path: Path, rows: Sequence[Sequence[Any]], columns: str = "user_id TEXT, item_id TEXT") -> Path:
    """Write the table `choices` of a SQLite database. SQL sources read it by `query_of`."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE choices ({columns})")
        marks = ", ".join("?" for _ in rows[0])
        database.executemany(f"INSERT INTO choices VALUES ({marks})", rows)
        database.commit()
    return path


def query_of(columns: str = "user_id, item_id") -> dict[str, Any]:
    return {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": f"SELECT {columns} FROM choices"}


@dataclass
class Tried:
    """What `svc validate` and `svc train` said of a recipe. `model` is None if the training failed."""

    checks: list[str]
    exit_code: int
    log: list[dict[str, Any]]
    outcome: TrainingOutcome
    model: svc.Recommender | None

    @property
    def error(self) -> str:
        (record,) = [record for record in self.log if record["event"] == "train_error"]
        return f"{record['code']}: {record['error']}"

    def hints(self, code: str) -> list[str]:
        """Return the messages of a warning in the training. `svc validate` must have printed the same kind."""
        return [
            record["message"]
            for record in self.log
            if code in (record.get("code"), record.get("reason"))
            if "message" in record
        ]

    def hint(self, code: str) -> str:
        """Return the only message of a warning, which `svc validate` prints too."""
        (message,) = self.hints(code)
        assert [line for line in self.checks if message in line], (message, self.checks)
        return message

    def is_silent(self, code: str) -> bool:
        return not self.hints(code)


def tried(folder: Path, **blocks: Any) -> Tried:
    """Validate and train a recipe over `rows.csv` in `folder`, or over another source. Blocks replace the defaults."""
    recipe = {
        "name": "shop",
        "source": {"type": "csv", "path": "rows.csv"},
        "schema": COLUMNS,
        "training": {**TRAINING, "split": SPLIT},
        "output": {"path": "shop.svc"},
        **blocks,
    }
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{folder / 'rows.db'}"}
    loaded = load_recipe(path, variables, settings=SETTINGS)
    checks = [*validate(loaded, SETTINGS, variables), *check_new_items(loaded, SETTINGS, variables)]
    exit_code = next((check.exit_code for check in checks if not check.ok), 0)
    with structlog.testing.capture_logs() as log:
        outcome = train(loaded, TrainOptions("r1", variables), SETTINGS, Progress())
    model = svc.load(outcome.artifact, keys=KEYS) if outcome.artifact is not None else None
    return Tried([check.detail for check in checks], exit_code, list(map(dict, log)), outcome, model)


def both_accept(result: Tried) -> svc.Recommender:
    """Return the model. Neither `svc validate` nor `svc train` may have refused the recipe."""
    assert (result.exit_code, result.outcome.exit_code) == (0, 0), (result.checks, result.log[-1])
    assert result.model is not None
    return result.model


def both_refuse(result: Tried) -> str:
    """Return the error of the training. `svc validate` must have refused the recipe with the same exit code."""
    assert result.exit_code == result.outcome.exit_code != 0, (result.checks, result.log[-1])
    return result.error


def recommended(model: svc.Recommender, user: str) -> list[str]:
    answer: pd.DataFrame = model.recommend(user, limit=5)
    return list(answer["item_id"])
