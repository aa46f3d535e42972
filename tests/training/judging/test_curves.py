"""Figures that only a report shows: the effect of diversity, and metrics at other cutoffs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.query import Query
from svc.model.ranking.rerank import Rules
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import SVDScorer
from svc.model.recommenders.popularity import PopularityScorer
from svc.training.judging import curves
from svc.training.judging.curves import VALUES, measure_diversity
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.rankers import ServedRanker
from tests.training.runs import Make, header, run, training

N_USERS, N_ITEMS, CUTOFF = 60, 300, 8


def parts(seed: int = 0) -> tuple[Model, Evaluator]:
    """Return a factor model with groups of similar items, in the form that is served, and an evaluator."""
    rng = np.random.default_rng(seed)
    tastes = rng.standard_normal((12, 6))
    items = (tastes[rng.integers(0, 12, N_ITEMS)] + 0.3 * rng.standard_normal((N_ITEMS, 6))).astype(np.float32)
    users = (tastes[rng.integers(0, 12, N_USERS)] + 0.3 * rng.standard_normal((N_USERS, 6))).astype(np.float32)
    seen = sparse.random(N_USERS, N_ITEMS, 0.03, "csr", random_state=seed, dtype=np.float64)
    heldout = sparse.random(N_USERS, N_ITEMS, 0.05, "csr", random_state=seed + 1, dtype=np.float64)
    scorer = SVDScorer(users, FactorIndex.build(items))
    model = Model(
        user_ids=IdTable.from_ids([f"u{row}" for row in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i{row}" for row in range(N_ITEMS)]),
        history=History(seen.indptr.astype(np.int32), seen.indices.astype(np.int32)),
        scorer=scorer,
        features=None,
    )
    model.ready()
    return model, Evaluator(heldout, offset=0, cutoff=CUTOFF)


def test_the_lists_are_those_that_a_server_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each diversity, the model returns the same items in the same order."""
    model, evaluator = parts()
    kept: dict[float, list[list[int]]] = {}
    row_of = curves._row

    def keeping(value: float, lists: Any, *rest: Any) -> dict[str, Any]:
        kept[value] = [ranking for ranking, _ in lists]
        return row_of(value, lists, *rest)

    monkeypatch.setattr(curves, "_row", keeping)
    measure_diversity(ServedRanker.alike(model), evaluator, seed=1)
    users = evaluator.evaluated_users.tolist()
    for value in VALUES:
        rules = Rules(diversity=value) if value else None
        answers = model.rank([Query(limit=CUTOFF, user=user, rules=rules) for user in users])
        assert kept[value] == [answer.items.tolist() for answer in answers]


def test_ndcg_distance_and_coverage_follow_their_definitions() -> None:
    """At diversity 0, ndcg is that of the evaluation. Distances are those of the vectors, and grow with diversity."""
    model, evaluator = parts()
    found = measure_diversity(ServedRanker.alike(model), evaluator, seed=1)
    evaluation = evaluator.evaluate(ServedRanker.alike(model))
    first, *_, last = found["values"]
    assert [row["diversity"] for row in found["values"]] == list(VALUES)
    assert found["n_users"] == len(evaluation.rankings)
    assert first["ndcg"] == pytest.approx(evaluation.metrics["ndcg"], abs=1e-6)
    assert first["coverage"] == pytest.approx(evaluation.metrics["catalog_coverage"], abs=1e-6)
    assert first["interval"][0] < first["ndcg"] < first["interval"][1]
    vectors = model.scorer.index.vectors(np.arange(N_ITEMS, dtype=np.int32))  # type: ignore[attr-defined]
    directions = vectors / np.linalg.norm(vectors, axis=1)[:, np.newaxis]
    apart = []
    for ranking in evaluation.rankings:
        cosine = directions[ranking] @ directions[ranking].T
        apart.append(1 - cosine[np.triu_indices(len(ranking), 1)].mean())
    assert first["distance"] == pytest.approx(np.mean(apart), abs=1e-6)
    distances = [row["distance"] for row in found["values"]]
    assert distances == sorted(distances)
    assert last["distance"] > first["distance"] + 0.1


def test_a_model_without_similarities_has_the_same_lists_for_every_diversity() -> None:
    """Popularity has no similarities of items, so diversity does not change its lists."""
    model, evaluator = parts()
    scores = np.arange(N_ITEMS, dtype=np.float64)
    model.scorer = PopularityScorer(scores)
    model.ready()
    found = measure_diversity(ServedRanker.alike(model), evaluator.sample(20, 1), seed=1)
    rows = found["values"]
    assert found["n_users"] == 20, "a sample bounds the cost of each value"
    assert len({(row["ndcg"], row["coverage"]) for row in rows}) == 1


@pytest.mark.usefixtures("without_drawing")
def test_only_trainings_with_a_report_measure_diversity_and_other_cutoffs(
    make_recipe: Make, make_ratings: Callable[..., Path], tmp_path: Path
) -> None:
    """Header and page have the figures.

    Cutoffs beyond the number of items are left out. The metric at the cutoff of the search equals its score.
    """
    page, ratings = tmp_path / "page.html", make_ratings("few.csv", n_items=20)
    title, label = (
        "What diversity costs",
        "Accuracy and mean distance of two items of a list for each value of diversity",
    )
    loaded = make_recipe(ratings=ratings, training=training())
    head = header(run(loaded, report=page).artifact)
    assert [row["diversity"] for row in head["evaluation"]["diversity"]["values"]] == list(VALUES)
    assert title in page.read_text(encoding="utf-8")
    assert f'aria-label="{label}"' in page.read_text(encoding="utf-8")
    found = head["evaluation"]["cutoffs"]
    assert list(found) == ["5", "10", "20"]
    assert found["5"]["ndcg"] == pytest.approx(head["best_score"], abs=1e-9)
    assert found["20"]["recall"] >= found["5"]["recall"]
    assert {"diversity", "cutoffs"}.isdisjoint(header(run(loaded).artifact)["evaluation"])
