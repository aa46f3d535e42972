"""Filters, histories, dislikes and the popular fallback as clients see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc.asking.item_lists import available_items
from svc.asking.policy import Policy
from svc.metrics import Metrics
from svc.model.ranking.filter_fields import FilterFields, LabelField, NumberField
from svc.recipe.filter_tree import FilterProblem, parse_filter
from svc.recipe.serving_schema import Availability
from svc.serving.api.request import ServerState
from svc.serving.models.registry import ListState
from tests.filter_trees import ODD
from tests.serving.artifacts import availability
from tests.serving.client import N_ITEMS, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
RECOMMEND = "/v1/recipes/movies:recommend"
RELATED = "/v1/recipes/movies:recommend-related"
BATCH = "/v1/recipes/movies:batch-recommend"
POPULAR = "/v1/recipes/movies/popular"
GENRES = ["Comedy", "Drama|Comedy", "War", None]


def genres_of(item: int) -> set[str]:
    return set((GENRES[item % 4] or "").split("|")) - {""}


def fields() -> FilterFields:
    """Return the filter fields `genres`, `year` and `secret`.

    Items have the labels of GENRES in turn. `year` is 1990 + number, and missing for every fifth item. `secret` is
    denied.
    """
    genres = LabelField.read("genres", "multi_label", "|", [GENRES[item % 4] for item in range(N_ITEMS)], N_ITEMS)
    years = NumberField.read("year", [1990 + item if item % 5 else None for item in range(N_ITEMS)], N_ITEMS)
    secret = LabelField.read("secret", "categorical", "|", ["x"] * N_ITEMS, N_ITEMS)
    return FilterFields({"genres": genres, "year": years, "secret": secret}, N_ITEMS, hidden=("secret",))


@asynccontextmanager
async def filtering(
    policy: Policy | None = None, metrics: Metrics | None = None
) -> AsyncIterator[tuple[Client, ServerState]]:
    async with serving(metrics=metrics) as (client, state):
        serve(state, replace(served_in(state), filters=fields()).beside(None, None, policy or Policy()))
        yield client, state


def numbers(answer: Any) -> list[int]:
    return [int(item["item_id"][1:]) for item in answer["items"]]


async def test_a_page_is_full_of_items_that_satisfy_the_filter() -> None:
    """The page equals the unfiltered ranking without the items that the filter excludes.

    A batch gives the same page.
    """
    tree = {"all": [{"genres": {"any": ["Comedy"]}}, {"not": {"year": {"gte": 2040}}}]}
    async with filtering() as (client, _):
        everything = (await client.post(RECOMMEND, {"user_id": "u3", "limit": N_ITEMS})).json
        found = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 5, "filter": tree})).json
        body = {"requests": [{"user_id": "u3", "limit": 5, "filter": tree}], "include_metadata": True}
        batch = (await client.post(BATCH, body)).json
    kept = [item for item in numbers(everything) if "Comedy" in genres_of(item) and (item < 50 or item % 5 == 0)]
    assert numbers(found) == kept[:5]
    assert json.dumps(batch["results"][0]["items"]) == json.dumps(found["items"])
    assert list(found) == ["request_id", "recipe", "model_version", "items"]


REFUSED: list[tuple[dict[str, Any], list[str | int], str]] = [
    ({"filter": {"genre": {"any": ["x"]}}}, ["body", "filter", "genre"], "did you mean 'genres'?"),
    ({"filter": {"secret": {"any": ["x"]}}}, ["body", "filter", "secret"], "there are genres, year"),
    ({"filter": {"all": [{"year": {"gte": "x"}}]}}, ["body", "filter", "all", 0, "year", "gte"], "a finite number"),
    ({"filter": []}, ["body", "filter"], "an object with exactly one key"),
    ({"limit": 1000, "offset": 1}, ["body", "offset"], "add up to more than 1000"),
    ({"include_items": [1]}, ["body", "include_items", 0], "valid string"),
    ({"history": [{"item": "i1"}]}, ["body", "history", 0], 'an object {"item_id": ..., "weight": ...}'),
    ({"history": [{"item_id": "i1", "weight": True}]}, ["body", "history", 0], "valid number"),
    ({"dislikes": [{"item": "i1"}]}, ["body", "dislikes", 0], 'an object {"item_id": ..., "weight": ...}'),
    ({"history": ["i1"], "dislikes": ["i2", "i1"]}, ["body", "dislikes", 1], "in history too"),
    ({"history_mode": "append"}, ["body", "history_mode"], "no effect without history; give history, or leave"),
    ({"shuffle": 0.5}, ["body", "shuffle"], "no effect without seed"),
    ({"rotation": 0.5, "shown": []}, ["body", "rotation"], "no effect without shown"),
    ({"history_mode": "add"}, ["body", "history_mode"], "'append' or 'replace'"),
    ({"fallback": "all"}, ["body", "fallback"], "'none' or 'popular'"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: json.dumps(case[0])[:40])
async def test_invalid_fields_are_refused_with_their_path_and_a_correction(
    case: tuple[dict[str, Any], list[str | int], str],
) -> None:
    """A single request gets 422. In a batch, only the element fails."""
    more, place, words = case
    async with filtering() as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "u1", **more})
        batch = (await client.post(BATCH, {"requests": [{"user_id": "u1", **more}, {"user_id": "u1"}]})).json
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    (error,) = answer.json["errors"]
    assert error["loc"][: len(place)] == place
    assert words in error["msg"]
    assert [result["status"] for result in batch["results"]] == ["error", "ok"]
    assert words in batch["results"][0]["detail"]


FORMS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["all", "any", "field", "genres", "secret", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["all", "not", "year"]), inner),
    max_leaves=8,
)
RIGHT = [{"genres": {"any": ["Comedy"]}}, {"not": {"all": [{"year": {"gte": 2000, "lt": 2010}}]}}]
ASKED = st.sampled_from([*RIGHT, *ODD]) | FORMS


async def answers_cold_and_warm(trees: list[Any]) -> list[tuple[int, int]]:
    """Return the statuses of a fresh server, and of one that has compiled every form of every tree."""

    async def statuses() -> list[int]:
        bodies = ({"user_id": "u1", "filter": json.loads(json.dumps(tree))} for tree in trees)
        return [(await client.post(RECOMMEND, body)).status for body in bodies]

    hidden = parse_filter({"secret": {"any": ["x"]}}, {"secret": "categorical"})
    async with filtering(Policy(filter=hidden)) as (client, _):
        cold = await statuses()
    async with filtering(Policy(filter=hidden)) as (client, state):
        filters = served_in(state).filters
        for tree in trees:
            with suppress(FilterProblem):
                filters.items(parse_filter(tree, filters.kinds))
        await statuses()
        return list(zip(cold, await statuses(), strict=True))


def canonical_forms(tree: Any) -> list[Any]:
    """Return the tree, and its canonical form as JSON if it is a filter."""
    with suppress(FilterProblem):
        return [tree, json.loads(json.dumps(parse_filter(tree, {"genres": "multi_label", "year": "numerical"})))]
    return [tree]


@settings(max_examples=40, deadline=None)
@given(st.lists(ASKED.filter(lambda tree: "\ud800" not in str(tree)), min_size=1, max_size=6))
@example([*RIGHT, ["field", "secret", [["any", ["x"]]]]])
def test_a_cold_and_a_warm_server_answer_any_filter_with_the_same_status(trees: list[Any]) -> None:
    """A filter that is already compiled in the cache gets the same status as before. Malformed ones get 422."""
    some = [form for tree in trees for form in canonical_forms(tree)]
    answered = trio.run(answers_cold_and_warm, some)
    assert [cold for cold, _ in answered] == [warm for _, warm in answered]
    refused = [cold for tree, (cold, _) in zip(some, answered, strict=True) if isinstance(tree, list)]
    assert set(refused) <= {422}


async def test_a_repeated_key_in_a_filter_is_refused() -> None:
    """JSON parsers would keep one of the two conditions and drop the other."""
    body = b'{"user_id": "u1", "filter": {"year": {"gt": 1, "gt": 2}}}'
    async with filtering() as (client, _):
        answer = await client.call("POST", RECOMMEND, body)
    assert answer.status == 422
    assert "the key 'gt' twice" in answer.json["detail"]


async def test_pages_are_slices_of_one_ranking() -> None:
    """A page after the last item is empty with status 200. An empty ranking gives 404."""
    async with filtering() as (client, _):
        whole = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 30})).json
        pages = [(await client.post(RECOMMEND, {"user_id": "u3", "limit": 7, "offset": o})).json for o in (0, 7, 14)]
        behind = await client.post(RECOMMEND, {"user_id": "u3", "limit": 7, "offset": 900})
        nothing = await client.post(RECOMMEND, {"user_id": "u3", "offset": 1, "filter": {"genres": {"any": ["no"]}}})
    assert [item for page in pages for item in page["items"]] == whole["items"][:21]
    assert (behind.status, behind.json["items"]) == (200, [])
    assert (nothing.status, nothing.json["code"]) == (404, "NO_CANDIDATES")


async def test_include_items_ranks_only_these_items() -> None:
    """Seen items are left out. Both verbs list each unknown id once."""
    listed = ["i9", "none", "i2", "i40", "none", "other"]
    async with filtering() as (client, _):
        found = (await client.post(RECOMMEND, {"user_id": "u3", "include_items": listed})).json
        seen = (await client.post(RECOMMEND, {"user_id": "u3", "include_items": listed, "include_seen": True})).json
        related = (await client.post(RELATED, {"seed_items": ["i9"], "include_items": listed})).json
    assert set(numbers(found)) == {9, 40}
    assert set(numbers(seen)) == {2, 9, 40}
    assert set(numbers(related)) == {2, 40}
    assert [answer["ignored_items"] for answer in (found, seen, related)] == [["none", "other"]] * 3


async def test_the_answer_has_a_profile_if_the_request_has_a_history() -> None:
    """A request with a fallback gets a `profile` too."""
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"user_id": "u1"}, None),
        ({"user_id": "u1", "fallback": "none"}, "user"),
        ({"user_id": "u1", "history": ["x"], "history_mode": "append"}, "user"),
        ({"user_id": "u1", "history": ["i30"]}, "user+history"),
        ({"user_id": "u1", "history": ["i30"], "history_mode": "replace"}, "history"),
        ({"history": [{"item_id": "i30", "weight": 2.5}]}, "history"),
        ({"user_features": {"tag": "a"}, "history": ["i30"]}, "features+history"),
        ({"user_features": {"tag": "a"}, "history": []}, "features"),
        ({"user_id": "nobody", "fallback": "popular"}, "popular"),
        ({"fallback": "popular"}, "popular"),
    ]
    async with filtering() as (client, _):
        for body, profile in cases:
            assert (await client.post(RECOMMEND, body)).json.get("profile") == profile, body


async def test_unknown_items_in_a_history_do_not_change_the_ranking() -> None:
    """For a known user, `items` has the same bytes with unknown items in the history as without."""
    async with filtering() as (client, _):
        plain = (await client.post(RECOMMEND, {"user_id": "u1"})).json
        asked = (await client.post(RECOMMEND, {"user_id": "u1", "history": ["x", "y", "x"]})).json
        nothing = await client.post(RECOMMEND, {"history": []})
        unknown = await client.post("/v1/recipes/plain:recommend", {"history": ["x"], "user_id": "nobody"})
        features = await client.post("/v1/recipes/plain:recommend", {"history": ["i1"], "user_features": {}})
    assert json.dumps(asked["items"]) == json.dumps(plain["items"])
    assert (asked["profile"], asked["ignored_items"]) == ("user", ["x", "y"])
    assert (nothing.status, nothing.json["code"]) == (404, "UNKNOWN_USER")
    assert (unknown.status, unknown.json["code"]) == (404, "UNKNOWN_USER")
    assert (features.status, features.json["code"]) == (400, "FEATURES_NOT_SUPPORTED")


async def test_a_popular_fallback_is_marked_in_the_answer_and_counted() -> None:
    """`fallback`, `profile` and `reason` are "popular". A metric counts fallbacks by verb.

    The recipe's default applies to requests without a fallback of their own.
    """
    metrics = Metrics.create()
    tree = {"genres": {"any": ["War"]}}
    async with filtering(Policy(None, popular_fallback=True), metrics) as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "nobody", "limit": 3, "filter": tree})
        batch = await client.post(BATCH, {"requests": [{"user_id": "nobody"}, {"user_id": "u1"}, {"user_id": "no"}]})
        known = (await client.post(RECOMMEND, {"user_id": "u1"})).json
        refused = await client.post(RECOMMEND, {"user_id": "nobody", "fallback": "none"})
        listed = (await client.get(POPULAR, query="limit=60")).json
        page = (await client.get(POPULAR, query="limit=2&offset=1")).json
    assert answer.json["fallback"] == answer.json["profile"] == "popular"
    assert numbers(answer.json) == [item for item in range(N_ITEMS) if "War" in genres_of(item)][:3]
    assert list(answer.json["items"][0]) == ["item_id", "reason", "title", "year"]
    assert answer.json["items"][0]["reason"] == ["popular"]
    assert [result.get("fallback") for result in batch.json["results"]] == ["popular", None, "popular"]
    assert "fallback" not in known
    assert refused.status == 404
    assert list(listed) == ["request_id", "recipe", "model_version", "items"]
    assert numbers(listed)[:20] == list(range(20))  # each user of the test has seen all items up to its own number
    assert page["items"] == listed["items"][1:3]
    text = metrics.render().decode()
    assert 'svc_v1_fallbacks_total{recipe="movies",verb="recommend"} 1.0' in text
    assert 'svc_v1_fallbacks_total{recipe="movies",verb="batch-recommend"} 2.0' in text


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "offset=-1", "limit=999&offset=2", "limit=x"])
async def test_invalid_parameters_of_popular_are_refused(query: str) -> None:
    """The bounds of parameters are those of `:recommend`."""
    async with filtering() as (client, _):
        answer = await client.get(POPULAR, query=query)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")


async def test_the_filter_of_a_recipe_applies_to_every_request() -> None:
    """The recipe's filter and the request's own are joined by AND, also for the fallback and popular items."""
    policy = Policy(parse_filter({"genres": {"any": ["Comedy"]}}, fields().kinds), popular_fallback=True)
    async with filtering(policy) as (client, _):
        known = (await client.post(RECOMMEND, {"user_id": "u3", "limit": N_ITEMS})).json
        own = (await client.post(RECOMMEND, {"user_id": "u3", "filter": {"genres": {"any": ["Drama"]}}})).json
        related = (await client.post(RELATED, {"seed_items": ["i2"], "limit": N_ITEMS})).json
        listed = (await client.get(POPULAR, query="limit=60")).json
    for answer in (known, own, related, listed):
        assert numbers(answer)
        assert all("Comedy" in genres_of(item) for item in numbers(answer))
    assert all("Drama" in genres_of(item) for item in numbers(own))


async def test_the_description_names_the_fields_that_may_be_filtered() -> None:
    """Each field has its kind, and first values or a range. Denied fields are missing."""
    async with filtering() as (client, _):
        described = (await client.get("/v1/recipes/movies")).json
        plain = (await client.get("/v1/recipes/plain")).json
    assert described["filter_fields"] == [
        {"name": "genres", "kind": "multi_label", "values": ["Comedy", "Drama", "War"]},
        {"name": "year", "kind": "numerical", "min": 1991.0, "max": 2049.0},
    ]
    assert "filter_fields" not in plain


def put_list(state: ServerState, declared: Availability, ids: list[str] | None, age_s: float | None) -> None:
    """Serve `movies` with a list of available items that was read `age_s` ago, or never."""
    served = served_in(state)
    available = None if ids is None else available_items(declared, ids, served.model.item_ids)
    read_at = None if age_s is None else trio.current_time() - age_s
    entry = replace(state.registry.require("movies"), availability=ListState(declared, ids, read_at))
    state.registry.put(replace(entry, served=replace(served, available=available)))


async def test_a_stale_list_in_mode_allow_stops_the_recipe() -> None:
    """Single requests, batches and popular items give 503 when the list is older than max_stale_seconds.

    `/v1/health` stays as it is, and `/v1/health/details` shows the stale list.
    """
    declared = availability(refresh_seconds=10, max_stale_seconds=60)
    async with filtering() as (client, state):

        async def statuses() -> list[tuple[int, Any]]:
            answers = [
                await client.post(RECOMMEND, {"user_id": "u3"}),
                await client.post(BATCH, {"requests": [{"user_id": "u3"}]}),
                await client.get(POPULAR),
            ]
            return [(answer.status, answer.json.get("code")) for answer in answers]

        put_list(state, declared, None, None)
        assert await statuses() == [(503, "AVAILABILITY_STALE")] * 3
        put_list(state, declared, ["i5", "i50", "none"], 0.0)
        assert await statuses() == [(200, None)] * 3
        assert set(numbers((await client.post(RECOMMEND, {"user_id": "u3"})).json)) == {5, 50}
        await trio.sleep(60)
        assert await statuses() == [(200, None)] * 3
        await trio.sleep(1)
        assert await statuses() == [(503, "AVAILABILITY_STALE")] * 3
        details = await client.get("/v1/health/details")
        assert (await client.get("/v1/health")).json["total"] == 4
        put_list(state, declared, [], 0.0)
        assert (await client.post(RECOMMEND, {"user_id": "u3"})).json["code"] == "NO_CANDIDATES"
    assert details.status == 503
    shown = details.json["recipes"]["movies"]["availability"]
    assert shown == {"mode": "allow", "age_seconds": 61.0, "stale": True}


async def test_a_stale_list_in_mode_deny_stays_in_use() -> None:
    """A list in mode `deny` denies no item before its first read."""
    declared = availability("deny", refresh_seconds=10, max_stale_seconds=10)
    async with filtering() as (client, state):
        for ids, age_s, gone in ((None, None, set()), (["i5"], 100.0, {5})):
            put_list(state, declared, ids, age_s)
            found = (await client.post(RECOMMEND, {"user_id": "u3", "limit": N_ITEMS})).json
            assert set(numbers(found)) == set(range(4, N_ITEMS)) - gone


async def test_reasons_have_metadata_like_items() -> None:
    """The items in `because` and `in_spite_of` have the metadata of single answers.

    The shares of the reasons and `rest` sum to 1.
    """
    async with filtering() as (client, _):
        single = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 2, "explain": 2})).json
        body = {"requests": [{"user_id": "u3", "limit": 2, "explain": 2}]}
        batch = (await client.post(BATCH, body)).json["results"][0]
        against = {"user_id": "u3", "limit": N_ITEMS, "explain": 3, "dislikes": ["i1"], "include_seen": True}
        disliked = (await client.post(RECOMMEND, against)).json
        related = (await client.post(RELATED, {"item_features": {"tag": "a"}, "limit": 1, "explain": 1})).json
        popular = (await client.post(RECOMMEND, {"fallback": "popular", "limit": 1, "explain": 3})).json
    for item, bare in zip(single["items"], batch["items"], strict=True):
        assert [key for key in item if key != "in_spite_of"] == ["item_id", "score", "because", "rest", "title", "year"]
        assert abs(sum(reason["share"] for reason in item["because"]) + item["rest"] - 1) < 1e-12
        assert {reason["item_id"] for reason in item["because"]} <= {"i0", "i1", "i2", "i3"}
        for side in ("because", "in_spite_of"):
            assert all(list(reason) == ["item_id", "share", "title", "year"] for reason in item.get(side, []))
            assert all(list(reason) == ["item_id", "share"] for reason in bare.get(side, []))
    for item in disliked["items"]:
        assert all(0 < reason["share"] <= 1 for reason in item["because"])
        assert all(reason["share"] < 0 for reason in item.get("in_spite_of", []))
    assert any("in_spite_of" in item for item in disliked["items"])
    assert related["items"][0]["because"][0]["feature"] == "tag=a"
    assert (popular["items"][0]["because"], popular["items"][0]["rest"]) == ([{"reason": "popular"}], 0.0)


async def test_the_description_of_a_recipe_has_its_fallback() -> None:
    """The key is missing if the recipe has no fallback."""
    for policy, fallback in ((Policy(), None), (Policy(popular_fallback=True), "popular")):
        async with filtering(policy) as (client, _):
            assert (await client.get("/v1/recipes/movies")).json.get("fallback") == fallback


async def test_dislikes_exclude_items_and_lower_others() -> None:
    """Disliked items are not recommended. Dislikes alone are not a profile: the answer is UNKNOWN_USER."""
    disliked = {"dislikes": ["i30", "none", {"item_id": "i31", "weight": 0}], "limit": N_ITEMS, "explain": 3}
    who = {"user_id": "u1", "include_seen": True, **disliked}
    async with filtering() as (client, _):
        answer = (await client.post(RECOMMEND, who)).json
        batch = (await client.post(BATCH, {"requests": [who, disliked], "include_metadata": True})).json
        alone = await client.post(RECOMMEND, disliked)
        popular = (await client.post(RECOMMEND, {**disliked, "fallback": "popular"})).json
    assert answer["ignored_items"] == popular["ignored_items"] == ["none"]
    assert not {30, 31} & {*numbers(answer), *numbers(popular)}
    assert json.dumps(batch["results"][0]["items"]) == json.dumps(answer["items"])
    assert (alone.status, alone.json["code"]) == (404, batch["results"][1]["code"]) == (404, "UNKNOWN_USER")
