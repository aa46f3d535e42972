"""Each row of a page equals its single request, and no item stands twice."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from svc.asking.offer import Offer
from svc.asking.page import FAVOURED, PageAnswer, PageRequest, RowAnswer, favoured_labels, page_steps
from svc.asking.parsing import parse
from svc.asking.plan import plan
from svc.asking.requests import PopularQuery, RecommendRequest, RelatedRequest
from svc.errors import ValidationFailed
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import FilterFields, LabelField, NumberField
from svc.model.ranking.query import Ranking
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family
from tests.model.ranker.records import random_ranker

GENRES = ["Comedy", "Drama|Comedy", "War", None]
model_of = cache(family)


def fields() -> FilterFields:
    genres = LabelField.read("genres", "multi_label", "|", [GENRES[item % 4] for item in range(N_ITEMS)], N_ITEMS)
    return FilterFields({"genres": genres, "year": NumberField(np.arange(float(N_ITEMS)))}, N_ITEMS)


def offer_of(name: str) -> Offer:
    """Return an offer of a family's model, or with `ranked` of one with a learned order."""
    if name == "ranked":
        ranked = family("IALS")
        ranked.ranker = random_ranker(np.random.default_rng(3), N_ITEMS, ordered=False)
        ranked.ready()
        return Offer(model=ranked, filters=fields())
    return Offer(model=model_of(name), filters=fields())


def stranger_offer() -> Offer:
    """Return an offer of a model that knows of the user `stranger` only that i5 and the new item n0 are hidden."""
    model = family("neighbours")
    model.other_user_ids, model.hidden_new_ids = IdTable.from_ids(["stranger"]), IdTable.from_ids(["n0"])
    hidden = np.array([5, N_ITEMS], np.int32)
    model.hidden_of_others = History(np.array([0, 2]), hidden, np.full(2, 0.5, np.float32))
    return Offer(model=model, filters=fields())


def answer(body: dict[str, Any], offer: Offer) -> PageAnswer:
    steps, ranking = page_steps(parse(PageRequest, body), offer), None
    try:
        while True:
            prepared = next(steps) if ranking is None else steps.send(ranking)
            (ranking,) = offer.model.rank([prepared.query])
    except StopIteration as end:
        page: PageAnswer = end.value
        return page


def ids(offer: Offer, ranking: Ranking) -> list[str]:
    return [offer.names.at(column) for column in ranking.items.tolist()]


def single(schema: Any, body: dict[str, Any], offer: Offer) -> tuple[list[str], list[float]]:
    prepared = plan(parse(schema, body), offer)
    (ranking,) = offer.model.rank([prepared.query])
    return ids(offer, ranking), ranking.scores.tolist()


def seen_of(model: Model, body: dict[str, Any]) -> list[str]:
    """Return the items of the user's own history, unless the page includes seen items."""
    if body.get("include_seen"):
        return []
    user = model.user_ids.index(body.get("user_id", ""))
    history = body.get("history", [])
    known = [item for item in history if model.item_ids.index(item) >= 0]
    stored = [] if user < 0 or (known and body.get("history_mode") == "replace") else model.history.items(user).tolist()
    return [*history, *(model.item_ids.at(column) for column in stored)]


def random_page(random: Random) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for number in range(random.randint(1, 6)):
        limit = {"limit": random.randint(1, 12)}
        tree = random.choice([None, {"genres": {"any": ["Comedy"]}}, {"year": {"lt": 40}}])
        asked = limit if tree is None else {**limit, "filter": tree}
        kind = random.choice(["recommend", "related", "latest", "label", "popular"])
        arranged = random.choice([{}, {"diversity": 0.3}, {"limits": [{"field": "genres", "max": 3}]}, {"explain": 2}])
        row = {
            "recommend": {"recommend": asked | arranged},
            "related": {"related": asked | arranged | {"seed_items": [f"i{random.randint(0, N_ITEMS)}", "i3"]}},
            "latest": {"related": asked | {"to": "latest"}},
            "label": {"label": asked | arranged | {"field": "genres", "rows": random.randint(1, 3)}},
            "popular": {"popular": asked},
        }[kind]
        rows.append({"id": f"row {number}", **row})
    page: dict[str, Any] = {"rows": rows, "user_id": f"u{random.randint(0, N_USERS)}", "fallback": "popular"}
    more: list[dict[str, Any]] = [
        {"history": [f"i{item}" for item in random.sample(range(N_ITEMS), 3)]},
        {"exclude_items": ["i1", "i2"]},
        {"filter": {"year": {"gte": 5}}},
        {"include_seen": True},
        {"shown": ["i4", "i5"], "seed": "monday"},
    ]
    for part in random.sample(more, random.randint(0, 3)):
        page |= part
    return page


def expected(row: RowAnswer, asked: dict[str, Any], body: dict[str, Any], shown: list[str], offer: Offer) -> Any:
    """Return the items of the row's single request."""
    ((kind, controls),) = ((kind, value) for kind, value in asked.items() if kind != "id")
    trees = [body.get("filter"), controls.get("filter")]
    if row.label is not None:
        trees.append({"genres": {"any": [row.label]}})
    tree = {"all": [tree for tree in trees if tree is not None] or [{"not": {"year": {"lt": -1}}}]}
    excluded = [*body.get("exclude_items", []), *shown]
    own = {name: value for name, value in controls.items() if name not in ("filter", "to", "field", "rows")}
    if kind == "popular":
        everything, _ = single(PopularQuery, {"limit": 1000, "filter": tree}, offer)
        left = {*excluded, *seen_of(offer.model, body)}
        return [item for item in everything if item not in left][: controls["limit"]]
    if kind == "related":
        seeds = [row.seed_item] if row.seed_item is not None else controls["seed_items"]
        excluded += seen_of(offer.model, body)
        return single(RelatedRequest, own | {"seed_items": seeds, "exclude_items": excluded, "filter": tree}, offer)[0]
    user = {name: value for name, value in body.items() if name not in ("rows", "filter", "exclude_items")}
    return single(RecommendRequest, user | own | {"exclude_items": excluded, "filter": tree}, offer)[0]


@pytest.mark.parametrize("name", [*EVERY_FAMILY, "ranked"])
def test_each_row_equals_its_single_request(name: str) -> None:
    """Earlier rows are in `exclude_items`, and for related and popular rows the user's seen items too."""
    offer = offer_of(name)
    for number in range(25):
        body = random_page(Random(f"{name} {number}"))
        page, shown = answer(body, offer), list[str]()
        asked_by_id = {row["id"]: row for row in body["rows"]}
        for row in page.rows:
            if row.ranking.items.size or row.why == "no item is left for this row":
                empty_label = "label" in asked_by_id[row.id] and row.label is None
                assert ids(offer, row.ranking) == (
                    [] if empty_label else expected(row, asked_by_id[row.id], body, shown, offer)
                ), body
            shown += ids(offer, row.ranking)
        assert len(shown) == len({*shown})


def test_rows_related_to_the_latest_items_have_different_seeds() -> None:
    """The items of the request come first, the last of them as the latest one. Then stored items follow."""
    offer = offer_of("neighbours")
    rows = [{"id": f"{number}", "related": {"to": "latest", "limit": 1}} for number in range(3)]
    page = answer({"user_id": "u3", "history": ["i7", "nothing", "i9"], "rows": rows}, offer)
    stored = min(column for column in offer.model.history.items(3).tolist() if column not in (7, 9))
    assert [row.seed_item for row in page.rows] == ["i9", "i7", f"i{stored}"]
    nobody = answer({"rows": [rows[0]], "fallback": "popular"}, offer)
    assert nobody.rows[0].why == "no item of the user is left to be related to"


def test_a_page_of_nobody_has_the_rows_that_need_no_user() -> None:
    """Other rows are empty, and tell why."""
    rows = [{"id": "a", "recommend": {}}, {"id": "b", "label": {"field": "genres"}}, {"id": "c", "popular": {}}]
    page = answer({"rows": rows}, offer_of("neighbours"))
    assert [len(row.ranking.items) for row in page.rows] == [0, 0, 10]
    assert page.about is None
    assert all(row.why for row in page.rows[:2])


def test_no_row_has_what_an_unknown_user_rejects_or_hides() -> None:
    """Hidden items come back with seen items, and rejected ones never."""
    offer = stranger_offer()
    rows = [{"id": "a", "popular": {"limit": N_ITEMS}}, {"id": "b", "related": {"seed_items": ["i9"], "limit": 30}}]
    for row in rows:
        body = {"user_id": "stranger", "dislikes": ["i3"], "rows": [row]}
        (hides,), (shows,) = (answer(body | more, offer).rows for more in ({}, {"include_seen": True}))
        assert not {"i3", "i5"} & {*ids(offer, hides.ranking)}
        assert {"i3", "i5"} & {*ids(offer, shows.ranking)} == {"i5"}


def test_favoured_labels_weigh_the_best_items_against_all() -> None:
    """Compared with the formula, written as loops."""
    rng = np.random.default_rng(3)
    n_items = 3 * FAVOURED
    names = ["a", "b", "c", "d", "e"]
    labels = [rng.choice(names, rng.integers(0, 3), replace=False).tolist() for _ in range(n_items)]
    field = LabelField.read("x", "multi_label", "|", labels, n_items)
    scores = rng.normal(size=n_items)
    ranking = Ranking(np.arange(n_items, dtype=np.int32), scores)
    best = {*np.argsort(-scores, kind="stable")[:FAVOURED].tolist()}
    weights = np.exp((scores - scores.mean()) / scores.std())
    values = {}
    for name in names:
        having = [item for item in range(n_items) if name in labels[item]]
        values[name] = sum(weights[item] for item in having if item in best) / sum(weights[having])
    wanted = sorted(names, key=lambda name: -values[name])
    assert [field.names.at(label) for label in favoured_labels(field, ranking, 5)] == wanted
    assert favoured_labels(field, ranking, 2) == favoured_labels(field, ranking, 5)[:2]


@pytest.mark.parametrize(
    ("rows", "loc"),
    [
        ([{"id": "a", "popular": {}}, {"id": "a", "popular": {}}], ["body", "rows", 1, "id"]),
        ([{"id": "a"}], ["body", "rows", 0, "recommend"]),
        ([{"id": "a", "popular": {}, "recommend": {}}], ["body", "rows", 0, "popular"]),
        ([{"id": "a", "related": {}}], ["body", "rows", 0, "related", "seed_items"]),
        ([{"id": "a", "label": {"field": "year"}}], ["body", "rows", 0, "label", "field"]),
        ([{"id": "a", "popular": {"filter": {"genre": 1}}}], ["body", "rows", 0, "popular", "filter", "genre"]),
        (
            [{"id": "a", "recommend": {"limits": [{"field": "no", "max": 1}]}}],
            ["body", "rows", 0, "recommend", "limits", 0, "field"],
        ),
        ([{"id": "a", "popular": {"offset": 1}}], ["body", "rows", 0, "popular", "offset"]),
        ([{"id": "a", "popular": {"limit": 101}}], ["body", "rows", 0, "popular", "limit"]),
    ],
)
def test_an_invalid_row_is_refused_with_its_place(rows: list[dict[str, Any]], loc: list[str | int]) -> None:
    with pytest.raises(ValidationFailed) as raised:
        answer({"user_id": "u1", "rows": rows}, offer_of("neighbours"))
    assert raised.value.errors[0]["loc"] == loc
