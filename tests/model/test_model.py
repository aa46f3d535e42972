"""From requests to queries and answers: errors that clients see, and answers that do not depend on the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from svc.errors import (
    FeaturesNotSupported,
    FeatureValueUnusable,
    UnknownSeedItems,
    UnknownUser,
)
from svc.model import codec
from svc.model.coldstart import LeastSquares
from svc.model.features import FEATURE_VERSION, FeatureState, NumberColumn, SideEncoder, TokenColumn
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.load_model import rehearse
from svc.model.model import Model
from svc.model.ranking.query import Query
from svc.model.recommenders import factors as factors_module
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import BPRScorer, IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.popularity import PopularityScorer
from tests import planned

N_USERS, N_ITEMS, COMPONENTS = 40, 3000, 8
FAMILIES = ["ials", "svd", "bpr", "neighbours", "dense", "popularity"]


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def factors(n: int, k: int = COMPONENTS) -> np.ndarray:
    return rng().normal(size=(n, k)).astype(np.float32)


def encoder() -> SideEncoder:
    return SideEncoder(
        (
            TokenColumn("tag", "categorical", IdTable.from_ids(["a", "b"])),
            NumberColumn("age", mean=40.0, deviation=10.0, low=10.0, high=90.0),
        )
    )


def ials() -> IALSScorer:
    least_squares = LeastSquares(
        alpha0=0.1,
        reg=0.01,
        nu=0.5,
        confidence=1.0,
        target_weight=1.0,
        n_users=N_USERS,
        n_items=N_ITEMS,
        user_weights=factors(4),
        item_weights=factors(4),
    )
    return IALSScorer(factors(N_USERS), FactorIndex.build(factors(N_ITEMS)), least_squares)


def neighbours() -> NeighbourScorer:
    per_row = 20
    columns = np.sort(rng().integers(0, N_ITEMS, (N_ITEMS, per_row))).astype(np.int32).ravel()
    weights = rng().random(N_ITEMS * per_row).astype(np.float32)
    return NeighbourScorer(np.arange(N_ITEMS + 1, dtype=np.int64) * per_row, columns, weights)


def scorer_of(family: str) -> Scorer:
    match family:
        case "ials":
            scorer: Scorer = ials()
        case "svd":
            scorer = SVDScorer(factors(N_USERS), FactorIndex.build(factors(N_ITEMS)))
        case "bpr":
            scorer = BPRScorer(factors(N_USERS), FactorIndex.build(factors(N_ITEMS, COMPONENTS + 1)))
        case "neighbours":
            scorer = neighbours()
        case "dense":
            scorer = DenseWeightsScorer(rng().normal(size=(N_ITEMS, N_ITEMS)).astype(np.float32))
        case "blend":
            scorer = BlendScorer.of(ials(), [neighbours()], [0.7, 0.3], history(values=False))
        case _:
            scorer = PopularityScorer(np.round(rng().random(N_ITEMS) * 50))
    return scorer


def history(*, values: bool) -> History:
    generator = rng()
    rows = [np.unique(generator.integers(0, N_ITEMS, generator.integers(1, 60))) for _ in range(N_USERS)]
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    columns = np.concatenate(rows).astype(np.int32)
    return History(offsets, columns, generator.integers(1, 9, len(columns)).astype(np.float32) if values else None)


def made(family: str, *, features: bool = False) -> Model:
    model = Model(
        user_ids=IdTable.from_ids([f"u{i}" for i in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i{i}" for i in range(N_ITEMS)]),
        history=history(values=family in ("neighbours", "dense")),
        scorer=scorer_of(family),
        features=FeatureState(FEATURE_VERSION, encoder(), encoder()) if features else None,
    )
    model.ready()
    return model


def queries(model: Model, n: int) -> list[Query]:
    """Return a mixture of known users, seeds and, if the model has features, cold starts."""
    generator = np.random.default_rng(n)
    made_up = []
    for number in range(n):
        limit = int(generator.choice([1, 10, 25, 120]))
        exclude = [f"i{i}" for i in generator.integers(0, N_ITEMS, 5)]
        if number % 3 == 0:
            seeds = [f"i{i}" for i in generator.integers(0, N_ITEMS, generator.integers(1, 12))]
            features = {"tag": "a", "age": float(generator.integers(10, 90))} if model.features else None
            prepared = planned.related(
                model, seed_items=seeds, item_features=None, user_features=features, limit=limit, exclude_items=exclude
            )
        elif number % 5 == 0 and model.features:
            prepared = planned.recommend(model, user_id=None, user_features={"tag": "b", "age": 33}, limit=limit)
        else:
            prepared = planned.recommend(
                model,
                user_id=f"u{generator.integers(N_USERS)}",
                user_features=None,
                limit=limit,
                exclude_items=exclude,
                include_seen=bool(number % 2),
            )
        made_up.append(prepared.query)
    return made_up


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_has_the_same_bits_alone_and_in_any_batch(family: str) -> None:
    """Shuffled batches of 1 to 256 mixed queries agree with each query alone."""
    model = made(family, features=family == "ials")
    asked = queries(model, 256)
    alone = [model.rank([query])[0] for query in asked]
    order = rng().permutation(256)
    for size in (2, 7, 8, 9, 64, 256):
        for start in range(0, 256 if size > 8 else 32, size):
            places = order[start : start + size]
            for place, ranking in zip(places, model.rank([asked[p] for p in places]), strict=True):
                assert ranking.items.tobytes() == alone[place].items.tobytes()
                assert ranking.scores.tobytes() == alone[place].scores.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoded_payload_answers_with_the_same_bits(family: str) -> None:
    """Answers depend only on stored arrays. Derived state is not stored."""
    model = made(family, features=family == "ials")
    payload = b"".join(bytes(piece) for piece in codec.encode(model))
    again = codec.decode(memoryview(payload))
    again.ready()
    rehearse(again)
    for one, other in zip(model.rank(queries(model, 40)), again.rank(queries(again, 40)), strict=True):
        assert one.items.tobytes() == other.items.tobytes()
        assert one.scores.tobytes() == other.scores.tobytes()
    assert sum(model.parts().values()) <= len(payload) <= sum(model.parts().values()) + 4096


def test_an_unknown_user_needs_features() -> None:
    """The error is UnknownUser, or FeaturesNotSupported on a model without features. A known user needs no features."""
    plain, featured = made("ials"), made("ials", features=True)
    with pytest.raises(UnknownUser):
        planned.recommend(featured, user_id="nobody", user_features=None, limit=3)
    with pytest.raises(FeaturesNotSupported):
        planned.recommend(plain, user_id="nobody", user_features={}, limit=3)
    known = planned.recommend(plain, user_id=plain.user_ids.all()[0], user_features={"tag": "a"}, limit=3)
    assert known.ignored_features == ("tag",)
    prepared = planned.recommend(featured, user_id="nobody", user_features={"tag": "a", "x": 1}, limit=3)
    assert prepared.ignored_features == ("x",)
    assert prepared.query.user_features.tolist() == [1, 0, 0, 1]
    with pytest.raises(FeatureValueUnusable, match="age"):
        planned.recommend(featured, user_id=None, user_features={"age": "old"}, limit=3)


def test_a_known_user_is_answered_from_its_history() -> None:
    """Features beside a known id are not used, even if they are invalid or the model has none."""
    query = planned.recommend(made("popularity"), user_id="u3", user_features={"age": []}, limit=3).query
    assert query.user == 3
    assert query.user_features is None


@pytest.mark.parametrize(
    ("family", "is_summed"),
    [("ials", False), ("svd", False), ("bpr", False), ("popularity", False), ("neighbours", True), ("dense", True)],
)
def test_queries_have_the_length_of_a_history_that_is_summed(family: str, is_summed: bool) -> None:
    """The cost of such a query depends on the length. Models with a vector for each user do not read the history."""
    model = made(family)
    for user in range(0, N_USERS, 7):
        query = planned.recommend(model, user_id=f"u{user}", user_features=None, limit=5).query
        assert query.summed == (len(model.history.items(user)) if is_summed else 0)


def related_query(model: Model, **given: Any) -> Query:
    arguments = {"seed_items": [], "item_features": None, "user_features": None, "limit": 3, **given}
    return planned.related(model, **arguments).query


def test_seeds_may_be_known_described_or_both() -> None:
    """Unknown seeds are dropped. A described item is a seed by its id if it is known, else by its features."""
    model = made("ials", features=True)
    assert related_query(model, seed_items=["i5", "nothing", "i5", "i2"]).seeds.tolist() == [2, 5]
    mixed = related_query(model, seed_items=["i5"], item_features={"i2": {"tag": "a"}, "new": {"tag": "b"}})
    assert mixed.seeds.tolist() == [2, 5]
    assert [encoded.dense().tolist() for encoded in mixed.seed_features] == [[0, 1, 0, 1]]
    alone = related_query(model, item_features={"tag": "a", "age": 50})
    assert [encoded.dense().tolist() for encoded in alone.seed_features] == [[1, 0, 1, 1]]
    assert not len(alone.seeds)
    assert len(model.rank([mixed, alone])[1].items) == 3


def test_unknown_seeds_without_features_are_an_error() -> None:
    """User features do not replace seeds, because they are only a prior."""
    model = made("ials", features=True)
    for user_features in (None, {"tag": "a"}):
        with pytest.raises(UnknownSeedItems):
            related_query(model, seed_items=["nothing"], user_features=user_features)


@pytest.mark.parametrize("given", [{"item_features": {"tag": "a"}}, {"user_features": {"tag": "a"}}])
def test_features_beside_seeds_need_a_model_with_features(given: dict[str, Any]) -> None:
    """A model without features refuses features beside seeds instead of ignoring them."""
    with pytest.raises(FeaturesNotSupported):
        related_query(made("svd"), seed_items=["i1"], **given)


def test_user_features_beside_seeds_change_the_answer() -> None:
    """User features shift the vector of the unseen user."""
    model = made("ials", features=True)
    asked = [
        related_query(model, seed_items=["i1"], user_features=features)
        for features in (None, {"tag": "a"}, {"tag": "b"})
    ]
    assert len({ranking.scores.tobytes() for ranking in model.rank(asked)}) == 3


def test_long_seed_lists_give_the_same_bits_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("ials", features=True)
    asked = [
        related_query(model, seed_items=[f"i{n + k}" for k in range(5)], user_features={"tag": "a"}) for n in range(20)
    ]
    whole = model.rank(asked)
    monkeypatch.setattr(factors_module, "CELLS_AT_ONCE", 1)
    for one, other in zip(whole, model.rank(asked), strict=True):
        assert one.scores.tobytes() == other.scores.tobytes()
