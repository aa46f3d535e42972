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


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> svc.Recommender:
    path = tmp_path_factory.mktemp("shop") / "a.svc"
    write_artifact(path, MODELS["neighbours"]())
    return svc.load(path, keys=SIGNING_KEYS)


def chosen(shop: svc.Recommender, seed: int = 1) -> pd.DataFrame:
    """Return random interactions, with unknown users and items, repeats and blanks."""
    random = np.random.default_rng(seed)
    users, items = [*shop.users()[:200], "stranger"], [*shop.items(), "novelty"]
    frame = pd.DataFrame({"user_id": random.choice(users, 1200), "item_id": random.choice(items, 1200)})
    frame.loc[:20, "user_id"] = None
    return pd.concat([frame, frame.head(200)], ignore_index=True)


def test_metrics_are_those_of_brute_force(shop: svc.Recommender) -> None:
    """Recall and hit rate agree with a computation user by user."""
    frame = chosen(shop)
    found = svc.evaluate(shop, frame, ["recall", "hit"], cutoff=10)
    recalls, hits = [], []
    known = set(shop.users())
    asked, everything = set(frame["user_id"].dropna()) & known, set(shop.items())
    rankings = {user: shop.recommend(user, limit=90)["item_id"].tolist() for user in asked}
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


def test_each_part_has_means_within_their_intervals(shop: svc.Recommender) -> None:
    """There are three parts of users and of items. Means lie within their intervals, and coverage has none."""
    found = svc.evaluate(shop, chosen(shop))
    assert found.by_activity["part"].unique().tolist() == ["few", "some", "many"]
    assert found.by_popularity["part"].unique().tolist() == ["head", "middle", "tail"]
    means = found.scores[found.scores["metric"] != "coverage"]
    assert ((means["low"] <= means["value"]) & (means["value"] <= means["high"])).all()
    assert found.by_activity.groupby("metric")["n_users"].sum().eq(found.n_users).all()
    coverage = found.overall.set_index("metric").loc["coverage"]
    assert 0 < coverage["value"] <= 1
    assert np.isnan(coverage["low"])
    wider = svc.evaluate(shop, chosen(shop), confidence=0.99).overall
    narrow = svc.evaluate(shop, chosen(shop), confidence=0.5).overall
    assert (wider["low"].dropna() < narrow["low"].dropna()).all()
    pd.testing.assert_frame_equal(svc.evaluate(shop, chosen(shop)).scores, found.scores)


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
    """A float of 7.0 would be another id than 7."""
    users, items = pa.array([7, None, 9]), pa.array(["i40", "i41", "i40"])
    frame = id_columns({"u": users, "i": items}, "u", "i")
    assert frame["u"].astype(str)[frame["u"].notna()].tolist() == ["7", "9"]


def test_wrong_arguments_are_named(shop: svc.Recommender) -> None:
    """Errors name a wrong metric, column or bound, and data without users to judge."""
    frame = chosen(shop)
    with pytest.raises(UsageError, match="'mrr' is none of ndcg, map, recall, hit"):
        svc.evaluate(shop, frame, ["mrr"])
    with pytest.raises(UsageError, match="no column 'user_id'; it has u, item_id"):
        svc.evaluate(shop, frame.rename(columns={"user_id": "u"}))
    for cutoff in (0, 1001):
        with pytest.raises(UsageError, match=f"cutoff: {cutoff} is not within 1..1000"):
            svc.evaluate(shop, frame, cutoff=cutoff)
    for cutoff in (1, 1000):
        assert svc.evaluate(shop, frame, cutoff=cutoff).cutoff == cutoff
    for confidence in (0.0, 1.0):
        with pytest.raises(UsageError, match=f"confidence: {confidence} is not between 0 and 1"):
            svc.evaluate(shop, frame, confidence=confidence)
    with pytest.raises(UsageError, match="interactions: give a DataFrame"):
        svc.evaluate(shop, "frame.csv")
    with pytest.raises(UsageError, match="list"):
        svc.evaluate(shop, frame, "ndcg")
    with pytest.raises(TrainingError, match="no user can be judged"):
        svc.evaluate(shop, frame[frame["user_id"] == "stranger"])


def test_the_popularity_of_choices_is_compared_with_that_of_training(shop: svc.Recommender) -> None:
    """Means over interactions agree with a count by hand. Items outside the training have no users."""
    history = shop.model.history
    users_of = np.bincount(history.columns, minlength=shop.model.n_items)
    found = svc.evaluate(shop, chosen(shop))
    assert found.popularity_trained == pytest.approx(users_of[history.columns].mean())
    assert 0 < found.popularity_chosen < users_of.max()
    best = str(shop.items()[int(np.argmax(users_of))])
    popular = pd.DataFrame({"user_id": shop.users(), "item_id": best})
    assert svc.evaluate(shop, popular).popularity_chosen == users_of.max()
