"""Controls of a request on pages that a ranker has reordered, compared with a reference of single numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from svc.model.codec import decode, encode
from svc.model.history import History
from svc.model.model import Model
from svc.model.ranker.page_ranker import REORDERED
from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Interaction, Query, Ranking, Shown
from svc.model.ranking.rerank import Boost, Limit, Rules
from svc.model.recommenders.base import excluded_columns
from tests import planned
from tests.families import N_USERS, family
from tests.model.ranker.records import random_ranker
from tests.model.ranker.test_page_ranker import plain_page
from tests.planned import Restriction, Variation, without_chosen

N_ITEMS = 90
NAMES = ("IALS", "neighbours", "blend", "popularity")
COLOURS = LabelField.read(
    "colour", "categorical", "|", [("red", "green", "blue")[item % 3] for item in range(N_ITEMS)], N_ITEMS
)


class PlainScorer:
    """Answers queries from the whole ranking of another scorer, which it cuts and reorders item by item."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.kind = model.scorer.kind
        self.similar = model.scorer.similar
        self.explains_by_profile = model.scorer.explains_by_profile
        self.reads_dislikes = model.scorer.reads_dislikes
        self.sums_history = model.scorer.sums_history
        self.n_items = N_ITEMS

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        return [self._rank(query, history) for query in queries]

    def _rank(self, query: Query, history: History) -> Ranking:
        asked = query._replace(limit=N_ITEMS, allowed=None, unordered=False)
        (every,) = self._model.scorer.rank([asked._replace(include_seen=True, exclude=query.exclude[:0])], history)
        gone = set(excluded_columns(query, history).tolist())
        may = np.array([column not in gone for column in every.items.tolist()], dtype=np.bool_)
        if query.allowed is not None:
            may &= query.allowed.contains(every.items)
        left = Ranking(every.items[may], every.scores[may])
        ranker = self._model.ranker
        if query.reordered and ranker is not None and len(left.items):
            own = (history.items(query.user) if query.user >= 0 else query.seeds).tolist()
            page = np.array(plain_page(ranker, left, own), dtype=np.int32)
            n = min(REORDERED, len(page))
            score_of = dict(zip(*(part.tolist() for part in ranker.page(query, left, history)[:2]), strict=True))
            scores = [score_of.get(column, 0.0) for column in page[:n].tolist()]
            ties = np.concatenate([np.arange(n) - n, page[n:]])  # columns decide between items that are not reordered
            left = Ranking(page, np.concatenate([scores, left.scores[n:]]), ties=ties)
        ties = None if left.ties is None else left.ties[: query.limit]
        return Ranking(left.items[: query.limit], left.scores[: query.limit], ties=ties)


@cache
def models(name: str) -> tuple[Model, Model]:
    """Return a model with a ranker, decoded from its payload, and the same model with a `PlainScorer`."""
    model = family(name, n_items=N_ITEMS)
    ranker = random_ranker(np.random.default_rng(11), N_ITEMS, ordered=False)
    model.ranker = ranker
    reread = decode(memoryview(b"".join(encode(model))))
    reread.ready()
    plain = family(name, n_items=N_ITEMS)
    plain.scorer = PlainScorer(reread)  # type: ignore[assignment]
    return reread, plain


def _set(random: Random, share: float) -> ItemSet:
    return ItemSet.of_flags(np.array([random.random() < share for _ in range(N_ITEMS)], dtype=np.bool_))


def _ids(random: Random, most: int) -> list[str]:
    return [f"i{random.randrange(N_ITEMS + 3)}" for _ in range(random.randint(0, most))]


def _rules(random: Random) -> Rules | None:
    boosts = (Boost(_set(random, 0.1), random.choice([0.5, 3.0])),)
    return random.choice(
        [
            None,
            Rules(diversity=0.4),
            Rules(boosts=boosts),
            Rules(limits=(Limit(COLOURS, random.randint(1, 5)),)),
            Rules(diversity=0.2, boosts=boosts, limits=(Limit(COLOURS, random.randint(2, 8)),)),
        ]
    )


def _variation(random: Random) -> Variation:
    shown = [Shown(item, random.choice([1, 2, 100])) for item in _ids(random, 30)]
    return Variation(shown, random.choice([0.0, 0.25, 1.0]), random.choice([None, "monday"]), random.choice([0.0, 0.5]))


def question(random: Random) -> tuple[dict[str, Any], Restriction]:
    """Return a request for a user, known or not, with any of the controls that may change its page."""
    asked = {
        "user_id": random.choice([None, f"u{random.randint(0, N_USERS)}"]),
        "user_features": None,
        "limit": random.randint(1, N_ITEMS),
        "exclude_items": _ids(random, 6),
        "include_seen": random.random() < 0.5,
        "history": [Interaction(item) for item in _ids(random, 6)],
        "replace": random.random() < 0.3,
        "fallback": True,
        "dislikes": [Interaction(item) for item in _ids(random, 2)],
    }
    restriction = Restriction(
        offset=random.choice([0, random.randint(0, N_ITEMS)]),
        allowed=random.choice([None, _set(random, 0.8), _set(random, 0.1)]),
        rules=_rules(random),
        pins=[(item, place) for place, item in enumerate(dict.fromkeys(_ids(random, 2)))],
        variation=random.choice([None, None, _variation(random)]),
    )
    return without_chosen(asked), restriction


@pytest.mark.parametrize("name", NAMES)
def test_each_page_equals_the_reference_alone_and_in_a_batch(name: str) -> None:
    model, plain = models(name)
    random = Random(name)  # other requests for each model
    some = [question(random) for _ in range(150)]
    prepared = [planned.recommend(model, **asked, restriction=restriction) for asked, restriction in some]
    for one, ranking in zip(prepared, model.rank([one.query for one in prepared]), strict=True):
        (expected,) = plain.rank([one.query])
        assert ranking.items.tolist() == expected.items.tolist()
        np.testing.assert_array_equal(ranking.scores, expected.scores)
        assert ranking.reasons == expected.reasons
        (alone,) = model.rank([one.query])
        assert alone.items.tolist() == ranking.items.tolist()
        assert alone.scores.tobytes() == ranking.scores.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_pages_by_offset_are_slices_of_the_whole_ranking(name: str) -> None:
    model, _ = models(name)
    whole = model.rank([planned.known_user(model, 3, limit=N_ITEMS)])[0]
    assert (np.diff(whole.scores) <= 0).all()
    for offset in range(0, N_ITEMS, 17):
        restriction = Restriction(offset=offset)
        one = planned.recommend(model, user_id="u3", user_features=None, limit=10, restriction=restriction)
        page = model.rank([one.query])[0].from_place(one.query.offset)
        assert page.items.tolist() == whole.items[offset : offset + 10].tolist()


def test_related_items_the_fallback_and_cold_starts_are_not_reordered() -> None:
    model, _ = models("IALS")
    asked = {"item_features": None, "user_features": None, "limit": 20}
    related = planned.related(model, seed_items=["i1"], **asked).query
    nobody = planned.recommend(model, user_id=None, user_features=None, limit=20, fallback=True).query
    cold = family("IALS", n_items=N_ITEMS)
    cold.cold, cold.ranker = family("IALS", seed=8, n_items=N_ITEMS).scorer, model.ranker
    cold.ready()
    history = [Interaction("i1")]
    by_features = planned.recommend(model, user_id=None, user_features={"tag": "a"}, limit=20).query
    of_unknown = planned.recommend(
        model,
        user_id=None,
        user_features={"tag": "a"},
        limit=20,
        history=[Interaction("none")],
        dislikes=[Interaction("i3")],
    ).query
    by_cold = planned.recommend(cold, user_id=None, user_features=None, limit=20, history=history).query
    own = ((model, query) for query in (related, nobody, by_features, of_unknown))
    for answering, query in (*own, (cold, by_cold)):
        (ranking,) = answering.rank([query])
        answering_alone = family("IALS", n_items=N_ITEMS)
        answering_alone.cold = answering.cold
        answering_alone.ready()
        assert ranking.items.tolist() == answering_alone.rank([query._replace(reordered=False)])[0].items.tolist()


@pytest.mark.parametrize("name", ["IALS"])
def test_the_ranker_does_not_move_new_items(name: str) -> None:
    model, _ = models(name)
    alone = family(name, n_items=N_ITEMS)
    features = [{"tag": "a", "age": age} for age in (20.0, 40.0, 60.0)] + [{"tag": "b"}]
    for least in (0.0, 0.2):
        new = model.new_items(["n1", "n2", "n3", "n4"], features, None, least)
        for user in range(N_USERS):
            for more in (
                {},
                {"rules": Rules(boosts=(Boost(ItemSet.of_columns(np.arange(0, dtype=np.int32), N_ITEMS + 4), 2.0),))},
            ):
                restriction = Restriction(new=new, **more)
                pages = [
                    one.rank([planned.known_user(one, user, limit=30, restriction=restriction)])[0]
                    for one in (model, alone)
                ]
                places = [np.flatnonzero(page.items >= N_ITEMS).tolist() for page in pages]
                assert places[0] == places[1]
                known = pages[0].items[pages[0].items < N_ITEMS]
                without = model.rank([planned.known_user(model, user, limit=30)])[0].items
                assert known.tolist() == without[: len(known)].tolist()
                assert (np.diff(pages[0].scores) <= 0).all()
