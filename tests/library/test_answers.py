"""Python and the API answer every request alike: to the last bit, or with the same kind of error.

Many users at once get the answers of each alone, and pairs get scores.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import trio

import svc
from svc import errors
from svc.asking.item_tables import MetadataTable
from svc.errors import UsageError
from svc.export.run import OpenedArtifact
from svc.library.answers import FramedOffer
from svc.library.items import item_table
from svc.metrics import Metrics
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import FilterFields, LabelField, NumberField
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator
from svc.serving.api.request import ServerState
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.lanes import Lane
from svc.serving.models.registry import Entry, Registry
from svc.serving.models.threads import ScoringThreads
from svc.settings import Settings
from tests.families import EVERY_FAMILY, family
from tests.serving.artifacts import served_model
from tests.serving.client import HEADER, Client
from tests.serving.client import model as model_with_features


def test_numbers_and_lists_of_numpy_and_pandas_are_accepted(books: svc.Recommender) -> None:
    """Series, indexes, arrays of numpy and Arrow, tuples and numpy's numbers are accepted."""
    plain = books.recommend("ü 1", limit=5, exclude_items=["i1", "i2"], explain=2)
    related, explained = books.related(["i1", "i2"]), books.explain(seed_items=["i1", "i2"])
    for kind in (pd.Series, pd.Index, np.array, tuple, set, pa.array, lambda ids: pa.chunked_array([ids])):
        given: Any = kind(["i1", "i2"])
        pd.testing.assert_frame_equal(books.related(given), related)
        pd.testing.assert_frame_equal(books.explain(seed_items=given), explained)
        pd.testing.assert_frame_equal(
            books.recommend(np.str_("ü 1"), limit=np.int64(5), exclude_items=given, explain=np.int32(2)),  # type: ignore[arg-type]
            plain,
        )
    history = pd.DataFrame({"item_id": ["i1", "i2"], "weight": [1.0, 2.5]}).to_dict("records")
    assert books.recommend(history=history).attrs == {"profile": "history"}
    assert books.recommend(history=["i1", "none"]).attrs == {"profile": "history", "ignored_items": ["none"]}


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda shop: shop.recommend(5), r"user_id: ids are text, and 5 is of type int: use str\(5\)"),
        (lambda shop: shop.recommend(["ü 1"]), "user_id: an id is text, not a list; recommend_many"),
        (lambda shop: shop.recommend(pd.Series(["ü 1"])), "an id is text, not a Series"),
        (lambda shop: shop.recommend(b"u1"), "user_id: an id is text, not a bytes$"),
        (lambda shop: shop.recommend("ü 1", exclude_items=[["i1"]]), "exclude_items: an id is text, not a list$"),
        (lambda shop: shop.recommend(float("nan")), "an id is missing"),
        (lambda shop: shop.recommend("ü 1", exclude_items="i1"), r"exclude_items: give a list, such as \['i1'\]"),
        (lambda shop: shop.recommend("ü 1", exclude_items=[1]), r"use str\(1\)"),
        (lambda shop: shop.recommend("ü 1", history=["i1", 7]), r"history: ids are text.*use str\(7\)"),
        (lambda shop: shop.recommend("ü 1", explain=50), "explain"),
        (lambda shop: shop.recommend("ü 1", pins=[{"item": "i1", "position": 0}]), "did you mean item_id"),
        (lambda shop: shop.recommend("ü 1", limit=1000, offset=1), "offset and limit add up to more than 1000"),
        (lambda shop: shop.recommend(), "give user_id, user_features, history or fallback"),
        (lambda shop: shop.related(), "give seed_items or item_features"),
        (lambda shop: shop.similar_items(3), r"item_id: ids are text.*use str\(3\)"),
        (lambda shop: shop.recommend_many([1, 2]), r"users: ids are text.*use str\(1\)"),
        (lambda shop: shop.recommend_many(["ü 1", None]), "users: an id is missing"),
        (lambda shop: shop.recommend_many(pd.DataFrame({"a": ["ü 1"]})), "one column of the DataFrame"),
        (lambda shop: shop.recommend_many(["ü 1"], unknown="drop"), "neither 'raise' nor 'skip'"),
        (lambda shop: shop.score(["ü 1"], ["i1", "i2"]), "as many users as items, not 1 and 2"),
    ],
)
def test_errors_name_arguments_of_the_call(
    books: svc.Recommender, ask: Callable[[svc.Recommender], object], words: str
) -> None:
    """Errors use the words of the call, and none of HTTP."""
    with pytest.raises(UsageError, match=words) as caught:
        ask(books)
    assert "request" not in caught.value.message


pytestmark = pytest.mark.anyio

REQUESTS = 45
"""Requests for each of the eight models, 360 in all."""
GENRES = ("Drama", "Comedy", "War", "Film noir")
MODELS: dict[str, Callable[[], Model]] = {
    **{name: lambda name=name: family(name) for name in EVERY_FAMILY},  # type: ignore[misc]
    "features": model_with_features,
}


def catalogue(item_ids: IdTable) -> tuple[pd.DataFrame, MetadataTable, FilterFields]:
    """Return equal items as a notebook has them and as a server reads them. A third lacks a year."""
    rng = random.Random(5)
    n_items = len(item_ids)
    genres = [rng.sample(GENRES, rng.randint(1, 3)) for _ in range(n_items)]
    years = [None if rng.random() < 0.3 else rng.randint(1950, 2020) for _ in range(n_items)]
    titles = [f"Title {number}" for number in range(n_items)]
    frame = pd.DataFrame({"item_id": item_ids.all(), "title": titles, "genres": genres, "year": years})
    rows = MetadataTable(("title", "genres", "year"), list(zip(titles, genres, years, strict=True)))
    fields = {
        "title": LabelField.read("title", "categorical", "|", titles, n_items),
        "genres": LabelField.read("genres", "multi_label", "|", ["|".join(labels) for labels in genres], n_items),
        "year": NumberField.read("year", years, n_items),
    }
    return frame.sample(frac=1.0, random_state=3), rows, FilterFields(fields, n_items)


@asynccontextmanager
async def both(model: Model) -> AsyncIterator[tuple[Client, svc.Recommender]]:
    """Return a server's application and a recommender over the same model and items."""
    frame, rows, filters = catalogue(model.item_ids)
    state = ServerState(Registry(), Settings(), Metrics.disabled(), Authenticator({}))
    async with trio.open_nursery() as nursery:
        lane = Lane(model, ScoringThreads(1))
        await nursery.start(lane.run)
        fragments = ItemFragments.build(model.item_ids, rows)
        state.registry.put(
            Entry(
                "r",
                "r.yaml",
                served_model(
                    model,
                    "r",
                    fragments=fragments,
                    header=HEADER,
                    model_version="sha256:" + "0" * 64,
                    lane=lane,
                    filters=filters,
                ),
            )
        )
        opened = OpenedArtifact(model, HEADER, "sha256:" + "0" * 64, "")
        yield (
            Client(Application(state)),
            svc.Recommender(opened, FramedOffer.of(model, item_table(frame, model.item_ids, "item_id"))),
        )
        nursery.cancel_scope.cancel()


def condition(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"genres": {rng.choice(("any", "all")): rng.sample((*GENRES, "none such"), rng.randint(1, 2))}}
    return {"year": {rng.choice(("gte", "lt")): rng.randint(1940, 2030)}}


def controls(rng: random.Random, ids: list[str]) -> dict[str, Any]:
    """Return some of the controls that both verbs have. One request in twenty has an error."""
    some = [*ids, "nothing"]
    possible: dict[str, Any] = {
        "limit": rng.randint(1, 12),
        "offset": rng.choice((0, 3, 999)),
        "exclude_items": rng.sample(some, 4),
        "include_items": rng.sample(some, rng.randint(1, 20)),
        "filter": {rng.choice(("all", "any")): [condition(rng), {"not": condition(rng)}]},
        "explain": rng.randint(1, 3),
        "diversity": rng.random(),
        "limits": [{"field": rng.choice(("genres", "title")), "max": rng.randint(1, 4)}],
        "boosts": [{"filter": condition(rng), "factor": rng.choice((0.25, 2.0))}],
        "pins": [{"item_id": rng.choice(some), "position": rng.randint(0, 5)}],
    }
    asked = {name: possible[name] for name in rng.sample(sorted(possible), rng.randint(0, 4))}
    if rng.random() < 0.1:
        asked |= {name: possible[name] for name in ("limits", "boosts", "pins", "diversity", "explain")}
    if rng.random() < 0.05:
        asked |= rng.choice(({"limit": 0}, {"filter": {"yaer": {"gte": 1}}}, {"explain": 11}, {"diversity": 2.0}))
    return asked


def variation(rng: random.Random, ids: list[str]) -> dict[str, Any]:
    """Return some of the controls that vary a page. One request in twenty has an error."""
    shown = [{"item_id": item, "times": rng.randint(1, 9)} if rng.random() < 0.3 else item for item in ids]
    weighed = [{"item_id": item, "weight": rng.choice((0, 0.5, 10.0))} if rng.random() < 0.3 else item for item in ids]
    possible: dict[str, Any] = {
        "dislikes": rng.choices([*weighed, "nothing"], k=rng.randint(0, 8)),
        "shown": rng.choices([*shown, "nothing"], k=rng.randint(0, 20)),
        "rotation": rng.choice((0, 0.25, 1.0)),
        "seed": f"day {rng.randint(1, 9)}",
        "shuffle": rng.choice((0, 0.25, 1.0)),
    }
    asked = {name: possible[name] for name in rng.sample(sorted(possible), rng.randint(0, 5))}
    for name, needed in (("rotation", "shown"), ("shuffle", "seed")):
        if not asked.get(needed) and rng.random() < 0.95:
            asked.pop(name, None)
    if rng.random() < 0.05:
        asked |= rng.choice(
            (
                {"dislikes": [{"item_id": "i1", "weight": 11}]},
                {"shown": [{"item_id": "i1", "times": 101}]},
                {"seed": ""},
                {"rotation": 1.5},
            )
        )
    return asked


def features(rng: random.Random) -> dict[str, Any]:
    return {"tag": rng.choice(("a", "b", "new")), "age": rng.randint(10, 90), "height": 1}


def question(rng: random.Random, model: Model) -> tuple[str, dict[str, Any]]:
    """Return a random request: its verb and its body."""
    ids = model.item_ids.all()
    body = controls(rng, ids)
    if rng.random() < 0.3:
        body["seed_items"] = rng.sample([*ids, "nothing"], rng.randint(1, 3))
        if model.features is not None and rng.random() < 0.5:
            body["item_features"] = rng.choice((features(rng), {"new-1": features(rng), ids[0]: features(rng)}))
        return "recommend-related", body
    body |= variation(rng, ids)
    if rng.random() < 0.8:
        body["user_id"] = rng.choice((*model.user_ids.all(), "nobody"))
    if rng.random() < 0.4:
        items = rng.sample([*ids, "nothing"], rng.randint(1, 4))
        body["history"] = [{"item_id": item, "weight": 2.0} if rng.random() < 0.3 else item for item in items]
    for name, values in (
        ("history_mode", ("append", "replace")),
        ("fallback", ("none", "popular")),
        ("include_seen", (True, False)),
    ):
        if rng.random() < 0.3 and (name != "history_mode" or "history" in body or rng.random() < 0.1):
            body[name] = rng.choice(values)
    if rng.random() < 0.2:
        body["user_features"] = features(rng)
    return "recommend", body


def asked_in_python(shop: svc.Recommender, verb: str, body: dict[str, Any]) -> pd.DataFrame | errors.SvcError:
    try:
        return shop.recommend(**body) if verb == "recommend" else shop.related(**body)
    except errors.SvcError as error:
        return error


def as_answered(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the frame as the body of an answer, which omits `score`, `reason` and `in_spite_of` without values."""
    items = []
    for row in frame.to_dict("records"):
        item = {str(name): value for name, value in row.items()}
        item["year"] = None if np.isnan(item["year"]) else item["year"]
        if "popular" in (item.get("reason") or ()):
            assert np.isnan(item.pop("score"))
        for name in ("reason", "in_spite_of"):
            if not item.get(name, True):
                del item[name]
        items.append(item)
    return {"items": items, **frame.attrs}


@pytest.mark.parametrize("name", MODELS)
async def test_random_requests_get_the_answers_of_the_api(name: str) -> None:
    """Ids, score bits, order, reasons, explanations, metadata, profile and ignored parts agree."""
    model, rng = MODELS[name](), random.Random(name)
    model.ready()
    n_answered, met = 0, set()
    async with both(model) as (client, shop):
        for _ in range(REQUESTS):
            verb, body = question(rng, model)
            answer = await client.post(f"/v1/recipes/r:{verb}", body)
            here = asked_in_python(shop, verb, body)
            if isinstance(here, errors.SvcError):
                expected = "VALIDATION_ERROR" if isinstance(here, errors.UsageError) else here.code
                assert answer.json["code"] == expected, (body, here, answer.body)
            elif answer.status == 404:
                assert answer.json["code"] == "NO_CANDIDATES", (body, answer.body)
                assert here.empty
            else:
                sent = {key: value for key, value in answer.json.items() if key not in ABOUT}
                assert as_answered(here) == sent, body
                n_answered += 1
                met |= {*body, *sent}
    assert n_answered > REQUESTS // 2
    assert met >= CONTROLS, CONTROLS - met
    assert name != "features" or {"user_features", "item_features"} <= met


CONTROLS = {
    *("limit", "offset", "filter", "include_items", "exclude_items", "include_seen", "explain", "diversity", "limits"),
    *("boosts", "pins", "history", "history_mode", "fallback", "seed_items", "profile", "ignored_items"),
    *("dislikes", "shown", "rotation", "seed", "shuffle"),
}
"""Controls and fields of answers that the random requests must cover for each model."""
ABOUT = ("request_id", "recipe", "model_version")


async def test_popular_items_agree_with_the_api() -> None:
    """Items are ranked by recent choices if the model has them, with the filter, metadata and bounds of the API."""
    model = family("popularity")
    model.popularity = np.random.default_rng(2).integers(0, 5, model.n_items).astype(np.float64)
    model.ready()
    tree = {"genres": {"any": ["Drama"]}}
    questions: list[dict[str, Any]] = [{}, {"limit": 20, "offset": 2}, {"filter": tree, "limit": 5}]
    async with both(model) as (client, shop):
        for asked in questions:
            query = urlencode({name: json.dumps(value) for name, value in asked.items()})
            answer = (await client.get("/v1/recipes/r/popular", query=query)).json
            assert as_answered(shop.popular(**asked))["items"] == answer["items"]
        assert shop.popular(filter={"genres": {"any": ["none such"]}}).empty
        with pytest.raises(errors.UsageError, match="offset: offset and limit add up to more than 1000"):
            shop.popular(limit=1000, offset=1)
        with pytest.raises(errors.UsageError, match="no filter field has this name; did you mean 'genres'"):
            shop.popular(filter={"genre": {"any": ["Drama"]}})


async def test_a_series_is_a_list_unless_its_labels_are_names() -> None:
    """A column after a selection, whose labels are numbers, is a list. A row of a frame is a mapping."""
    table = pd.DataFrame({"genre": ["War", "Drama"], "tag": ["a", "b"], "age": [1.0, 2.0]})
    async with both(model_with_features()) as (_, shop):
        chosen = table[table["genre"] == "Drama"]["genre"]
        pd.testing.assert_frame_equal(
            shop.popular(filter={"genres": {"any": chosen}}), shop.popular(filter={"genres": {"any": ["Drama"]}})
        )
        row = table[["tag", "age"]].iloc[1]
        pd.testing.assert_frame_equal(
            shop.recommend(user_features=row),  # type: ignore[arg-type]
            shop.recommend(user_features={"tag": "b", "age": 2.0}),
        )


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
