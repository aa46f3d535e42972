"""Parts of a model with scales of their own: a blend and a cold-start part, compared with each part alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from svc.cli import main
from svc.model import codec
from svc.model.forgetting import without_users
from svc.model.load_model import check_sizes, rehearse
from svc.model.model import Model
from svc.model.ranking.query import Audience, Interaction, Query
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import NewItems
from svc.training.final_model import train_final
from svc.training.fitting.trial import TrialRecord
from svc.training.judging import new_items
from svc.training.judging.incumbent import trial_of
from svc.training.judging.rankers import ScoreRanker
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task
from svc.training.search import blend_search
from svc.training.search.objective import standardize_scores, weighted_sum
from tests import planned
from tests.training.runs import BY_SCORE, SCHEMA, Make, features_of, opened, run, task_of, training
from tests.training.search.test_blend_search import blend_wins
from tests.training.test_weight_scale import plays as plays  # noqa: PLC0414 - a fixture

SCALES = {"IALS": "log", "CosineKNN": "rank", "RP3beta": "mean", "TopPop": "none"}
SHARES = dict(zip(SCALES, (0.3, 0.4, 0.2, 0.1), strict=True))
EPOCHS = {"IALS": 4}
Scores = NDArray[np.float64]


def weighted_recipe(make_recipe: Make, plays: Path, **changes: Any) -> LoadedRecipe:
    features = changes.pop("features", None)
    return make_recipe(
        ratings=plays,
        schema={**SCHEMA, "weight_column": "plays"},
        training=training(**{"algorithms": list(SCALES), "n_trials": 4, "recency": "search", **changes}),
        **({} if features is None else {"features": features}),
    )


def trial(name: str, recency: float = 0.0, scale: str | None = None, **params: Any) -> TrialRecord:
    of_scale = {"weight_scale": scale or SCALES[name], **params}
    return TrialRecord(0, f"{name}Recommender", of_scale, "complete", 0.5, {}, EPOCHS.get(name), 0.0, recency=recency)


def blend_of(recency: float = 0.0, names: tuple[str, ...] = tuple(SCALES)) -> TrialRecord:
    parts = tuple(trial(name, recency) for name in names)
    weights = {part.algorithm: SHARES[name] for part, name in zip(parts, names, strict=True)}
    return TrialRecord(
        9, "BlendRecommender", {"weights": weights}, "complete", 0.9, {}, None, 0.0, parts, recency=recency
    )


def final(task: Task, *trials: TrialRecord) -> Model:
    return train_final(task, SearchResult(list(trials), 1.0, 0)).model


def all_scores(model: Model, query: Query) -> Scores:
    """Return the scores of all items of the model for the query."""
    (ranking,) = model.rank([query._replace(limit=model.n_items, include_seen=True, exclude=query.exclude[:0])])
    scores = np.full(model.n_items, np.nan)
    scores[ranking.items] = ranking.scores
    return scores


def history_of(plays: Path, user: str, n: int = 5) -> list[Interaction]:
    table = pd.read_csv(plays)
    own = table[table["user_id"] == user].sort_values("ts").head(n)
    return [Interaction(item, count) for item, count in zip(own["item_id"], own["plays"], strict=True)]


def asked(model: Model, **given: Any) -> Query:
    given = {"user_id": None, "user_features": None, "history": None, **given}
    return planned.recommend(model, limit=5, **given).query


QUESTIONS: dict[str, Callable[[Model, Path], Query]] = {
    "a known user": lambda model, _: planned.known_user(model, 7, limit=5),
    "a history": lambda model, plays: asked(model, history=history_of(plays, "u8")),
    "a repeated item": lambda model, plays: asked(model, history=2 * history_of(plays, "u8", 3)),
    "without weights": lambda model, plays: asked(
        model, history=[h._replace(weight=1) for h in history_of(plays, "u8")]
    ),
    "a known user and a history": lambda model, plays: asked(model, user_id="u9", history=history_of(plays, "u1")),
    "a known user with a dislike": lambda model, plays: asked(
        model, user_id="u9", history=None, dislikes=[Interaction("i30")]
    ),
}


@pytest.mark.parametrize("recency", [0.0, 0.5])
@pytest.mark.parametrize("names", [tuple(SCALES), ("CosineKNN", "RP3beta"), ("RP3beta", "IALS")])
def test_a_blend_scores_by_each_part_on_its_own_scale(
    make_recipe: Make, plays: Path, recency: float, names: tuple[str, ...]
) -> None:
    """Its scores are the weighted sum of the standardized scores of models with one part each."""
    task = task_of(weighted_recipe(make_recipe, plays))
    blended = final(task, blend_of(recency, names))
    payload = b"".join(codec.encode(blended))
    model: Model = codec.decode(memoryview(payload))
    check_sizes(model)
    model.ready()
    rehearse(model)
    assert len(model.history.others) == len([name for name in names if name != "TopPop"]) - 1
    alone = {name: final(task, trial(name, recency)) for name in names}
    for question, ask in QUESTIONS.items():
        expected = np.zeros(model.n_items)
        for name, own in alone.items():
            scores = all_scores(own, ask(own, plays))
            expected += SHARES[name] * scores / scores.std()
        found = all_scores(model, ask(model, plays))
        np.testing.assert_allclose(
            found - found.mean(), expected - expected.mean(), rtol=2e-4, atol=2e-5, err_msg=question
        )


@pytest.mark.parametrize("recency", [0.0, 0.5])
def test_reasons_and_users_of_a_blend_read_the_same_weights(make_recipe: Make, plays: Path, recency: float) -> None:
    """Contributions add up to the scores, and a user's score of an item is the same from both sides."""
    task = task_of(weighted_recipe(make_recipe, plays))
    model = final(task, blend_of(recency))
    model.serve_users()
    query = QUESTIONS["a known user and a history"](model, plays)
    items = np.arange(model.n_items, dtype=np.int32)
    contributions = model.scorer.contributions(query, model.history, items)
    total = contributions.of_columns.sum(axis=1) + contributions.others["popularity"].sum(axis=1)
    np.testing.assert_allclose(total, all_scores(model, query), rtol=1e-5, atol=1e-6)
    (ranking,) = model.rank([Query(90, audience=Audience(4, order="score"), include_seen=True)])
    by_user = dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))
    for user in (0, 7, 50):
        np.testing.assert_allclose(by_user[user], all_scores(model, Query(5, user))[4], rtol=1e-6)


@pytest.mark.parametrize("recency", [0.0, 0.5])
def test_the_judge_ranks_as_the_search_and_the_server_do(make_recipe: Make, plays: Path, recency: float) -> None:
    """The pages of validation users by the served blend are those by the scores of the search for a blend."""
    task = task_of(weighted_recipe(make_recipe, plays))
    blend, holdout = blend_of(recency), task.holdout
    full = holdout.evaluators.full
    users = full.offset + full.evaluated_users
    served = holdout.ranker_of(task.train_on_split(blend), blend)(users, 5)
    scorers = [
        task.objective.quick_scores(task.train_on_split(part), part.params)(recency)  # type: ignore[attr-defined]
        for part in blend.parts
    ]
    shares = list(blend.params["weights"].values())
    by_search = ScoreRanker(lambda rows: weighted_sum(standardize_scores(scorers, rows), shares), holdout.seen)(
        users, 5
    )
    assert served == by_search


def test_a_search_blends_the_best_trials_whatever_their_scales() -> None:
    """The blend names a scale only if all of its parts have this one."""
    trials = [trial("CosineKNN"), trial("IALS"), trial("RP3beta", half_life="7d")]
    found = blend_search.candidates(SearchResult(trials, 1.0, 0))
    assert [part.params["weight_scale"] for part in found] == ["rank", "log"]


def forced(result: SearchResult) -> list[TrialRecord]:
    """Return a trial of iALS with logarithms and one of CosineKNN with ranks as the parts of the blend."""
    wanted = {("IALSRecommender", "log"), ("CosineKNNRecommender", "rank")}
    found = {(one.algorithm, one.params["weight_scale"]): one for one in reversed(result.completed)}
    return [found[key] for key in sorted(wanted)]


def test_a_refit_keeps_the_scale_of_each_part(
    make_recipe: Make, plays: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts from the vectors of the live model. The header and `svc inspect` tell the scales."""
    monkeypatch.setattr(blend_search, "candidates", forced)
    monkeypatch.setattr(BY_SCORE, blend_wins)
    monkeypatch.setenv("SVC_ENV", "development")
    recipe = weighted_recipe(make_recipe, plays, algorithms=["IALS", "CosineKNN", "Blend"], n_trials=20)
    searched = run(recipe)
    before, head = opened(searched)
    assert "weight_scale" not in head["best_params"]
    scales = {part["class"]: part["params"]["weight_scale"] for part in head["parts"]}
    assert scales == {"IALSRecommender": "log", "CosineKNNRecommender": "rank"}
    assert trial_of(head).readings() == [{"weight_scale": scale} for scale in scales.values()]
    capsys.readouterr()
    assert main.run(["inspect", str(searched.artifact), "--dev-allow-unsigned"]) == 0
    assert "rank (CosineKNN), log (IALS)" in capsys.readouterr().out
    after, again = opened(run(recipe, refit=True, cold=True))
    assert "reused_from" in again["tuning"]
    assert b"".join(codec.encode(after)) == b"".join(codec.encode(before))
    warm, _ = opened(run(recipe, refit=True))
    for own in (after, warm):
        assert [own.history.weight_scale, *(scale for _, scale in own.history.others)] == [
            before.history.weight_scale,
            *(scale for _, scale in before.history.others),
        ]
    first, other = (all_scores(own, asked(own, history=history_of(plays, "u8"))) for own in (before, warm))
    assert np.corrcoef(first, other)[0, 1] > 0.9


@pytest.mark.parametrize(("recency", "of_cold"), [(0.0, 0.0), (0.5, 0.5), (0.5, 0.2)])
def test_a_cold_start_part_weighs_histories_by_its_own_scale(
    make_recipe: Make, plays: Path, items_csv: Path, recency: float, of_cold: float
) -> None:
    """Users outside the training data get the scores of iALS alone, training users those of the winner alone."""
    recipe = weighted_recipe(make_recipe, plays, features=features_of(items_csv))
    task = task_of(recipe)
    winner, aware = trial("CosineKNN", recency), trial("IALS", of_cold, alpha0=0.1, lambda_item_feature=10.0)
    result = SearchResult([winner, aware], 1.0, 0)
    assert result.best is winner
    model, alone = train_final(task, result).model, final(task, aware)
    history = history_of(plays, "u8")
    queries = [asked(own, history=history) for own in (model, alone)]
    found, expected = (all_scores(own, query) for own, query in zip((model, alone), queries, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    of_winner = final(task_of(weighted_recipe(make_recipe, plays)), winner)
    known = [QUESTIONS["a known user and a history"](own, plays) for own in (model, of_winner)]
    found, expected = (all_scores(own, query) for own, query in zip((model, of_winner), known, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    embedder, own_embedder = model._embedder, alone._embedder
    assert embedder is not None and own_embedder is not None
    described = embedder.query_for(Query(5, 7))
    by_history = planned.recommend(
        alone, limit=5, user_id=None, user_features=None, history=history_of(plays, model.user_ids.at(7), 12)
    ).query
    np.testing.assert_allclose(described.seed_weights, by_history.seed_weights, rtol=1e-6)
    fold = new_items._fold(task, winner, aware, np.array([3, 8]), NewItems.model_construct())
    read = fold.model.history.at_weighing(fold.model.history.weighing_beside)
    assert [of.weight_scale[0] for of in (fold.model.history, read)] == ["rank", "log"]  # type: ignore[index]


def test_new_items_are_scored_on_the_scale_of_the_part_with_features(
    make_recipe: Make, plays: Path, items_csv: Path
) -> None:
    """The vector of a history is that of iALS alone, though another part comes first in the blend."""
    task = task_of(weighted_recipe(make_recipe, plays, features=features_of(items_csv)))
    aware = trial("IALS", alpha0=0.1, lambda_item_feature=10.0)
    blend = replace(blend_of(names=("CosineKNN", "IALS")), parts=(trial("CosineKNN"), aware))
    queries = [
        own._embedder.query_for(asked(own, history=history_of(plays, "u8")))  # type: ignore[union-attr]
        for own in (final(task, blend), final(task, aware))
    ]
    np.testing.assert_allclose(queries[0].seed_weights, queries[1].seed_weights)
    assert np.ptp(queries[0].seed_weights) > 1


def test_forgotten_users_have_no_weights_left(make_recipe: Make, plays: Path) -> None:
    """The weights on all scales are those of the other users, whose scores stay the same."""
    model = final(task_of(weighted_recipe(make_recipe, plays)), blend_of())
    left = without_users(model, ["u0"])
    kept = codec.decode(memoryview(b"".join(codec.encode(left))))
    kept.ready()
    check_sizes(kept)
    row, own = (one.user_ids.index("u9") for one in (model, kept))
    np.testing.assert_array_equal(all_scores(kept, Query(5, own)), all_scores(model, Query(5, row)))
