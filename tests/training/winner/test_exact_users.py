"""Known users are served by exact solves of their histories where these score no lower on the holdout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.model import codec
from svc.model.model import Model
from svc.model.ranking.query import Interaction
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.run import TrainOptions, train
from svc.training.winner.exact_users import ExactUsers

Make = Callable[..., LoadedRecipe]


def trained(make_recipe: Make, *algorithms: str, recency: object = "off") -> tuple[dict[str, Any], Model]:
    """The header and the model of a training without keys."""
    split = {"scheme": "time_user", "heldout_ratio": 0.3}
    training = {"algorithms": list(algorithms), "n_trials": 3, "cutoff": 5, "split": split, "recency": recency}
    result = train(make_recipe(training=training), TrainOptions(run_id="r1", dev_unsigned=True), Settings(), Progress())
    assert result.artifact is not None
    parsed = read_verified(result.artifact, development_keys(), Settings())[1]
    model = codec.decode(parsed.payload)
    model.ready()
    return parsed.header, model


def scores_of_user(model: Model, user_id: str) -> dict[int, float]:
    query = model.prepare_recommend(user_id=user_id, user_features=None, limit=40).query
    ranking = model.rank([query])[0]
    return dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))


def scores_of_history(model: Model, user_id: str) -> dict[int, float]:
    """The scores of a stranger with the history of that user."""
    columns = model.history.items(model.user_ids.index(user_id))
    history = [Interaction(model.item_ids.at(int(column)), 1.0) for column in columns]
    query = model.prepare_recommend(user_id=None, user_features=None, limit=40, history=history).query
    ranking = model.rank([query])[0]
    return dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))


def agree(first: dict[int, float], second: dict[int, float]) -> bool:
    """True where both score the same items alike, but for the rounding of stored vectors to float32."""
    return first.keys() == second.keys() and np.allclose(
        [first[item] for item in first], [second[item] for item in first], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("algorithms", [("IALS",), ("IALS", "CosineKNN", "Blend")])
def test_a_user_and_their_history_are_answered_alike(
    make_recipe: Make, monkeypatch: pytest.MonkeyPatch, algorithms: tuple[str, ...]
) -> None:
    """With exact users: the same items with the same scores, for a model alone and as a part of a blend."""
    monkeypatch.setattr(ExactUsers, "are_served", True)
    header, model = trained(make_recipe, *algorithms)
    if header["best_class"] in {"IALSRecommender", "BlendRecommender"}:
        assert header["evaluation"]["exact_users"]["served"] is True
        assert 0.0 <= header["evaluation"]["refit_overlap"] <= 1.0
    for user in range(0, 80, 9):
        assert agree(scores_of_user(model, f"u{user}"), scores_of_history(model, f"u{user}"))


def test_users_keep_their_trained_vectors_where_exact_ones_score_lower(
    make_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header tells both scores either way."""
    monkeypatch.setattr(ExactUsers, "are_served", False)
    header, model = trained(make_recipe, "IALS")
    assert header["evaluation"]["exact_users"]["served"] is False
    differ = [not agree(scores_of_user(model, f"u{user}"), scores_of_history(model, f"u{user}")) for user in range(20)]
    assert any(differ)


def test_the_higher_score_decides_and_equal_scores_are_exact() -> None:
    """No worse on the holdout is enough: then all three kinds of answers agree."""
    assert ExactUsers(0.9, trained_score=0.5, exact_score=0.5, n_users=10).are_served
    assert not ExactUsers(0.9, trained_score=0.5, exact_score=0.4, n_users=10).are_served


def test_other_families_have_nothing_to_compare(make_recipe: Make) -> None:
    """A neighbour model has no vectors of users."""
    header, _ = trained(make_recipe, "CosineKNN")
    assert "exact_users" not in header["evaluation"]
    assert "refit_overlap" not in header["evaluation"]
