"""Boosts, rotation, diversity, limits and pins, compared with a naive implementation of the rules.

Filters apply before all of them.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from svc.model.model import Model
from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Interaction, Query, Ranking
from svc.model.ranking.rerank import POOL, Boost, Candidates, Items, Limit, Pin, Rules, Similar, rerank
from svc.model.ranking.steps import Steps
from tests import planned
from tests.families import EVERY_FAMILY, N_ITEMS, family
from tests.model.ranking.brute_force import Naive, variations
from tests.planned import Restriction
from tests.serving.artifacts import factor_model

NO_SCORES = np.empty(0)
MANY = 3 * POOL
IDS = [f"i{item}" for item in range(MANY)]
"""Ids of a catalogue that is larger than the pool of diversity."""
model_of = cache(family)
field_of = cache(lambda n_items: LabelField.read("genres", "multi_label", "|", labels_of(n_items), n_items))


def labels_of(n_items: int) -> list[str | None]:
    """Return labels, most of them of one genre, so that a limit on it soon leaves the pool of diversity."""
    return ["a" if item % 7 else ["a|b", "b", "c", None][item // 7 % 4] for item in range(n_items)]


@cache
def genre(label: str, n_items: int) -> ItemSet:
    return ItemSet.of_flags(genres_of_items(n_items)[:, "abc".index(label)])


seeds = st.integers(0, 2**32)


def halves(n_items: int) -> st.SearchStrategy[NDArray[np.bool_]]:
    """Return a strategy for flags of items, (n_items,), each True with probability one half.

    One seed is drawn for all flags, because drawing each flag would take most of the tests' time.
    """
    return seeds.map(lambda seed: np.random.default_rng(seed).random(n_items) < 0.5)


def item_sets(n_items: int) -> st.SearchStrategy[ItemSet]:
    genres = st.sampled_from(["a", "b", "c"]).map(lambda label: genre(label, n_items))
    return genres | halves(n_items).map(ItemSet.of_flags)


def some_ids(n_items: int, most: int) -> st.SearchStrategy[list[str]]:
    """Return a strategy for one id or more. The model does not know the last two ids."""
    drawn = st.tuples(st.integers(1, most), seeds)
    return drawn.map(
        lambda pair: [
            f"i{item}" for item in np.random.default_rng(pair[1]).permutation(n_items + 2)[: pair[0]].tolist()
        ]
    )


def pinned(ids: list[str], seed: int) -> list[tuple[str, int]]:
    return list(zip(ids, np.random.default_rng(seed).permutation(50).tolist(), strict=False))


def some_of(what: str, n_items: int) -> st.SearchStrategy[Any]:
    """Return a strategy for values of one rule that have an effect."""
    factors = st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0])
    return {
        "diversity": st.sampled_from([0.1, 0.5, 0.9, 1.0]),
        "limits": st.sampled_from([1, 2, 5]).map(lambda most: (Limit(field_of(n_items), most),)),
        "boosts": st.lists(st.builds(Boost, item_sets(n_items), factors), min_size=1, max_size=3).map(tuple),
        "pins": st.builds(pinned, some_ids(n_items, 16), seeds),
    }[what]


@cache
def requests(n_items: int, rules: tuple[str, ...]) -> st.SearchStrategy[tuple[dict[str, Any], Restriction]]:
    """Return a strategy for requests with these rules.

    Filters and all other fields vary.
    """
    body = st.fixed_dictionaries(
        {
            "user_id": st.sampled_from(["u1", "u5", "u11", "nobody"]),
            "user_features": st.none(),
            "limit": st.integers(1, 40),
            "exclude_items": st.just([]) | some_ids(n_items, 5),
            "history": st.just([]) | some_ids(n_items, 3).map(lambda ids: [*map(Interaction, ids)]),
            "include_seen": st.booleans(),
            "fallback": st.just(True),
        }
    )
    off: dict[str, Any] = {
        "diversity": st.just(0.0),
        "limits": st.just(()),
        "boosts": st.just(()),
        "pins": st.just(()),
        "share": st.none(),
        "rotation": st.none(),
    }
    reordered = {what: some_of(what, n_items) for what in rules if what != "pins"}
    restriction = st.builds(
        Restriction,
        offset=st.just(0) | st.integers(0, 40),
        allowed=st.none() | item_sets(n_items),
        rules=st.builds(Rules, **(off | reordered)) if reordered else st.none(),
        pins=some_of("pins", n_items) if "pins" in rules else st.just(()),
        include_items=st.none() | halves(n_items).map(lambda some: [f"i{item}" for item in some.nonzero()[0].tolist()]),
        explain=st.just(0),
        new=st.none(),
        variation=st.none() | variations(IDS[:n_items]),
    )
    return st.tuples(body, restriction)


@cache
def genres_of_items(n_items: int) -> NDArray[np.bool_]:
    """Return whether each item has each genre, (n, 3)."""
    return np.array([[label in (labels or "").split("|") for label in "abc"] for labels in labels_of(n_items)])


def strongest(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows with only the 100 weights of the largest absolute value, ties by column."""
    kept = np.zeros_like(rows)
    for item, row in enumerate(rows.tolist()):
        for column in sorted(range(len(row)), key=lambda column: (-abs(row[column]), column))[:100]:
            kept[item, column] = row[column]
    return kept


@cache
def cosines(name: str, n_items: int) -> NDArray[np.float64]:
    """Return the similarities of all pairs of items."""
    model = model_of(name, n_items=n_items)
    scorer: Any = model.scorer
    if model.kind == "popularity":
        return np.zeros((n_items, n_items))
    if model.kind == "blend":
        scorer = scorer.factors
    if hasattr(scorer, "index"):
        rows = scorer.index.vectors(np.arange(n_items, dtype=np.int32))
        rows = rows[:, :-1] if type(scorer).__name__ == "BPRScorer" else rows
    else:
        rows = np.zeros((n_items, n_items))
        if model.kind == "neighbours":
            rows[np.repeat(np.arange(n_items), np.diff(scorer.offsets)), scorer.columns] = scorer.weights
        else:
            rows[:] = scorer.weights
        np.fill_diagonal(rows, 0)
        rows = strongest(rows)
    norms = np.linalg.norm(rows, axis=1)
    directions = rows / np.where(norms > 0, norms, 1)[:, np.newaxis]
    return np.asarray(directions @ directions.T, dtype=np.float64)


class NaiveOfModel(Naive):
    """The naive choice of a page among all items of a model."""

    def __init__(self, name: str, n_items: int, query: Query) -> None:
        super().__init__(query.rules or Rules(), query.limit, IDS)
        self.similar, self.has = cosines(name, n_items), genres_of_items(n_items)
        (every,) = model_of(name, n_items=n_items).rank([query._replace(limit=n_items, rules=None)])
        columns = every.items.tolist()
        self.own = dict(zip(columns, every.scores.tolist(), strict=True))
        self.rank(columns, every.scores, {column: column for column in columns})

    def left(self) -> list[int]:
        taken, most = self.has[self.chosen].sum(axis=0), [limit.most for limit in self.rules.limits]
        full = self.has[:, taken >= min(most, default=np.inf)].any(axis=1).tolist()
        gone = {*self.chosen, *self.pinned}
        return [column for column in self.ranked if column not in gone and not full[column]]


def check(name: str, n_items: int, questions: list[tuple[dict[str, Any], Restriction]]) -> None:
    """Check a request alone and in a batch: no removed item comes back, and scores are the model's own."""
    model = model_of(name, n_items=n_items)
    prepared = [planned.recommend(model, **body, restriction=restriction) for body, restriction in questions]
    for one, ranking in zip(prepared, model.rank([one.query for one in prepared]), strict=True):
        naive, found = NaiveOfModel(name, n_items, one.query), ranking.items.tolist()
        assert found == naive.page(found)
        assert ranking.scores.tolist() == [naive.own[column] for column in found]
        alone = model.rank([one.query])[0]
        assert (alone.items.tolist(), alone.reasons) == (found, ranking.reasons)


RULES = ("diversity", "limits", "boosts", "pins")
TOGETHER = [some for count in range(2, len(RULES) + 1) for some in combinations(RULES, count)]


@pytest.mark.parametrize("rules", TOGETHER, ids="-".join)
@settings(max_examples=15)
@given(name=st.sampled_from(EVERY_FAMILY), data=st.data())
def test_rules_together_are_a_greedy_choice_among_all_items(rules: tuple[str, ...], name: str, data: Any) -> None:
    """Two, three or all rules, with filters and offsets, agree with brute force over all items."""
    check(name, MANY, [data.draw(requests(MANY, rules))])


@pytest.mark.parametrize("name", EVERY_FAMILY)
@settings(max_examples=15)
@given(data=st.data())
def test_a_batch_of_different_rules_agrees_with_brute_force(name: str, data: Any) -> None:
    """Requests with different rules agree with brute force in one batch, also if the pool is the whole catalogue."""
    mixed = st.sampled_from([(), *((rule,) for rule in RULES), *TOGETHER]).flatmap(
        lambda rules: requests(N_ITEMS, rules)
    )
    check(name, N_ITEMS, data.draw(st.lists(mixed, min_size=1, max_size=4)))


def shown(model: Model, limit: int, **more: Any) -> Ranking:
    prepared = planned.recommend(model, user_id="u1", user_features=None, limit=limit, restriction=Restriction(**more))
    return model.rank([prepared.query])[0]


def test_a_pin_does_not_change_the_relevance_of_other_items() -> None:
    """Pinning the best item, ten times as good as the next, does not change the relevance of the others."""
    similarities = np.eye(4)
    similarities[1, 2] = similarities[2, 1] = 0.5
    scores = np.array([10.0, 1.0, 0.9, 0.0])
    every = Candidates(np.arange(4, dtype=np.int32), scores, is_whole=True, whole=lambda: every)

    def similar(pool: Items) -> Steps[Similar]:
        yield
        return lambda place: similarities[pool[place], pool]

    def order(*pins: Pin) -> list[int]:
        found = rerank(every, Rules(diversity=0.3, pins=pins), 4, similar, scores[:1])
        return found.items.tolist()

    assert order() == [0, 1, 3, 2]
    assert order(Pin(0, 3)) == [1, 3, 2, 0]


def test_reasons_name_the_rules_that_moved_an_item() -> None:
    """Items are pinned, boosted or diversified. Items at the place of their score have no reason."""
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


def counting_sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each later call of `np.lexsort` adds the number of its items."""
    lexsort, counts = np.lexsort, []

    def counted(keys: Any) -> Any:
        counts.append(len(keys[0]))
        return lexsort(keys)

    monkeypatch.setattr(np, "lexsort", counted)
    return counts


def test_a_boosted_query_sorts_few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scorer returns all scores unordered, alone and in a batch."""
    model = factor_model(10, 20_000, 8)
    model.ready()
    boosts = (Boost(ItemSet.of_columns(np.arange(0, 20_000, 3), 20_000), 2.0),)
    query = Query(limit=10, user=3, rules=Rules(boosts=boosts))
    counts = counting_sorts(monkeypatch)
    alone, batched = model.rank([query])[0], model.rank([query, query])[1]
    assert alone.items.tolist() == batched.items.tolist()
    assert 0 < sum(counts) < 2_000


def test_limits_that_reach_behind_the_pool_sort_few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """If limits exclude the other best items, the next items are selected without sorting all items."""
    count = 5_000
    model = factor_model(10, count, 8)
    model.ready()
    (first,) = model.rank([Query(limit=count, user=3)])
    labels = np.array([f"v{place}" for place in range(count)], dtype=object)
    labels[first.items[:500]] = "same"
    field = LabelField.read("genres", "categorical", "|", labels.tolist(), count)
    counts = counting_sorts(monkeypatch)
    (shown,) = model.rank([Query(limit=20, user=3, rules=Rules(limits=(Limit(field, 2),)))])
    assert shown.items.tolist() == [*first.items[:2].tolist(), *first.items[500:518].tolist()]
    assert 0 < sum(counts) < 2_000


def alike(pool: Items) -> Steps[Similar]:
    yield
    return lambda _: np.zeros(len(pool))


def test_boosts_sort_few_of_many_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition selects the best: sorting 20,000 candidates for ten items would take most of the time."""
    count = 20_000
    scores = np.sort(np.random.default_rng(3).standard_normal(count))[::-1]
    boosts = (Boost(ItemSet.of_columns(np.arange(0, N_ITEMS, 7), count), 2.0),)
    limits = (Limit(LabelField.read("genres", "multi_label", "|", [None] * count, count), 3),)
    found = Candidates(np.arange(count, dtype=np.int32), scores, True, lambda: found)
    counts = counting_sorts(monkeypatch)
    for rules in (Rules(boosts=boosts), Rules(boosts=boosts, limits=limits), Rules(boosts=boosts, diversity=0.5)):
        counts.clear()
        assert len(rerank(found, rules, 10, alike, NO_SCORES).items) == 10
        assert 0 < sum(counts) < count / 20


def test_reasons_do_not_depend_on_the_order_of_the_whole_ranking() -> None:
    """If a limit needs items outside of the pool, all items are ranked.

    Items that diversity chose keep their reasons then.
    """
    items, rng = np.arange(MANY, dtype=np.int32), np.random.default_rng(2)
    scores, order = np.linspace(1.0, 0.0, MANY), rng.permutation(MANY)
    cosine = rng.random((MANY, MANY))
    rules = Rules(diversity=0.5, limits=(Limit(field_of(MANY), 3),))
    whole = Candidates(items, scores, is_whole=True, whole=lambda: whole)
    shuffled = Candidates(items[order], scores[order], is_whole=True, whole=lambda: shuffled)
    part = Candidates(items[:POOL], scores[:POOL], is_whole=False, whole=lambda: shuffled)

    def similar(pool: Items) -> Steps[Similar]:
        yield
        return lambda index: cosine[pool[index], pool]

    expected, actual = (rerank(ranking, rules, 12, similar, NO_SCORES) for ranking in (whole, part))
    assert ("diversified",) in expected.reasons
    assert actual.items.tolist() == expected.items.tolist()
    assert actual.reasons == expected.reasons
