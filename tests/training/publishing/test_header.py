"""The JSON header of an artifact."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import sqlite3
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import svc
from svc.artifact.keys import development_keys, fingerprints
from svc.recipe.load import LoadedRecipe
from svc.training import run as runs
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.measurements import WinnerMeasurements
from svc.training.judging.search_result import SearchResult
from svc.training.publishing.header import RunFacts, header
from tests.training.runs import Make, run, training
from tests.training.runs import header as header_of

IALS = "IALSRecommender"


def head_of(loaded: LoadedRecipe, **options: Any) -> Mapping[str, Any]:
    return header_of(run(loaded, **options).artifact)


def test_a_recipe_too_long_for_the_header_leaves_out_its_data_sources(
    make_recipe: Make, make_ratings: Callable[..., Path], tmp_path: Path
) -> None:
    """The header keeps the blocks that describe the model."""
    ratings, database = make_ratings("long"), tmp_path / "ratings.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        pd.read_csv(ratings).to_sql("ratings", connection, index=False)
    query = "SELECT * FROM ratings" + " " * 60_000
    source = {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": query}
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{database}"}
    head = head_of(make_recipe(source=source, training=training()), variables=variables)
    assert set(head["recipe"]) == {"name", "schema", "training", "output"}


def test_a_header_counts_the_rows_and_pairs_of_its_data(make_recipe: Make, make_ratings: Callable[..., Path]) -> None:
    """80 users have 12 rows each. The filter drops those of the first user.

    Of three further rows, one is of a known pair, one has no user, and one hides its item.
    """
    ratings = make_ratings("all.csv")
    text = ratings.read_text()
    ratings.write_text(f"{text}{text.splitlines()[-1]}\n,i0,1600001000\nu1,i0,1700000000\n")
    cleansing = {"dedup": "none", "where": {"ts": {"gte": 1_600_001_000}}, "hide": {"ts": {"gte": 1_700_000_000}}}
    head = head_of(make_recipe(ratings=ratings, cleansing=cleansing, training=training()))
    assert head["data_stats"] == {
        "n_rows": 79 * 12 + 1,
        "n_users": 79,
        "n_items": 40,
        "n_interactions": 79 * 12,
        "density": 12 / 40,
        "n_heldout_interactions": 79 * 3,
        "drop_count": 12 + 2,
        "dropped_by_where": 12,
        "hidden_by_rule": 1,
    }


def test_a_header_names_its_recipe_run_and_versions(make_recipe: Make) -> None:
    """Blocks of features that the recipe does not use are left out."""
    loaded = make_recipe(training=training("TopPop"))
    head = head_of(loaded)
    score = head["evaluation"]["ndcg"]
    measured = {name: head.pop(name) for name in ("trained_at", "rank_ms", "evaluation", "data_stats", "tuning")}
    assert head == {
        "kid": "dev",
        "fingerprint": fingerprints(development_keys().entries)[0]["fingerprint"],
        "format_version": 1,
        "svc_version": svc.__version__,
        "python_version": platform.python_version(),
        "irspack_version": version("irspack"),
        "sklearn_version": version("scikit-learn"),
        "numpy_version": version("numpy"),
        "recipe": loaded.unexpanded,
        "recipe_name": "small",
        "recipe_hash": loaded.recipe_hash,
        "run_id": "r1",
        "best_class": "TopPopRecommender",
        "best_params": {},
        "best_score": score,
        "algorithms": ["TopPopRecommender"],
        "metric": "ndcg",
        "cutoff": 5,
    }
    assert measured["rank_ms"] > 0
    popular = head_of(make_recipe(training=training(), serving={"popular": {"half_life": "3d"}}))
    assert popular["popular"] == {"half_life": "3d"}


def test_a_header_has_the_course_of_the_search(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are those of all trials. Of more than 400 complete trials, every n-th is listed."""
    seen: list[RunFacts] = []
    monkeypatch.setattr(runs, "header", lambda facts: seen.append(facts) or header(facts))
    loaded = make_recipe(training=training("TopPop"))
    run(loaded)

    def record(number: int, state: str = "complete", **figures: Any) -> TrialRecord:
        algorithm, score = (IALS if number % 3 else "TopPopRecommender"), number if state == "complete" else None
        values = {"params": {"reg": number}, "metrics": {}, "epochs": None, "seconds": number / 4, **figures}
        return TrialRecord(number, algorithm, state=state, score=score, **values)

    def tuning(trials: list[TrialRecord]) -> dict[str, Any]:
        result = SearchResult(trials, seconds=1.23456, n_orphaned=2, workers=3)
        measured = WinnerMeasurements(intervals={IALS: [1.0, 2.0]})
        facts = dataclasses.replace(seen[0], n_trials=9, result=result, measured=measured)
        found: dict[str, Any] = header(facts)["tuning"]
        return found

    ended = [record(5, "pruned"), record(6, "pruned", too_slow=True), record(7, "failed")]
    metrics = {"ndcg": 0.5, "map": 0.4, "recall": 0.3, "hit": 0.2}
    best = record(2, recency=0.5, rank_ms=0.25, metrics={**metrics, "entropy": 3.0})
    assert tuning([record(0), record(1), best, *ended]) == {
        "n_trials": 9,
        "completed": 3,
        "pruned": 2,
        "failed": 1,
        "too_slow": 1,
        "seconds": 1.235,
        "best_per_algorithm": {
            IALS: {
                "score": 2,
                "params": {"reg": 2},
                "recency": 0.5,
                "seconds": 0.5,
                "rank_ms": 0.25,
                "metrics": metrics,
                "interval": [1.0, 2.0],
            },
            "TopPopRecommender": {"score": 0, "params": {"reg": 0}, "seconds": 0.0, "metrics": {}},
        },
        "n_orphaned": 2,
        "workers": 3,
        "trials": {
            "algorithms": [IALS, "TopPopRecommender"],
            "numbers": [0, 1, 2],
            "of": [1, 0, 0],
            "scores": [0, 1, 2],
            "rank_ms": [None, None, 0.25],
        },
    }
    assert "too_slow" not in tuning([best])
    for n_complete, step in ((400, 1), (401, 2), (801, 3)):
        course = tuning([record(number) for number in range(n_complete)])["trials"]
        assert course["numbers"] == course["scores"] == list(range(0, n_complete, step))
