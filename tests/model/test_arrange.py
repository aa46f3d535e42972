"""Boosts, diversity, limits and pins against a naive reading of the rules; filters win over all of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.model.arrange import Boost, Candidates, Limit, Rules, arrange
from svc.model.filter_fields import LabelField
from svc.model.item_sets import ItemSet
from svc.model.model import Model
from svc.model.query import Interaction, Query, Ranking, Restriction
from tests.families import EVERY_FAMILY, N_ITEMS, family
from tests.serving.artifacts import factor_model

model_of = cache(family)
LABELS = [["a", "a|b", "b", "c", None][item % 5] for item in range(N_ITEMS)]
FIELD = LabelField.read("genres", "multi_label", "|", LABELS, N_ITEMS)
item_sets = st.integers(0, 2**N_ITEMS - 1).map(
    lambda bits: ItemSet.of_flags(np.array([bits >> place & 1 for place in range(N_ITEMS)], dtype=np.bool_))
)
factors = st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0])
rules = st.builds(
    Rules,
    diversity=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]),
    limits=st.sampled_from([(), (Limit(FIELD, 1),), (Limit(FIELD, 2),)]),
    boosts=st.lists(st.builds(Boost, item_sets, factors), max_size=2).map(tuple),
    pins=st.just(()),
)
pins = st.lists(
    st.tuples(st.integers(0, N_ITEMS + 2).map(lambda item: f"i{item}"), st.integers(0, 50)),
    max_size=3,
    unique_by=(lambda pin: pin[0], lambda pin: pin[1]),
)
restrictions = st.builds(
    Restriction,
    offset=st.integers(0, 10),
    allowed=st.none() | item_sets,
    rules=st.none() | rules.map(lambda some: some if some != Rules() else None),
    pins=pins,
    include_items=st.none(),
    explain=st.just(0),
)
asked = st.fixed_dictionaries(
    {
        "user_id": st.sampled_from(["u1", "u5", "u11", "nobody"]),
        "user_features": st.none(),
        "limit": st.integers(1, N_ITEMS),
        "exclude_items": st.lists(st.integers(0, N_ITEMS).map(lambda item: f"i{item}"), max_size=5),
        "history": st.lists(st.integers(0, N_ITEMS).map(lambda item: Interaction(f"i{item}")), max_size=3),
        "fallback": st.just(True),
    }
)


def cosine(model: Model, first: int, second: int) -> float:
    scorer: Any = model.scorer
    if model.kind == "popularity":
        return 0.0
    if model.kind == "blend":
        scorer = scorer.factors
    if hasattr(scorer, "index"):
        rows = scorer.index.vectors(np.array([first, second], dtype=np.int32))
        rows = rows[:, :-1] if type(scorer).__name__ == "BPRScorer" else rows
    else:
        matrix = np.zeros((N_ITEMS, N_ITEMS))
        if model.kind == "neighbours":
            owners = np.repeat(np.arange(N_ITEMS), np.diff(scorer.offsets))
            matrix[owners, scorer.columns] = scorer.weights
        else:
            matrix[:] = scorer.weights
        np.fill_diagonal(matrix, 0)
        rows = matrix[[first, second]]
    norms = np.linalg.norm(rows, axis=1)
    return float(rows[0] @ rows[1] / norms.prod()) if norms.all() else 0.0


NEAR = 1e-9
"""Gains that differ by less are equal but for rounding, which depends on the order of additions."""


def naive(model: Model, query: Query, page: list[int]) -> list[int]:
    """The page and what is before it, by looking at every candidate at every step.

    Of candidates that are equal but for rounding it takes the one that `page` has, so only their order is not checked.
    """
    every = model.rank([query._replace(limit=N_ITEMS, rules=None)])[0]
    columns = every.items.tolist()
    some = query.rules or Rules()
    value = dict(zip(columns, every.scores.tolist(), strict=True))
    if some.boosts and columns:
        low = min(0.0, *value.values())
        for column in columns:
            product = np.prod([boost.factor for boost in some.boosts if column in boost.items.columns()])
            value[column] = (value[column] - low) * product
        columns.sort(key=lambda column: (-value[column], column))
    pinned = {pin.column: pin.position for pin in some.pins}
    columns = [column for column in columns if column not in pinned]
    taken: dict[str, int] = {}
    chosen: list[int] = []

    def eligible(column: int) -> bool:
        labels = (LABELS[column] or "").split("|") if LABELS[column] else []
        return column not in chosen and all(
            taken.get(label, 0) < limit.most for limit in some.limits for label in labels
        )

    def take(column: int) -> None:
        chosen.append(column)
        for label in (LABELS[column] or "").split("|"):
            taken[label] = taken.get(label, 0) + 1

    if some.diversity:
        pool = columns[: max(100, 5 * query.limit)]
        low, high = (min(map(value.get, pool)), max(map(value.get, pool))) if pool else (0, 0)  # type: ignore[arg-type, type-var]
        while len(chosen) < query.limit:
            left = [column for column in pool if eligible(column)]
            if not left:
                break

            def gain(column: int) -> float:
                relevance = (value[column] - low) / (high - low) if high > low else 0.0  # type: ignore[operator]
                nearest = max((cosine(model, one, column) for one in chosen), default=0.0)
                return (1 - some.diversity) * relevance - some.diversity * nearest

            best = max(map(gain, left))
            equal = [column for column in left if gain(column) >= best - NEAR]
            take(next((column for column in page if column in equal), equal[0]))
    for column in columns:
        if len(chosen) < query.limit and eligible(column):
            take(column)
    ends = len(chosen) < query.limit or len(chosen) == len(columns)
    for column, position in sorted(pinned.items(), key=lambda pin: pin[1]):
        if position <= len(chosen) or ends:
            chosen.insert(position, column)
    return chosen[: query.limit]


@pytest.mark.parametrize("name", EVERY_FAMILY)
@settings(max_examples=25)
@given(questions=st.lists(st.tuples(asked, restrictions), min_size=1, max_size=4))
def test_any_mixture_is_arranged_as_the_rules_say(name: str, questions: list[tuple[Any, Restriction]]) -> None:
    """Alone and in a batch; nothing that a restriction removed comes back; scores are the model's own."""
    model = model_of(name)
    prepared = [model.prepare_recommend(**body, restriction=restriction) for body, restriction in questions]
    for one, ranking in zip(prepared, model.rank([one.query for one in prepared]), strict=True):
        query = one.query
        every = model.rank([query._replace(limit=N_ITEMS, rules=None)])[0]
        own = dict(zip(every.items.tolist(), every.scores.tolist(), strict=True))
        assert set(ranking.items.tolist()) <= set(own)
        assert len(set(ranking.items.tolist())) == len(ranking.items)
        assert [own[column] for column in ranking.items.tolist()] == ranking.scores.tolist()
        assert ranking.items.tolist() == naive(model, query, ranking.items.tolist())
        alone = model.rank([query])[0]
        assert (alone.items.tolist(), alone.reasons) == (ranking.items.tolist(), ranking.reasons)


def shown(model: Model, limit: int, **more: Any) -> Ranking:
    prepared = model.prepare_recommend(user_id="u1", user_features=None, limit=limit, restriction=Restriction(**more))
    return model.rank([prepared.query])[0]


def test_reasons_say_what_moved_an_item() -> None:
    """Pinned, boosted, diversified; nothing for those that stand where their score puts them."""
    model = model_of("SVD")
    plain = shown(model, 5)
    last = shown(model, N_ITEMS).items.tolist()[-1]
    pinned = shown(model, 5, pins=[(f"i{last}", 1)])
    assert pinned.items.tolist() == [plain.items[0], last, *plain.items[1:4]]
    assert pinned.reasons == ((), ("pinned",), (), (), ())
    boosted = shown(model, 5, rules=Rules(boosts=(Boost(ItemSet.of_columns(np.array([last]), N_ITEMS), 10.0),)))
    assert [("boosted",) if column == last else () for column in boosted.items.tolist()] == list(boosted.reasons)
    diverse = shown(model, 5, rules=Rules(diversity=0.5))
    assert diverse.items[0] == plain.items[0]
    assert ("diversified",) in diverse.reasons


def test_limits_hold_across_the_pages_of_one_ranking() -> None:
    """At most so many of one value from the start to the end of the last page; a missing value is not limited."""
    model = model_of("SVD")
    whole = shown(model, 20, rules=Rules(limits=(Limit(FIELD, 2),))).items.tolist()
    pages = [
        shown(model, 5, offset=offset, rules=Rules(limits=(Limit(FIELD, 2),))).from_place(offset).items.tolist()
        for offset in (0, 5, 10, 15)
    ]
    assert [column for page in pages for column in page] == whole
    for label in "abc":
        assert sum(label in (LABELS[column] or "").split("|") for column in whole) <= 2


def test_a_pin_behind_the_end_stands_at_the_end() -> None:
    """Of the whole ranking, not of the page."""
    model = model_of("SVD")
    count = len(shown(model, N_ITEMS).items)
    assert shown(model, N_ITEMS, pins=[("i30", 900)]).items.tolist()[count - 1] == 30
    assert 30 not in shown(model, 3, pins=[("i30", 900)]).items.tolist() or shown(model, 3).items.tolist().count(30)


def counting_sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each call of `np.lexsort` sorts from now on."""
    lexsort, counts = np.lexsort, []

    def counted(keys: Any) -> Any:
        counts.append(len(keys[0]))
        return lexsort(keys)

    monkeypatch.setattr(np, "lexsort", counted)
    return counts


def test_a_boosted_question_sorts_few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scorer gives the scores of all items in any order, alone and in a batch."""
    model = factor_model(10, 20_000, 8)
    model.ready()
    boosts = (Boost(ItemSet.of_columns(np.arange(0, 20_000, 3), 20_000), 2.0),)
    query = Query(limit=10, user=3, rules=Rules(boosts=boosts))
    counts = counting_sorts(monkeypatch)
    alone, batched = model.rank([query])[0], model.rank([query, query])[1]
    assert alone.items.tolist() == batched.items.tolist()
    assert 0 < sum(counts) < 2_000


@pytest.mark.parametrize("more", [{}, {"limits": (Limit(FIELD, 3),)}, {"diversity": 0.5}])
def test_boosts_sort_few_of_many_candidates(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    """The best are selected by a partition: sorting 100,000 candidates for ten items takes most of the time."""
    count = 100_000
    scores = np.sort(np.random.default_rng(3).standard_normal(count))[::-1]
    columns = np.arange(count, dtype=np.int32)
    sorted_counts = counting_sorts(monkeypatch)
    boosted = ItemSet.of_columns(np.arange(0, N_ITEMS, 7), count)
    found = Candidates(columns, scores, True, lambda: (columns, scores))
    no_limits = LabelField.read("genres", "multi_label", "|", [None] * count, count)
    limits = tuple(Limit(no_limits, limit.most) for limit in more.get("limits", ()))
    rules = Rules(**{**more, "limits": limits, "boosts": (Boost(boosted, 2.0),)})
    shown = arrange(found, rules, 10, lambda pool: lambda _: np.zeros(len(pool)), np.empty(0))
    assert len(shown.items) == 10
    assert 0 < sum(sorted_counts) < count / 50
