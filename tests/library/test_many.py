"""Many users at once get the answers of each alone, and pairs get scores."""

from __future__ import annotations

import random

import numpy as np
import pytest

import svc
from svc import errors
from tests.export.conftest import MODELS as FAMILIES
from tests.library.test_answers import MODELS, both, controls, variation
from tests.serving.artifacts import SIGNING_KEYS, write_artifact


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> svc.Recommender:
    path = tmp_path_factory.mktemp("books") / "a.svc"
    write_artifact(path, FAMILIES["neighbours"]())
    return svc.load(path, keys=SIGNING_KEYS)


@pytest.mark.anyio
@pytest.mark.parametrize("name", MODELS)
async def test_many_users_get_the_answers_of_a_batch(name: str) -> None:
    """Controls apply to each user, and users without an answer are skipped."""
    model, rng = MODELS[name](), random.Random(name)
    model.ready()
    async with both(model) as (client, shop):
        for _ in range(4):
            ids = model.item_ids.all()
            body = {**controls(rng, ids), **variation(rng, ids), "limit": 5, "diversity": 0.25}
            users = rng.sample([*model.user_ids.all(), "nobody"], 6)
            bodies = [{"user_id": user, **body} for user in users]
            sent = {"requests": bodies, "include_metadata": True}
            answer = await client.post("/v1/recipes/r:batch-recommend", sent)
            if all(one.get("code") == "VALIDATION_ERROR" for one in answer.json["results"]):
                with pytest.raises(errors.UsageError):
                    shop.recommend_many(users, unknown="skip", **body)
                continue
            frame = shop.recommend_many(users, unknown="skip", **body)
            for user, one in zip(users, answer.json["results"], strict=True):
                own = frame[frame["user_id"] == user]
                offset = body.get("offset", 0)
                assert own["rank"].tolist() == list(range(offset + 1, offset + 1 + len(own)))
                expected = [(item["item_id"], item["score"]) for item in one.get("items", ())]
                assert list(zip(own["item_id"], own["score"], strict=True)) == expected


def test_pairs_have_the_scores_of_rankings(books: svc.Recommender) -> None:
    """Scores are those of the ranking, chosen items included. Unknown ids give NaN, and repeated pairs repeat."""
    ranking = books.recommend("ü 2", limit=90, include_seen=True).set_index("item_id")["score"]
    items = [*ranking.index[::7], "none", ranking.index[0]]
    pairs = books.score(["ü 2"] * len(items), items)
    assert pairs["item_id"].tolist() == items
    expected = [ranking.get(item, np.nan) for item in items]
    np.testing.assert_array_equal(pairs["score"], expected)
    mixed = books.score(["ü 1", "stranger", "ü 2", "ü 1"], ["i1", "i1", "i1", "i2"])
    alone = [
        books.score([user], [item])["score"][0] for user, item in mixed[["user_id", "item_id"]].itertuples(index=False)
    ]
    np.testing.assert_array_equal(mixed["score"], alone)
    assert books.score([], []).empty
