"""`svc.evaluate`: figures agree with brute force, and unusable interactions are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import svc
from svc.errors import TrainingError, UsageError
from svc.library.evaluation import id_columns
from tests.export.conftest import MODELS
from tests.serving.artifacts import SIGNING_KEYS, write_artifact


def chosen(books: svc.Recommender, seed: int = 1) -> pd.DataFrame:
    """Return random interactions, with unknown users and items, repeats and blanks."""
    random = np.random.default_rng(seed)
    users, items = [*books.users()[:200], "stranger"], [*books.items(), "novelty"]
    frame = pd.DataFrame({"user_id": random.choice(users, 1200), "item_id": random.choice(items, 1200)})
    frame.loc[:20, "user_id"] = None
    return pd.concat([frame, frame.head(200)], ignore_index=True)


def test_metrics_are_those_of_brute_force(books: svc.Recommender) -> None:
    """Recall and hit rate agree with a computation user by user."""
    frame = chosen(books)
    found = svc.evaluate(books, frame, ["recall", "hit"], cutoff=10)
    recalls, hits = [], []
    known = set(books.users())
    asked, everything = set(frame["user_id"].dropna()) & known, set(books.items())
    rankings = {user: books.recommend(user, limit=90)["item_id"].tolist() for user in asked}
    for user, group in frame.dropna().groupby("user_id"):
        ranking = rankings.get(str(user), [])
        truth = set(group["item_id"]) - (everything - set(ranking))
        if user not in known or not truth:
            continue
        shown = set(ranking[:10])
        recalls.append(len(shown & truth) / len(truth))
        hits.append(bool(shown & truth))
    overall = found.overall.set_index("metric")
    assert overall.loc["recall", "value"] == pytest.approx(np.mean(recalls))
    assert overall.loc["hit", "value"] == pytest.approx(np.mean(hits))
    assert found.n_users == len(recalls) == overall.loc["hit", "n_users"]
    assert found.n_unknown_users == 1
    assert found.n_unknown_items > 0
    assert found.n_seen > 0


def test_each_part_has_means_within_their_intervals(books: svc.Recommender) -> None:
    """There are three parts of users and of items. Means lie within their intervals, and coverage has none."""
    found = svc.evaluate(books, chosen(books))
    assert found.by_activity["part"].unique().tolist() == ["few", "some", "many"]
    assert found.by_popularity["part"].unique().tolist() == ["head", "middle", "tail"]
    assert found.by_popularity.index.tolist() == list(range(len(found.by_popularity)))
    means = found.scores[found.scores["metric"] != "coverage"]
    assert ((means["low"] <= means["value"]) & (means["value"] <= means["high"])).all()
    assert found.by_activity.groupby("metric")["n_users"].sum().eq(found.n_users).all()
    coverage = found.overall.set_index("metric").loc["coverage"]
    assert 0 < coverage["value"] <= 1
    assert np.isnan(coverage["low"])
    wider = svc.evaluate(books, chosen(books), confidence=0.99).overall
    narrow = svc.evaluate(books, chosen(books), confidence=0.5).overall
    assert (wider["low"].dropna() < narrow["low"].dropna()).all()
    pd.testing.assert_frame_equal(svc.evaluate(books, chosen(books)).scores, found.scores)


def test_ids_may_be_numbers_or_categories(tmp_path: Path) -> None:
    """Ids that are numbers or categories count as their text."""
    path = tmp_path / "a.svc"
    model = MODELS["popularity"]()
    write_artifact(path, model)
    shop = svc.load(path, keys=SIGNING_KEYS)
    frame = pd.DataFrame({"u": ["u1", "u2"], "i": ["i40", "i41"]})
    plain = svc.evaluate(shop, frame, user_column="u", item_column="i").scores
    coded = svc.evaluate(shop, frame.astype("category"), user_column="u", item_column="i").scores
    pd.testing.assert_frame_equal(plain, coded)


def test_integer_ids_beside_missing_values_stay_whole() -> None:
    """An integer id beside a missing value keeps its digits. As a float, 7 would become the other id 7.0."""
    users, items = pa.array([7, None, 9]), pa.array(["i40", "i41", "i40"])
    frame = id_columns({"u": users, "i": items}, "u", "i")
    assert frame["u"].astype(str)[frame["u"].notna()].tolist() == ["7", "9"]


def test_wrong_arguments_are_named(books: svc.Recommender) -> None:
    """Errors name a wrong metric, column or bound, and data without users to judge."""
    frame = chosen(books)
    with pytest.raises(UsageError, match="'mrr' is none of ndcg, map, recall, hit"):
        svc.evaluate(books, frame, ["mrr"])
    with pytest.raises(UsageError, match="no column 'user_id'; it has u, item_id"):
        svc.evaluate(books, frame.rename(columns={"user_id": "u"}))
    for cutoff in (0, 1001):
        with pytest.raises(UsageError, match=f"cutoff: {cutoff} is not within 1..1000"):
            svc.evaluate(books, frame, cutoff=cutoff)
    for cutoff in (1, 1000):
        assert svc.evaluate(books, frame, cutoff=cutoff).cutoff == cutoff
    for confidence in (0.0, 1.0):
        with pytest.raises(UsageError, match=f"confidence: {confidence} is not between 0 and 1"):
            svc.evaluate(books, frame, confidence=confidence)
    with pytest.raises(UsageError, match="interactions: give a DataFrame"):
        svc.evaluate(books, "frame.csv")
    with pytest.raises(UsageError, match="list"):
        svc.evaluate(books, frame, "ndcg")
    with pytest.raises(TrainingError, match="no user can be judged"):
        svc.evaluate(books, frame[frame["user_id"] == "stranger"])


def test_the_popularity_of_choices_is_compared_with_that_of_training(books: svc.Recommender) -> None:
    """Means over interactions agree with a count by hand. Items outside the training have no users."""
    history = books.model.history
    users_of = np.bincount(history.columns, minlength=books.model.n_items)
    found = svc.evaluate(books, chosen(books))
    assert found.popularity_trained == pytest.approx(users_of[history.columns].mean())
    assert 0 < found.popularity_chosen < users_of.max()
    best = str(books.items()[int(np.argmax(users_of))])
    popular = pd.DataFrame({"user_id": books.users(), "item_id": best})
    assert svc.evaluate(books, popular).popularity_chosen == users_of.max()
