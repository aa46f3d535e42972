"""Recent popularity, compared with sums over single rows, and its effect in a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.model.codec import encode
from svc.model.load_model import load_model
from svc.model.model import Model
from svc.model.ranking.query import UNRESTRICTED
from svc.recipe.schema import Cleansing, InteractionSchema
from svc.recipe.serving_schema import Popular
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.data.interactions import from_rows
from svc.training.data.popularity import recent_choices
from svc.training.data.where import kept_rows
from tests.training.judging.gated import Make, header, run, training, write_tastes

DAY = 86_400
START_S = 1_700_000_000
RULES = [{"half_life": "7d"}, {"window": "30d"}, {"half_life": "12h", "window": "4w"}]
Row = tuple[int, int, int]


def latest_ages(rows: list[Row]) -> dict[tuple[int, int], int]:
    """Return the seconds from the latest row of each user and item to the start of the training."""
    latest: dict[tuple[int, int], int] = {}
    for user, item, time_s in rows:
        latest[user, item] = max(latest.get((user, item), time_s), time_s)
    return {pair: max(0, START_S - time_s) for pair, time_s in latest.items()}


def brute_force(rows: list[Row], n_items: int, rule: Popular) -> list[float]:
    """Return the count of each item, added row by row from the definition."""
    counts = [0.0] * n_items
    for (_, item), age_s in sorted(latest_ages(rows).items(), key=lambda pair: -pair[1]):
        if rule.window_s is None or age_s <= rule.window_s:
            counts[item] += 1.0 if rule.half_life_s is None else 2.0 ** (-age_s / rule.half_life_s)
    return counts


def counted(rows: list[Row], n_items: int, rule: Popular) -> np.ndarray:
    users, items, times = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    codes = users.astype(np.int32), items.astype(np.int32)
    return recent_choices(*codes, times * 10**9, n_items, rule, started_ns=START_S * 10**9)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(-60 * DAY, 5 * DAY)), min_size=1),
    st.sampled_from(RULES),
)
def test_counts_are_those_of_brute_force(rows: list[Row], rule: dict[str, Any]) -> None:
    """They agree up to one factor. Each user counts once for an item. Future rows have the age of the start."""
    shifted, popular = [(user, item, START_S + offset) for user, item, offset in rows], Popular(**rule)
    counts, expected = counted(shifted, 7, popular), brute_force(shifted, 7, popular)
    largest = max(counts)
    assert counts * max(expected) == pytest.approx(np.array(expected) * largest, rel=1e-9)
    assert largest > 0 or max(expected) == 0


def test_equal_ages_count_equally_in_any_order_of_rows() -> None:
    """The bits agree. Otherwise items of equal popularity would be ordered by rounding errors."""
    ages = [3.1, 14.7, 0.2, 9.9, 30.3, 1.1]
    rows = [(user, 0, int(START_S - age * DAY)) for user, age in enumerate(ages)]
    rows += [(user, 1, int(START_S - age * DAY)) for user, age in enumerate(reversed(ages))]
    counts = counted(rows, 2, Popular(half_life="7d"))
    assert counts[0] == counts[1]


def test_counts_depend_on_the_start_of_the_training_only_by_the_window() -> None:
    """So two trainings on the same rows write the same bytes, and rows of decades ago do not count 0."""
    times = np.array([0, 5, 10], dtype=np.int64) * 10**9
    codes = np.arange(3, dtype=np.int32)
    starts = [20 * 10**9, 2 * 10**18]
    first, second = (recent_choices(codes, codes, times, 3, Popular(half_life="1h"), started_ns=at) for at in starts)
    assert first.tolist() == second.tolist() == sorted(first.tolist())
    assert first[2] == 1.0
    windows = [recent_choices(codes, codes, times, 3, Popular(window="1h"), started_ns=at) for at in starts]
    assert [found.tolist() for found in windows] == [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dedup", ["keep_first", "keep_last", "none", "count"])
def test_the_latest_row_counts_with_any_dedup(dedup: Any) -> None:
    """Here u1 chose `a` long ago and again yesterday, and `b` three days ago."""
    days = [("u1", "a", -50), ("u1", "b", -3), ("u1", "a", -1), ("", "c", -1)]
    rows = pd.DataFrame(days, columns=["user_id", "item_id", "ts"]).astype(
        {"user_id": "category", "item_id": "category"}
    )
    rows["ts"] = START_S + rows["ts"] * DAY
    schema = InteractionSchema(user_column="user_id", item_column="item_id", time_column="ts", time_unit="s")
    found = from_rows(
        kept_rows(rows, None),
        schema,
        Cleansing(dedup=dedup),
        with_times=True,
        started_ns=START_S * 10**9,
        popular=Popular(half_life="1d"),
    )
    assert found.popularity is not None
    assert dict(zip(found.item_ids, found.popularity.tolist(), strict=True)) == {"a": 1.0, "b": 0.25}


def trained(artifact: str | None) -> Model:
    assert artifact is not None
    parsed = read_verified(artifact, development_keys(), Settings())[1]
    return load_model(parsed.header, parsed.payload, name="small", allow_skew=False)


def most_chosen(model: Model, **asked: Any) -> list[str]:
    prepared = model.prepare_popular(limit=60, restriction=UNRESTRICTED._replace(**asked))
    return [model.item_ids.at(column) for column in model.rank([prepared.query])[0].items.tolist()]


@pytest.mark.parametrize("rule", [{"half_life": "2d"}, {"window": "6d"}, {"half_life": "90min", "window": "6d"}])
def test_a_trained_model_ranks_by_recent_popularity(
    rule: dict[str, Any], make_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for list and fallback. Ties and items without a row in the window follow all choices, then training
    order.

    The rest is as without `serving.popular`.
    """
    start_s = 1_600_000_000 + 12 * DAY
    monkeypatch.setattr(fetch.time, "time_ns", lambda: start_s * 10**9)
    table = write_tastes(tmp_path / "tastes.csv")
    blocks = {"ratings": table, "training": training()}
    plain = trained(run(make_recipe(**blocks)).artifact)
    result = run(make_recipe(**blocks, serving={"popular": rule}))
    model = trained(result.artifact)

    popular, counts = Popular(**rule), dict.fromkeys(plain.item_ids.all(), 0.0)
    ages_s = start_s - pd.read_csv(table).groupby(["user_id", "item_id"])["ts"].max()
    for (_, item), age_s in ages_s.sort_values(ascending=False).items():
        if popular.window_s is None or age_s <= popular.window_s:
            counts[item] += 1.0 if popular.half_life_s is None else 2.0 ** (-age_s / popular.half_life_s)
    expected = sorted(counts, key=lambda item: -counts[item])  # stable, and items stand most chosen first
    assert most_chosen(model) == expected != most_chosen(plain)
    few = ["i7", "i1", "i30"]
    assert most_chosen(model, include_items=few) == [item for item in expected if item in few]
    asked = model.prepare_recommend(user_id="nobody", user_features=None, limit=60, fallback=True)
    assert model.rank([asked.query])[0].items.tolist() == [model.item_ids.index(item) for item in expected]

    assert header(result.artifact)["popular"] == rule
    assert model.item_ids.all() == plain.item_ids.all()
    assert model.popularity is not None
    assert plain.popularity is None
    del model.popularity
    assert b"".join(encode(model)) == b"".join(encode(plain))
