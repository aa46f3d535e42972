"""The JSON header of an artifact."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.settings import Settings
from tests.training.test_run import Make, run, small_training


def test_a_recipe_too_long_for_the_header_leaves_out_its_data_sources(
    make_recipe: Make, make_ratings: Callable[..., Path], tmp_path: Path
) -> None:
    """The blocks that describe the model are kept."""
    ratings, database = make_ratings("long"), tmp_path / "ratings.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        pd.read_csv(ratings).to_sql("ratings", connection, index=False)
    query = "SELECT * FROM ratings" + " " * 60_000
    source = {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": query}
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{database}"}
    result = run(make_recipe(source=source, training=small_training()), variables=variables)
    assert result.artifact is not None
    _, parsed = read_verified(result.artifact, development_keys(), Settings())
    assert set(parsed.header["recipe"]) == {"name", "schema", "training", "output"}
