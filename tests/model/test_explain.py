"""Explanations: reasons add up to the score that they explain, and agree with brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.model import explain
from svc.model.explain import Because, Disliked
from svc.model.model import Model
from svc.model.ranking.query import Interaction, Prepared, Query, Ranking
from tests import planned
from tests.families import EVERY_FAMILY, N_ITEMS, family
from tests.planned import Restriction

ALL = Restriction(explain=10**6)
SUMS = ["IALS", "SVD", "neighbours", "dense_weights"]
"""Families whose score is a sum over interactions. A blend is none, because the profile scales its parts."""


def explanation_of(model: Model, **asked: Any) -> tuple[Prepared, Ranking]:
    asked = {"user_id": None, "user_features": None, "limit": 8, "restriction": ALL, **asked}
    prepared = planned.recommend(model, **asked)
    return prepared, model.rank([prepared.query])[0]


def addends_of(because: Because, score: float) -> dict[int | str, float]:
    """Return the addends of a score whose rest is 0.

    A share is an addend divided by the sum of the addends above 0.
    """
    shares = dict((*because.reasons, *because.in_spite_of))
    total = sum(shares.values())
    return {reason: share * score / total for reason, share in shares.items()}


def requests(model: Model) -> list[dict[str, Any]]:
    history = [Interaction("i3", 2.0), Interaction("i7"), Interaction("i20", 0.5)]
    some: list[dict[str, Any]] = [{"user_id": "u5"}, {"user_id": "u11"}, {"history": history}]
    some.append({"user_id": "u4", "history": history})
    against = [Interaction("i5", 1.5), Interaction("i4", 3.0)]
    some += [{"user_id": "u5", "dislikes": against}, {"history": history, "dislikes": against}]
    if model.features is not None:
        some += [{"user_features": {"tag": "a", "age": 48}}, {"user_features": {"age": 20}, "history": history}]
    return some


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_shares_and_the_rest_add_up_and_name_only_items_of_the_history(name: str) -> None:
    """Shares and `rest` add up to 1. Reasons come strongest first, and name only items of the history and dislikes."""
    model = family(name)
    for asked in requests(model):
        prepared, ranking = explanation_of(model, **asked)
        query = prepared.query
        own = (
            set(query.seeds.tolist())
            | set(query.dislikes.tolist())
            | (set(model.history.items(query.user).tolist()) if query.user >= 0 else set())
        )
        for because, score in zip(ranking.because, ranking.scores, strict=True):
            if name == "popularity":
                assert because == Because((("popular", 1.0),), 0.0)
                continue
            shares = [share for _, share in because.reasons]
            against = [-share for _, share in because.in_spite_of]
            if score > 0:
                assert abs(sum(shares) + because.rest - 1) < 1e-9
            assert min([*shares, *against, 1.0]) > 0 and because.rest >= 0
            assert sum(shares) < 1 + 1e-9
            for sizes in (shares, against):
                assert sizes == sorted(sizes, reverse=True)
            named = {reason for reason, _ in (*because.reasons, *because.in_spite_of) if isinstance(reason, int)}
            assert named <= own


@pytest.mark.parametrize("name", [*SUMS, "blend"])
def test_dislikes_are_reasons_of_their_own(name: str) -> None:
    """Dislikes are marked, and part of all sums. In least squares they have no addends, and all others still add up."""
    model = family(name)
    asked = {"history": [Interaction("i3", 2.0), Interaction("i7")], "dislikes": [Interaction("i5", 1.5)]}
    _, ranking = explanation_of(model, **asked, limit=N_ITEMS)
    reasons = {reason for because in ranking.because for reason, _ in (*because.reasons, *because.in_spite_of)}
    assert {int(reason) for reason in reasons if isinstance(reason, Disliked)} == (set() if name == "IALS" else {5})
    assert {reason for reason in reasons if not isinstance(reason, Disliked)} == {3, 7}
    for because, score in zip(ranking.because, ranking.scores, strict=True):
        assert abs(because.rest) < 1e-9 or score == 0
    assert any(isinstance(reason, Disliked) for because in ranking.because for reason, _ in because.in_spite_of) == (
        name != "IALS"
    )


def test_reasons_of_a_blend_hold_its_deviations_fixed() -> None:
    """If each part keeps its deviation, the score without the item is lower by the item's addend.

    With measured deviations, the score may even rise.
    """
    model = family("blend")
    parts, weights = (model.scorer.factors, *model.scorer.sums), model.scorer.weights  # type: ignore[attr-defined]
    chosen = np.array([2, 5, 9, 30], dtype=np.int32)

    def scores(scorer: Any, items: NDArray[np.int32]) -> NDArray[np.float64]:
        (ranking,) = scorer.rank([Query(limit=N_ITEMS, seeds=items, include_seen=True)], model.history)
        return np.asarray(ranking.scores[np.argsort(ranking.items)])

    deviations = [scores(part, chosen).std() for part in parts]
    found = model.scorer.contributions(Query(limit=1, seeds=chosen), model.history, np.arange(N_ITEMS, dtype=np.int32))
    assert found is not None
    whole, rises = scores(model.scorer, chosen), 0
    for place in range(len(chosen)):
        fewer = np.delete(chosen, place)
        fixed = sum(w * scores(part, fewer) / d for part, w, d in zip(parts, weights, deviations, strict=True))
        np.testing.assert_allclose(whole - found.of_columns[:, place], fixed, atol=1e-9)
        is_strongest = np.abs(found.of_columns).argmax(axis=1) == place
        rises += np.count_nonzero(
            is_strongest & (found.of_columns[:, place] > 0) & (scores(model.scorer, fewer) > whole)
        )
    assert rises


def test_popularity_is_one_reason_of_a_blend() -> None:
    """The addend of popularity is the difference to the score of the blend without it.

    All other reasons stay the same, and the rest is 0.
    """
    with_it, without = family("popular_blend"), family("blend")
    for asked in requests(with_it):
        _, ranking = explanation_of(with_it, **asked, limit=N_ITEMS)
        _, plain = explanation_of(without, **asked, limit=N_ITEMS)
        others = dict(zip(plain.items.tolist(), zip(plain.scores, plain.because, strict=True), strict=True))
        for column, score, because in zip(ranking.items.tolist(), ranking.scores, ranking.because, strict=True):
            its_score, its_reasons = others[column]
            addends = addends_of(because, score)
            assert abs(because.rest) < 1e-9
            np.testing.assert_allclose(addends.pop("popular", 0.0), score - its_score, atol=1e-9)
            if not its_reasons.reasons:  # only popularity raises the score
                assert its_score <= 0 and all(addend < 0 for addend in addends.values())
                continue
            expected = addends_of(its_reasons, its_score)
            assert addends == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SUMS)
def test_a_contribution_equals_the_change_of_score_without_the_item(name: str) -> None:
    """The change agrees for models that are sums, and for iALS if the matrix of the solve is held fixed."""
    model = family(name)
    history = [Interaction(f"i{item}", weight) for item, weight in ((2, 1.0), (5, 2.0), (9, 0.5), (30, 1.0))]
    prepared, ranking = explanation_of(model, history=history)
    if name == "IALS":
        solver = model.scorer.least_squares  # type: ignore[attr-defined]
        z = model.scorer.index.vectors(prepared.query.seeds)  # type: ignore[attr-defined]
        c = prepared.query.seed_weights
        vectors = model.scorer.index.vectors(np.arange(N_ITEMS, dtype=np.int32))  # type: ignore[attr-defined]
        left = solver.alpha0 * vectors.T @ vectors + (z.T * c) @ z
        left += solver.regularization(len(z), N_ITEMS) * np.eye(len(left))
        addends = vectors @ np.linalg.inv(left) @ (z.T * c)  # Hu, Koren, Volinsky: y_i' W y_j c_j
    for column, because, score in zip(ranking.items.tolist(), ranking.because, ranking.scores, strict=True):
        assert abs(because.rest) < 1e-9 or score == 0
        for reason, addend in addends_of(because, score).items():
            if name == "IALS":
                expected = addends[column, prepared.query.seeds.tolist().index(reason)]
            else:
                fewer = [one for one in history if one.item_id != f"i{reason}"]
                _, without = explanation_of(model, history=fewer, limit=N_ITEMS, include_seen=True)
                expected = score - without.scores[without.items.tolist().index(column)]
            np.testing.assert_allclose(addend, expected, atol=1e-9)


def test_an_explained_user_is_solved_anew() -> None:
    """The answer has the exact score of the whole history and the user's features, which is the score explained."""
    model = family("IALS")
    prepared, ranking = explanation_of(model, user_id="u5")
    plain = explanation_of(model, user_id="u5", restriction=Restriction())[1]
    assert prepared.profile == "user"
    np.testing.assert_allclose(ranking.scores, plain.scores, rtol=1e-9, atol=1e-9)
    assert plain.because == ()


def test_features_are_named_with_their_values() -> None:
    """Reasons are `tag=a` or `age=48`, also for unseen items. The constant belongs to the rest."""
    model = family("IALS")
    _, ranking = explanation_of(model, user_features={"tag": "a", "age": 48})
    named = {reason for because in ranking.because for reason, _ in because.reasons}
    assert named == {"tag=a", "age=48"}
    prepared = planned.related(
        model,
        seed_items=["i3"],
        item_features={"new": {"tag": "b", "age": 24}},
        user_features=None,
        limit=5,
        restriction=ALL,
    )
    (related,) = model.rank([prepared.query])
    assert {reason for because in related.because for reason, _ in because.reasons} == {3, "tag=b", "age=24"}
    two = {"new": {"tag": "b", "age": 24}, "newer": {"tag": "a", "age": 48}}
    prepared = planned.related(
        model, seed_items=["i3"], item_features=two, user_features=None, limit=5, restriction=ALL
    )
    (related,) = model.rank([prepared.query])
    named = {reason for because in related.because for reason, _ in because.reasons + because.in_spite_of}
    assert named == {3, "tag=a", "tag=b", "age"}


def test_a_learned_vector_has_no_reasons() -> None:
    """The vector of a BPR user is no sum over its history, so the rest is the whole score.

    The vector of seeds is a sum.
    """
    model = family("BPR")
    assert set(explanation_of(model, user_id="u5")[1].because) == {Because((), 1.0)}
    _, ranking = explanation_of(model, history=[Interaction("i3"), Interaction("i9")])
    assert all(
        abs(because.rest) < 1e-9 for because, score in zip(ranking.because, ranking.scores, strict=True) if score
    )


def test_only_the_page_is_explained_and_only_the_strongest_are_named() -> None:
    """The rest is 1 less the shares of the named reasons."""
    model = family("neighbours")
    prepared, ranking = explanation_of(model, user_id="u11", restriction=Restriction(offset=2, explain=2))
    page = ranking.from_place(prepared.query.offset)
    assert len(page.because) == len(page.items) == 8
    for because in page.because:
        assert len(because.reasons) <= 2
        assert because.rest == 1.0 - sum(share for _, share in because.reasons)


def test_long_feature_vectors_are_explained_by_their_nonzero_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reasons are those of the whole vector, for one user or item and for several."""
    model = family("IALS")
    two = {"new": {"tag": "b", "age": 24}, "newer": {"tag": "a"}}
    related = [{"new": {"tag": "b", "age": 40}}, two]

    def reasons() -> list[list[tuple[int | str, float]]]:
        rankings = [explanation_of(model, user_features={"tag": "a", "age": 48})[1]]
        for described in related:
            asked = {"seed_items": ["i3"], "item_features": described, "user_features": {"age": 20}}
            prepared = planned.related(model, **asked, limit=5, restriction=ALL)  # type: ignore[arg-type]
            rankings += model.rank([prepared.query])
        return [list(because.reasons) for ranking in rankings for because in ranking.because]

    whole = reasons()
    monkeypatch.setattr(explain, "MOST_EXPLAINED", 0)
    for long, short in zip(reasons(), whole, strict=True):
        assert [name for name, _ in long] == [name for name, _ in short]
        assert [share for _, share in long] == pytest.approx([share for _, share in short])
