"""Typical mistakes of users who know other products, and the advice in svc's error messages.

Each row has a mistake and the part of the message with the remedy. Complete messages are tested beside the modules that
write them.
"""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import svc
from svc.asking.policy import Policy
from svc.cli import main
from svc.errors import SvcError
from svc.sources.base import check_spec
from tests.export.conftest import MODELS
from tests.recipe.loading import BASE, METADATA, load, refusal
from tests.serving.api.verbs.test_filters import filtering
from tests.serving.artifacts import SIGNING_KEYS, header, write_artifact
from tests.serving.client import BATCH, RECOMMEND, RELATED

INTERNAL = ("Tuple", "a valid integer", "Extra inputs", "after validation", "must match ^", "Traceback")
U1 = {"user_id": "u1"}

REQUESTS: list[tuple[str, object, str]] = [
    (RECOMMEND, {**U1, "limit": "5"}, "whole number without quotes"),
    (RECOMMEND, {**U1, "limit": 2.5}, "whole number"),
    (RECOMMEND, {**U1, "limit": 0}, "greater than or equal to 1"),
    (RECOMMEND, {**U1, "limit": 5000}, "less than or equal to 1000"),
    (RECOMMEND, {**U1, "explain": True}, "whole number without quotes, such as 3: most reasons"),
    (RECOMMEND, {"limit": 2}, "give user_id, user_features, history or fallback"),
    (RECOMMEND, {}, "give user_id, user_features, history or fallback"),
    (RECOMMEND, {"user_id": 17}, 'ids are strings: "17", not 17'),
    (RECOMMEND, {"user": "u1"}, "did you mean user_id?"),
    (RECOMMEND, {"userId": "u1"}, "did you mean user_id?"),
    (RECOMMEND, {"visitor_id": "u1"}, "did you mean user_id?"),
    (RECOMMEND, {**U1, "count": 3}, "did you mean limit?"),
    (RECOMMEND, {**U1, "n": 3}, "did you mean limit?"),
    (RECOMMEND, {**U1, "k": 3}, "did you mean limit?"),
    (RECOMMEND, {**U1, "num_results": 3}, "did you mean limit?"),
    (RECOMMEND, {**U1, "exclude": ["i1"]}, "did you mean exclude_items?"),
    (RECOMMEND, {**U1, "exclude_seen": False}, "seen items are left out unless include_seen is true"),
    (RECOMMEND, {**U1, "include_metadata": False}, "answers carry the fields of the recipe's item_metadata"),
    (RECOMMEND, {**U1, "genres": ["Drama"]}, 'belongs in filter, as in {"genres": {"any": ["Drama"]}}'),
    (RECOMMEND, {**U1, "count": "5"}, "did you mean limit? its value has another form"),
    (RECOMMEND, {**U1, "limit_": [1]}, "unknown field; the API reference"),
    ("/v1/movies:recommend", U1, "there are /v1/recipes/NAME:recommend"),
    ("/v1/recipes/movies:recommend/", U1, "did you mean :recommend?"),
    (RECOMMEND, {**U1, "filters": {"genres": {"any": ["War"]}}}, "did you mean filter?"),
    (RECOMMEND, {"item_id": "i1"}, ":recommend-related takes seed_items"),
    (RELATED, {"item_id": "i1"}, "did you mean seed_items?"),
    (RELATED, {"items": ["i1"]}, "did you mean seed_items?"),
    (RELATED, {"user_id": "u1"}, ":recommend takes user_id"),
    (RELATED, {}, "give seed_items or item_features"),
    (RELATED, {"seed_items": ["none"]}, "none of the seed items is in the training data"),
    (RECOMMEND, {"user_id": "nobody"}, "user_features can stand in for it"),
    (RECOMMEND, {"history": ["none"]}, "in the training data; fallback: popular answers anyway"),
    (RECOMMEND, {**U1, "history_mode": "replace"}, "give history, or leave history_mode out"),
    (RECOMMEND, {**U1, "filter": {"genres": {"any": ["drama"]}}}, "genres has no value 'drama'; did you mean 'Drama'?"),
    (RECOMMEND, {**U1, "filter": {"genre": {"any": ["Drama"]}}}, "did you mean 'genres'?"),
    (RECOMMEND, {**U1, "filter": {"year": {"gt": 3000}}}, "its numbers are from 1991 to 2049"),
    (RECOMMEND, {**U1, "filter": {"year": {"gte": "2000"}}}, "a finite number"),
    (RECOMMEND, {**U1, "filter": []}, "an object with exactly one key"),
    (RECOMMEND, {**U1, "boosts": [{"field": "genres", "value": "War", "factor": 2}]}, "names its items by a filter"),
    (RECOMMEND, {**U1, "limits": [{"feild": "genres", "max": 3}]}, "did you mean field?"),
    (RECOMMEND, {**U1, "limits": [{"field": "genre", "max": 3}]}, "did you mean 'genres'?"),
    (RECOMMEND, {**U1, "limits": [{"field": "year", "max": 3}]}, "cannot be limited; limit a field of text: genres"),
    (RECOMMEND, {**U1, "pins": [{"item_id": "i1", "position": 0}] * 2}, "two pins have the same item_id"),
    (RECOMMEND, {**U1, "history": [{"item": "i1"}]}, 'an object {"item_id": ..., "weight": ...}'),
    (BATCH, {"request": [U1]}, "did you mean requests?"),
    (BATCH, {"requests": [{"user": "u1"}]}, "did you mean user_id?"),
    (BATCH, {"requests": [{**U1, "filter": {"genres": {"any": ["drama"]}}}]}, "did you mean 'Drama'?"),
    ("/v1/recipes/movies:recomend", U1, "did you mean :recommend?"),
    ("/v1/recipes/movies/recommend", U1, "did you mean :recommend?"),
    (RECOMMEND, {**U1, "limit": None}, "whole number without quotes"),
    (RECOMMEND, {**U1, "limit": -1}, "greater than or equal to 1"),
    (RECOMMEND, {**U1, "limit": "ten"}, "whole number without quotes"),
    (RECOMMEND, {**U1, "limit": True}, "whole number without quotes"),
    (RECOMMEND, {**U1, "offset": "2"}, "items of the ranking before the first that is returned"),
    (RECOMMEND, {**U1, "page": 2}, "the third page of 10 items is offset 20 with limit 10"),
    (RECOMMEND, {**U1, "hitsPerPage": 5}, "did you mean limit?"),
    (RECOMMEND, {**U1, "per_page": 5}, "did you mean limit?"),
    (RECOMMEND, {**U1, "skip": 5}, "did you mean offset?"),
    (RECOMMEND, [U1], 'should be an object, as in {"user_id": "u1"}'),
    (RECOMMEND, "u1", 'should be an object, as in {"user_id": "u1"}'),
    (RECOMMEND, b"", 'the body is empty; send JSON such as {"user_id"'),
    (RECOMMEND, b"user_id=u1", 'this is not JSON (a form?); send JSON such as {"user_id"'),
    (RECOMMEND, b"{'user_id': 'u1'}", "line 1 column 2; JSON takes double quotes"),
    (RECOMMEND, b'{"user_id": "u1",}', "trailing comma at line 1 column 18"),
    (RECOMMEND, b'{"user_id": "u1", "user_id": "u2"}', "names the key 'user_id' twice"),
    (RECOMMEND, {"user_id": ""}, "at least 1 character"),
    (RECOMMEND, {"user_id": ["u1"]}, "one id belongs here, not a list; :batch-recommend takes several users"),
    (RECOMMEND, {"user_ids": ["u1"]}, ':batch-recommend takes {"requests": [{"user_id": "u1"}]}'),
    (RECOMMEND, {"customer_id": "u1"}, "did you mean user_id?"),
    (
        RECOMMEND,
        {"user_id": "stranger"},
        "fallback: popular answers anyway, history takes items that the user has chosen",
    ),
    (RECOMMEND, {"history": "i1"}, 'history: Input should be a valid array, as in ["i1"]'),
    (RECOMMEND, {"history": ["i1", 7]}, 'history.1: Input should be a valid string; ids are strings: "17"'),
    (RECOMMEND, {"history": [{"item_id": "i1", "rating": 5}]}, "without other keys"),
    (
        RECOMMEND,
        {"history": [{"item_id": "i1", "weight": -1}]},
        "weight must be above 0; items that the user dislikes belong in dislikes",
    ),
    (RECOMMEND, {**U1, "dislike": ["i1"]}, "did you mean dislikes?"),
    (RECOMMEND, {**U1, "exclude_items": "i1"}, "exclude_items: Input should be a valid array"),
    (RECOMMEND, {**U1, "exclude_items": [1]}, "ids are strings"),
    (RECOMMEND, {**U1, "include_seen": "yes"}, "include_seen: Input should be true or false, without quotes"),
    (RECOMMEND, {**U1, "filter": "genres:Drama"}, 'write a condition as {"genres": {"any": ["Drama"]}}'),
    (RECOMMEND, {**U1, "filter": {}}, 'write a condition as {"genres": {"any": ["Drama"]}}'),
    (RECOMMEND, {**U1, "filter": {"genres": "Drama"}}, 'any, all, exists; as in {"genres": {"any": ["Drama"]}}'),
    (RECOMMEND, {**U1, "filter": {"genres": {"any": "Drama"}}}, "give a list of 1 to 1000 strings"),
    (RECOMMEND, {**U1, "filter": {"genres": {"in": ["Drama"]}}}, "did you mean 'any'?"),
    (RECOMMEND, {**U1, "filter": {"genres": {"eq": "Drama"}}}, "did you mean 'any', with a list?"),
    (RECOMMEND, {**U1, "filter": {"year": {">=": 2000}}}, "did you mean 'gte'?"),
    (RECOMMEND, {**U1, "filter": {"year": {"min": 2000}}}, "did you mean 'gte'?"),
    (RECOMMEND, {**U1, "filter": {"year": 2000}}, 'gt, gte, lt, lte, eq, exists; as in {"year": {"eq": 2000}}'),
    (RECOMMEND, {**U1, "filter": {"year": {"any": [2000]}}}, "a numerical field takes gt, gte"),
    (RECOMMEND, {**U1, "filter": {"year": {"gte": "2000-01-01"}}}, "this is a date"),
    (RECOMMEND, {**U1, "filter": {"genres": {"any": ["War"]}, "year": {"gte": 2000}}}, "must all hold stand in a list"),
    (RECOMMEND, {**U1, "filter": {"and": [{"year": {"gte": 2000}}]}}, '`and` is written `all`: {"all": [...]}'),
    (RECOMMEND, {**U1, "filter": {"all": {"year": {"gte": 2000}}}}, "`all` takes a list"),
    (RECOMMEND, {**U1, "fallback": True}, "should be 'none' or 'popular'"),
    (RECOMMEND, {**U1, "fallback": "popularity"}, "should be 'none' or 'popular'"),
    (RECOMMEND, {**U1, "diversity": 5}, "less than or equal to 1"),
    (RECOMMEND, {**U1, "explain": 0}, "equal to 1; leave explain out for no reasons"),
    (RECOMMEND, {**U1, "boost": []}, "did you mean boosts?"),
    (RECOMMEND, {**U1, "boosts": [{"filter": {"genres": {"any": ["War"]}}, "factor": -1}]}, "equal to 0.1"),
    (
        RECOMMEND,
        {**U1, "boosts": {"genres": 2}},
        'valid array, as in [{"filter": {"genres": {"any": ["Drama"]}}, "factor": 2}]',
    ),
    (RECOMMEND, {**U1, "pins": ["i1"]}, 'pins.0: Input should be an object, as in {"item_id": "i1", "position": 0}'),
    (RECOMMEND, {**U1, "pins": [{"item_id": "i1"}]}, "pins.0.position: Field required"),
    (RECOMMEND, {"user_features": {"age": "old"}}, "feature 'age': a text is not a number"),
    (RECOMMEND, {"user_features": ["a"]}, 'user_features: Input should be an object, as in {"age": 30}'),
    (RECOMMEND, {"user_features": {"colour": "red"}}, '"ignored_features": ["colour"]'),
    (RECOMMEND, {"features": {"tag": "a"}}, "did you mean user_features?"),
    (RELATED, {"seed_items": "i1"}, "seed_items: Input should be a valid array"),
    (RELATED, {"seed_items": [1]}, "ids are strings"),
    (RELATED, {"seed_items": []}, "List should have at least 1 item"),
    (RELATED, {"seeds": ["i1"]}, "did you mean seed_items?"),
    (BATCH, [U1], 'for a batch, {"requests": [{"user_id": "u1"}]}'),
    (BATCH, {"requests": []}, "List should have at least 1 item"),
    (BATCH, {"requests": U1}, "requests: Input should be a valid array"),
    (BATCH, {"requests": ["u1"]}, 'should be an object, as in {"user_id": "u1"}'),
    (BATCH, {"user_ids": ["u1"]}, 'requests: Field required, as in {"requests": [{"user_id"'),
    (BATCH, {"requests": [{**U1, "limit": 0}]}, "greater than or equal to 1"),
    ("/v1/recipes/movies:recommend-batch", U1, "did you mean :batch-recommend?"),
    ("/v1/recipes/movies/recommendations", U1, "did you mean :recommend?"),
    ("/v1/recipes/movies:Recommend", U1, "did you mean :recommend?"),
    ("/v1/recipes/movies:predict", U1, "a recipe has :recommend, :recommend-related"),
    ("/v1/recipes/movie:recommend", U1, "GET /v1/recipes lists the served recipes"),
    ("/v1/recipes/movies", U1, "this endpoint takes GET, HEAD; :recommend takes POST"),
]
MOVIES = "/v1/recipes/movies"
QUERIES: list[tuple[str, str, str]] = [
    (RECOMMEND, "user_id=u1", "this endpoint takes POST, with its fields in a JSON body"),
    (f"{MOVIES}/popular", "n=3", "did you mean limit?"),
    (f"{MOVIES}/popular", "numResults=3", "did you mean limit?"),
    (f"{MOVIES}/popular", "window=7d", "this endpoint has limit, offset, filter"),
    (f"{MOVIES}/popular", "fliter={}", "did you mean filter?"),
    (f"{MOVIES}/popular", "limit=ten", "whole number without quotes"),
    (f"{MOVIES}/popular", "limit=-1", "greater than or equal to 1"),
    (f"{MOVIES}/popular", "limit=20000", "less than or equal to 1000"),
    (f"{MOVIES}/popular", "limit=3&offset=1&limit=5", "query: limit: the parameter occurs twice"),
    (f"{MOVIES}/popular", "page=2", "the third page of 10 items is offset 20"),
    (f"{MOVIES}/popular", "filter=genres:Drama", 'as in {"genres": {"any": ["Drama"]}}'),
    (f"{MOVIES}/items", "query=a", "did you mean q?"),
    (f"{MOVIES}/somebody", "user=u3", "did you mean user_id?"),
    (f"{MOVIES}/somebody", "user_id=nobody", "leave user_id out for a random user"),
    (MOVIES, "verbose=1", "this endpoint has no parameters"),
    ("/v1/recipes/movie", "", "GET /v1/recipes lists the served recipes"),
    (f"{MOVIES}/users", "", ", GET /popular, /items, /somebody"),
]


@pytest.mark.anyio
async def test_errors_of_requests_name_the_remedy() -> None:
    """No message contains an internal name of the server."""
    unexplained = []
    async with filtering() as (client, _):
        for path, body, told in REQUESTS:
            answer = await client.post(path, body)
            said = json.dumps(answer.json, ensure_ascii=False).replace('\\"', '"')
            if told not in said or any(word in said for word in INTERNAL):
                unexplained.append((path, body, said))
        for path, query, told in QUERIES:
            said = json.dumps((await client.get(path, query=query)).json).replace('\\"', '"')
            if told not in said or any(word in said for word in INTERNAL):
                unexplained.append((path, query, said))
        answer = await client.post(RECOMMEND, U1, query="limit=3")
        assert "reads limit from the JSON body" in answer.json["detail"]
    assert unexplained == []


@pytest.mark.anyio
async def test_ignored_parts_of_a_request_are_named_with_their_reason() -> None:
    """Each pin that is not shown has a reason. An empty request gets popular items, like one with an empty history."""
    async with filtering(Policy(popular_fallback=True)) as (client, _):
        everything = (await client.post(RECOMMEND, {**U1, "include_seen": True, "limit": 1000})).json["items"]
        unseen = (await client.post(RECOMMEND, {**U1, "limit": 1000})).json["items"]
        seen = min({item["item_id"] for item in everything} - {item["item_id"] for item in unseen})
        whys = {"none": "unknown", "i32": "excluded", seen: "seen", "i34": "filtered"}
        pins = [{"item_id": item, "position": place} for place, item in enumerate(whys)]
        restricted = {**U1, "exclude_items": ["i32"], "filter": {"genres": {"any": ["Comedy"]}}}
        pinned = (await client.post(RECOMMEND, {**restricted, "pins": pins})).json
        empty, no_history = [(await client.post(RECOMMEND, body)).json for body in ({}, {"history": []})]
    assert {pin["item_id"]: pin["why"] for pin in pinned["ignored_pins"]} == whys
    assert pinned["ignored_items"] == list(whys)
    assert empty["profile"] == "popular" and empty["items"] == no_history["items"]


RECIPES: list[tuple[dict[str, Any] | str, str]] = [
    ({"training": {"algorithms": ["IALSS"]}}, "did you mean IALSRecommender?"),
    ({"training": {"algorithms": ["als"]}}, "did you mean IALSRecommender?"),
    ({"training": {"algorithms": []}}, "must have at least one entry"),
    ({"training": {"time_decay": {"half_life": "30 days"}}}, "did you mean 30d?"),
    ({"training": {"time_decay": {"half_life": 30}}}, "write 30d for days"),
    ({"training": {"n_trials": "3x"}}, "must be a whole number"),
    ({"training": {"metric": "ndcg@10"}}, "write `metric: ndcg` and `training.cutoff: 10`"),
    ({"training": {"split": "time_user"}}, "write {'scheme': 'time_user'}"),
    ({"training": {"trials": 20}}, "did you mean `n_trials`?"),
    ({"n_trials": 20}, "it belongs at `training.n_trials`"),
    ({"promotion": "enforce"}, "write {'mode': 'enforce'}"),
    ({"promotion": {"mode": "enforce"}}, "needs output.versioning: append_sha"),
    ({"output": "artifacts/a.svc"}, "write {'path': 'artifacts/a.svc'}"),
    ({"output": {"path": "a.svc", "version": "append_sha"}}, "did you mean `versioning`?"),
    ({"source": "data/ratings.csv"}, "write {'type': 'csv', 'path': 'data/ratings.csv'}"),
    ({"source": {"type": "cvs", "path": "a.csv"}}, "did you mean"),
    ({"schema": {"user": "u", "item": "i"}}, "user_column"),
    ({"name": "my movies"}, "letters, digits, hyphens and underscores"),
    ({"item_metadata": {**METADATA, "filter_fields": ["genres"]}}, "as in {'name': 'genres', 'kind': 'categorical'}"),
    (
        {"item_metadata": METADATA, "serving": {"boosts": [{"field": "genres", "value": "Drama", "factor": 2}]}},
        "a boost names its items by a filter",
    ),
    ({"cleansing": {"event_weights": {"buy": "3x"}}}, "must be a number, or 'exclude'"),
    ({"training": {"split": "temporal"}}, "write {'scheme': 'time_user'}"),
    ({"training": {"split": "leave-one-out"}}, "write {'scheme': 'leave_one_out'}"),
    ({"training": {"split": {"test_size": 0.2}}}, "is `heldout_ratio`"),
    ({"training": {"split": {"type": "time_user"}}}, "it is `scheme`"),
    ({"training": {"split": {"heldout_ratio": 20}}}, "must be less than 1"),
    ({"training": {"split": {"scheme": "user"}}}, "did you mean 'time_user'?"),
    ({"schema": {"user": "u", "item": "i", "time": "t"}}, "did you mean `time_column`?"),
    ({"schema": {"user_id": "u", "item_id": "i"}}, "it is `user_column`"),
    ({"schema": {"user_column": "u", "item_column": "i", "timestamp": "t"}}, "it is `time_column`"),
    (
        {"schema": {"user_column": "u", "item_column": "i", "rating": "r"}},
        "`cleansing.where: {r: {gte: 4}}` keeps the rows that mean a choice",
    ),
    ({"schema": {"user_column": "u", "item_column": "u"}}, "name the same column"),
    ({"schema": {"user_column": "u", "item_column": "i", "time_unit": "seconds"}}, "did you mean 's'?"),
    ({"schema": {"user_column": "u", "item_column": "i", "time_unit": "milliseconds"}}, "did you mean 'ms'?"),
    ({"schema": {"userColumn": "u", "itemColumn": "i"}}, "did you mean `item_column`?"),
    ({"source": {"path": "a.csv"}}, "is missing; write one of csv, jsonl, parquet"),
    ({"source": {"type": "postgres", "query": "select 1"}}, "did you mean 'sql'?"),
    ({"source": {"type": "excel", "path": "a.xlsx"}}, "Excel files are not read: save the sheet as CSV"),
    ({"source": {"type": "csv", "file": "a.csv"}}, "it is `path`"),
    ({"source": {"type": "csv", "path": "a.csv", "sep": ";"}}, "it is `delimiter`"),
    ({"source": {"type": "csv", "path": "a.csv", "delimiter": "\\t"}}, 'is no delimiter; write "\\t" in double quotes'),
    ({"source": {"type": "csv", "path": "a.csv", "delimiter": "tab"}}, 'is no delimiter; write "\\t" in double quotes'),
    (
        {"source": {"type": "csv", "path": "a.csv", "columns": ["u", "i"]}},
        "reads only the columns that the recipe names",
    ),
    ({"source": {"type": "csv", "path": "~/a.csv"}}, "`~` and `$NAME` are not expanded here"),
    ({"source": {"type": "csv", "path": "$HOME/a.csv"}}, "write the whole path, or ${SVC_RECIPE_NAME}"),
    ({"output": {"path": "~/a.svc"}}, "`~` and `$NAME` are not expanded here"),
    ({"source": "bigquery"}, "write {'type': 'bigquery'}"),
    ({"source": "sales"}, "as in {'type': 'csv', 'path': 'data.csv'}"),
    ({"source": [{"type": "csv", "path": "a.csv"}]}, "write {'path': 'a.csv', 'type': 'csv'}"),
    ({"source": ["a.csv", "b.csv"]}, "as in {'type': 'csv', 'path': 'data.csv'}"),
    ({"schema": ["u", "i", "t"]}, "write {'user_column': 'u', 'item_column': 'i', 'time_column': 't'}"),
    ({"schema": "u, i"}, "write {'user_column': 'u', 'item_column': 'i'}"),
    ({"schema": "u"}, "as in {'user_column': 'user_id', 'item_column': 'item_id'}"),
    ({"training": {"split": 0.2}}, "write {'heldout_ratio': 0.2}"),
    ({"training": {"split": "stratified"}}, "its keys are scheme, heldout_ratio"),
    ({"training": ["IALS"]}, "write {'algorithms': ['IALS']}"),
    ({"training": {"algorithms": "IALS, TopPop"}}, "write ['IALS', 'TopPop']"),
    ({"training": {"algorithms": "all"}}, "leave it out for the default"),
    ({"training": {"parallelism": "auto"}}, "leave it out for the default"),
    ({"training": {"parallelism": -1}}, "leave it out for the default"),
    ({"training": {"n_trials": "auto"}}, "leave it out for the default"),
    ({"training": {"timeout_seconds": "10m"}}, "write 600"),
    ({"training": {"time_decay": "30 days"}}, "write {'half_life': '30d'}"),
    ({"training": {"split": {"heldout_ratio": 20}}}, "write 0.2 for 20%"),
    ({"training": {"metrics": ["ndcg", "recall"]}}, "did you mean `metric`, which must be one of"),
    ({"training": {"seed": "random"}}, "must be a whole number; found the text 'random'"),
    ({"cleansing": {"dedup": True}}, "write 'keep_last'"),
    ({"cleansing": {"where": {"year": [5, 20]}}}, 'write {"year": {"gte": 5, "lte": 20}}'),
    (
        {"item_metadata": METADATA, "serving": {"filter": {"year": [5, 20]}}},
        'as in {"year": {"gte": 2000, "lte": 2010}}',
    ),
    ({"source": {"type": "csv", "path": "a.csv", "header": True}}, "must be a whole number; found true; write 0"),
    ({"source": {"type": "csv", "path": "a.csv", "header": False}}, "found false; write null"),
    (
        {"schema": {"user_column": "u", "item_column": "i", "time_unit": "d"}},
        "Leave it out for dates as text",
    ),
    ({"training": {"timeout_seconds": "10min"}}, "write 600"),
    ({"training": {"split": {"test": "20%"}}}, "write 0.2"),
    ({"training": {"max_search_age": 7}}, "write '7d' for days"),
    ({"training": {"algorithms": ["IALS"], "search_space": {"IALS": {"n_components": 64}}}}, "write [64, 64]"),
    ({"training": {"algorithms": ["IALS"], "search_space": {"IALS": {"mean_prior": True}}}}, "write [True]"),
    (
        {"training": {"algorithms": ["IALS"], "search_space": {"IALS": {"n_components": {"low": 16, "high": 64}}}}},
        "write [16, 64]",
    ),
    ({"training": {"search_space": ["n_components"]}}, "as in {'IALS': {'n_components': [16, 64]}}"),
    ({"training": {"per_algorithm_trials": 10}}, "as in {'IALS': 20}"),
    ({"cleansing": {"where": {"rating": ">= 4"}}}, 'write {"rating": {"gte": 4}}'),
    ({"cleansing": {"where": {"event": "buy"}}}, 'write {"event": {"any": ["buy"]}}'),
    ({"cleansing": {"where": {"event": ["buy", "view"]}}}, 'write {"event": {"any": ["buy", "view"]}}'),
    ({"cleansing": {"where": "stars > 3"}}, "write {'stars': {'gt': 3}}"),
    ({"cleansing": {"where": "good ones"}}, "as in {'genres': {'any': ['Drama']}}"),
    ({"cleansing": {"where": [{"a": {"gte": 4}}]}}, "write {'a': {'gte': 4}}"),
    (
        {"cleansing": {"where": [{"a": {"gte": 4}}, {"b": {"any": ["x"]}}]}},
        "write {'all': [{'a': {'gte': 4}}, {'b': {'any': ['x']}}]}",
    ),
    ({"cleansing": {"event_weights": ["view", "buy"]}}, "as in {'view': 1, 'buy': 3}"),
    ({"cleansing": {"max_change": 0.5}}, "write {'n_rows': 0.5, 'n_users': 0.5, 'n_items': 0.5}"),
    ({"cleansing": {"forget": "gone.csv"}}, "as in {'source': {'type': 'csv', 'path': 'gone.csv'}, 'id_column'"),
    ({"features": ["genres"]}, "as in {'item': {'source': {'type': 'csv', 'path': 'items.csv'}"),
    ({"features": {"item": "books.csv"}}, "as in {'source': {'type': 'csv', 'path': 'books.csv'}"),
    ({"item_metadata": {**METADATA, "fields": "title, author"}}, "write ['title', 'author']"),
    ({"item_metadata": {**METADATA, "fields": "all"}}, "name each column"),
    (
        {"item_metadata": {**METADATA, "filter_fields": {"a": "numerical"}}},
        "write [{'name': 'a', 'kind': 'numerical'}]",
    ),
    (
        {"item_metadata": {**METADATA, "filter_fields": "a"}},
        "as in [{'name': 'genres', 'kind': 'categorical'}], or with",
    ),
    ({"serving": {"limit": 10}}, "each request gives its own `limit`"),
    ({"serving": {"popular": {"window": 30}}}, "write '30d' for days"),
    ({"serving": {"popular": "30d"}}, "as in {'half_life': '7d'}, or with window"),
    ({"item_metadata": METADATA, "serving": {"limits": {"genres": 2}}}, "write [{'field': 'genres', 'max': 2}]"),
    (
        {"item_metadata": METADATA, "serving": {"boosts": {"genres": 2}}},
        "as in [{'filter': {'genres': {'any': ['Drama']}}, 'factor': 2}]",
    ),
    ({"serving": {"pins": ["b0001"]}}, "as in {'item_id': 'b0342', 'position': 0}"),
    ({"serving": {"pins": {"b0001": 0}}}, "write [{'item_id': 'b0001', 'position': 0}]"),
    ({"serving": {"rehearsal": 0.9}}, "write {'min_known_users': 0.9}"),
    ({"serving": {"availability": "stock.csv"}}, "'path': 'stock.csv'}, 'id_column': 'item_id', 'mode': 'allow'}"),
    ({"output": {"path": "a.svc", "expires_after": 36}}, "write '36d' for days"),
    ({"schema": {**BASE["schema"], "time_column": "t", "time_format": "%H:%M"}}, "with a year (%Y or %y)"),
    ({"schema": {**BASE["schema"], "time_column": ["a", "b", "c"]}}, "must name one column, or two: of dates"),
    ({"schema": {**BASE["schema"], "time_column": ["a", "b"], "time_unit": "s"}}, "for one column of numbers"),
    ({"source": {"type": "csv", "path": "ftp://h/a.csv"}}, "allowed: a local path"),
    ({"source": {"type": "csv", "path": "https://u:p@h/a.csv"}}, "user-info"),
    ({"source": {"type": "sql", "query": "select 1"}}, "write dsn_env: SVC_RECIPE_DSN and export"),
    ({"source": {"type": "sql", "url": "sqlite:///a", "query": "select 1"}}, "export SVC_RECIPE_DSN=postgresql://..."),
    ({"source": {"type": "bigquery", "table": "a.b"}}, "select from it in `query`"),
    ({"source": {"type": "csv", "path": "a.csv", "dtype": {"u": "integer"}}}, "did you mean 'int'?"),
    ({"sources": {"type": "csv", "path": "a.csv"}}, "did you mean `source`?"),
    ({"data": "a.csv"}, "it is `source: {'type': 'csv', 'path': 'a.csv'}`"),
    ({"training": {"n_trials": 0}}, "greater than or equal to 1"),
    ({"training": {"n_trials": True}}, "must be a whole number; found true"),
    ({"training": {"n_jobs": 4}}, "it is `parallelism`"),
    (
        {"training": {"n_jobs": -1}},
        "it is `parallelism`, which must be greater than or equal to 1; leave it out for the default",
    ),
    ({"training": {"split": {"test_size": "20%"}}}, "is `heldout_ratio: 0.2`"),
    ({"training": {"random_state": 1}}, "it is `seed`"),
    ({"training": {"k": 10}}, "it is `cutoff`"),
    ({"training": {"hyperparameters": {"reg": 1}}}, "`search_space` bounds what is searched"),
    ({"training": {"timeout": "10min"}}, "did you mean `timeout_seconds: 600`?"),
    ({"training": {"metric": "precision"}}, "must be one of 'ndcg', 'map', 'recall' or 'hit'"),
    ({"training": {"metric": "ndgc"}}, "did you mean 'ndcg'?"),
    ({"training": {"algorithms": "IALS"}}, "write ['IALS']"),
    ({"training": {"algorithms": ["knn"]}}, "did you mean CosineKNNRecommender?"),
    ({"training": {"algorithms": ["svd"]}}, "did you mean TruncatedSVDRecommender?"),
    ({"training": {"algorithms": ["popular"]}}, "did you mean TopPopRecommender?"),
    ({"training": {"algorithms": ["EASE"]}}, "did you mean DenseSLIMRecommender?"),
    ({"training": {"algorithms": ["LightGCN"]}}, "allowed: IALSRecommender"),
    ({"training": {"algorithm": "IALS"}}, "did you mean `algorithms: ['IALS']`?"),
    (
        {"training": {"algorithms": ["IALS"], "search_space": {"IALS": {"factors": [1, 2]}}}},
        "searched parameters: n_components",
    ),
    ({"training": {"algorithms": ["IALS"], "per_algorithm_trials": {"TopPop": 3}}}, "`algorithms` does not list"),
    ({"training": {"recency": "search", "split": {"scheme": "random"}}}, "such as leave_one_out"),
    ({"training": {"time_decay": 30}}, "write {'half_life': '30d'}"),
    ({"metric": "map", "training": {"metric": "ndcg"}}, "keep one"),
    ({"output": {"path": "model.pkl"}}, "must end in .svc"),
    ({"output": {"file": "a.svc"}}, "it is `path`"),
    ({"output": {"path": "a.svc", "keep": 3}}, "needs versioning: append_sha"),
    ({"output": {"path": "a.svc", "expires_after": "30 days"}}, "did you mean 30d?"),
    ({"name": 7}, "in quotes if it looks like a number"),
    ({"cleansing": {"dedup": "first"}}, "did you mean 'keep_first'?"),
    ({"cleansing": {"filter": {"rating": {"gte": 4}}}}, "it is `where`"),
    ({"filters": {"rating": {"gte": 4}}}, "`cleansing.where` filters rows"),
    ({"cleansing": {"where": "rating >= 4"}}, "write {'rating': {'gte': 4}}"),
    ({"cleansing": {"where": {"rating": {"gte": 4}, "lang": {"any": ["en"]}}}}, "must all hold stand in a list"),
    ({"cleansing": {"where": {"day": {"gte": "2024-01-01"}}}}, "this is a date"),
    ({"cleansing": {"where": {"rating": {">=": 4}}}}, "did you mean 'gte'?"),
    ({"cleansing": {"where": {"lang": {"eq": "en"}}}}, "compare text by `any`, with a list"),
    ({"cleansing": {"where": {"lang": {"any": "en"}}}}, "give a list of 1 to 1000 strings"),
    ({"cleansing": {"event_weights": {"buy": 3}}}, "needs schema.event_column, the column whose values"),
    ({"features": {"items": {}}}, "did you mean `item`?"),
    ({"item_metadata": "items.csv"}, "as in {'source': {'type': 'csv', 'path': 'items.csv'}, 'id_column': 'item_id'"),
    ({"item_metadata": {"type": "csv", "path": "a.csv", "id_column": "i", "fields": ["t"]}}, "belongs under `source`"),
    ({"metadata": {"source": {"type": "csv", "path": "a.csv"}}}, "did you mean `item_metadata`?"),
    ({"serving": {"fallback": "popularity"}}, "did you mean 'popular'?"),
    ({"serving": {"new_items": {"source": {"type": "csv", "path": "n.csv"}}}}, "needs features.item"),
    ({"item_metadata": METADATA, "serving": {"filter": {"genre": {"any": ["Drama"]}}}}, "did you mean 'genres'?"),
    ({"promotion": True}, "write {'mode': 'enforce'}"),
    ({"source": {"type": "csv", "path": "${SVC_RECIPE_TOKEN}.csv"}}, "looks like a secret by its name"),
    ({"source": {"type": "csv", "path": "${DATA}.csv"}}, "only ${SVC_RECIPE_<NAME>} is expanded"),
    ({"source": {"type": "csv", "path": "${SVC_RECIPE_DAY}.csv"}}, "export it or give --env-var SVC_RECIPE_DAY="),
    ("", "the file is empty; a recipe is a mapping with keys such as `name` and `source`"),
    ("- a\n- b\n", "a recipe is a mapping with keys such as `name` and `source`; found a list of 2"),
    ("name: a\n\tsource: b\n", "indent with spaces, not tabs"),
    ("name: a: b\n", "a value that holds ': ' needs quotes"),
    ("name:a\n\nsource: b\n", "write a blank after `name:`"),
    ("name: a\n  source: b\n", "indent the keys of one block alike"),
    ("name: a\nname: b\n", "appears twice; keep one"),
    ("user,item\nu1,i1\n", "a recipe is a mapping with keys such as `name` and `source`; found the text"),
    ("name: a\n---\nname: b\n", "a recipe is one document"),
]


@pytest.mark.parametrize(("more", "told"), RECIPES, ids=map(str, range(len(RECIPES))))
def test_errors_of_recipes_name_the_remedy(more: dict[str, Any] | str, told: str, tmp_path: Path) -> None:
    """The message uses the terms of recipes, and no terms of pydantic or Python."""
    said = refusal(tmp_path, more, check_source=check_spec)
    assert told in said
    assert not any(word in said for word in INTERNAL)


_VALUE = re.compile(
    r"(?:; write (?!dsn_env|`|one of|\"|[^ ]+ for days;)|as in |did you mean (?![`:]))"
    "(.+?)(?:[?]|$| for days| for [0-9]+%|, or with)"
)
_KEY = re.compile(r"(?:did you mean|it is|it belongs at) `([a-z_.]+)(?:: (.+))?`(?!, which)")


def _mend(recipe: dict[str, Any], line: str) -> tuple[dict[str, Any], list[str]] | None:
    """Return the recipe with the suggestion of one line, and the place of the suggestion, or None without one."""
    where, _, said = line.partition(": ")
    place = [part for part in re.split("[].[]+", where) if part]
    value, key = _VALUE.search(said), _KEY.search(said)
    if (key is None and value is None) or "operators are" in said or "no filter field" in said or "whole path" in said:
        return None
    recipe = copy.deepcopy(recipe)
    block: Any = recipe
    for part in place[:-1]:
        block = block[int(part) if part.isdigit() else part]
    if key is None:
        condition = said.split(":")[0] if "a condition is" in said else None
        place[-1:] = [place[-1], condition] if condition else place[-1:]
        last = int(place[-1]) if place[-1].isdigit() else place[-1]
        block[last if condition is None else place[-2]] = yaml.safe_load(value[1])
        return recipe, place
    given = block.pop(place[-1])
    place = key[1].split(".") if "." in key[1] else [*place[:-1], key[1]]
    block = recipe
    for part in place[:-1]:
        block = block.setdefault(part, {}) if isinstance(block, dict) else block[int(part)]
    block[place[-1]] = yaml.safe_load(key[2]) if key[2] else given
    return recipe, place


@pytest.mark.parametrize("more", [more for more, _ in RECIPES if isinstance(more, dict)], ids=str)
def test_every_suggested_key_and_value_is_valid_at_the_suggested_place(more: dict[str, Any], tmp_path: Path) -> None:
    """Each suggestion and each example is fed back. Afterwards, nothing at its place is refused, only missing."""
    said = refusal(tmp_path, more, check_source=check_spec)
    lines = [line.split("recipe.yaml: ")[-1].strip() for line in said.splitlines()]
    for recipe, place in filter(None, [_mend({**BASE, **more}, line) for line in lines]):
        try:
            load(tmp_path, recipe, check_source=check_spec)
        except SvcError as error:
            for again in error.message.splitlines():
                where = again.split("recipe.yaml: ")[-1].strip().partition(": ")[0]
                parts = [part for part in re.split("[].[]+", where) if part]
                about = all(a == b for a, b in zip(parts, place, strict=False)) and "problems" not in again
                assert not about or "is missing" in again or " needs " in again, (said, again)


COMMANDS: list[tuple[list[str], int, str]] = [
    (["trian", "r.yaml"], 2, "train"),
    (["--verbose", "train", "r.yaml"], 2, "options stand behind the command, as in `svc train --verbose`"),
    (["train", "r.yaml", "--trials", "3"], 2, "write it in the recipe, at `training.n_trials`"),
    (["recommend", "r.yaml", "--user", "u1"], 2, "`--users` takes a file with an id in each line"),
    (["train", "absent.yaml"], 2, "absent.yaml"),
    (["train"], 2, "RECIPE"),
    (["serve"], 2, "--recipes"),
    (["serve", "--recipes", "absent"], 2, "is not a folder"),
    (["keygen", "--kid", "a b"], 2, "letters, digits"),
    (["status", "localhost:1"], 2, "v1/health/details"),
    (["inspect", "absent.svc"], 5, "absent.svc does not exist"),
    (["report", "absent.svc"], 5, "absent.svc does not exist"),
    (["recommend", "absent.svc", "--output", "x.csv"], 5, "absent.svc does not exist"),
    (["recommend", "absent.yaml", "--output", "x.csv"], 2, "absent.yaml"),
    (["history", "absent.yaml"], 2, "absent.yaml"),
    (["inspect", "s3://bucket/absent.svc"], 8, "SVC_SIGNING_KEYS"),
    (["train", "r.yaml", "--lock-timeout", "-2"], 2, "zero or more seconds"),
    (["fit", "r.yaml"], 2, "did you mean `svc train`?"),
    (["run"], 2, "did you mean `svc serve`?"),
    (["predict"], 2, "did you mean `svc recommend`?"),
    (["init"], 2, "did you mean `svc demo`?"),
    (["version"], 2, "did you mean `svc --version`?"),
    (["list"], 2, "did you mean `svc history`?"),
    (["evaluate", "r.yaml"], 2, "`svc.evaluate` in Python"),
    (["train", "r.yml"], 2, "there is no such file; did you mean r.yaml?"),
    (["train", "books.yaml"], 2, "did you mean recipes/book.yaml?"),
    (["train", "r.yaml", "--set", "training.n_trials=3"], 2, "`--env-var SVC_RECIPE_X=value`"),
    (["inspect", "a.svc", "--set", "a=1"], 2, "No such option: --set. See: svc inspect --help"),
    (["forget", "r.yaml", "u1"], 2, "give it as `--user ID`"),
    (["recommend", "r.yaml", "u1"], 2, "give it as `--users FILE`"),
    (["rollback", "r.yaml", "3f9a1c07"], 2, "give it as `--to SHA8`"),
    (["keygen", "--name", "k1"], 2, "the id of a key is its `--kid`"),
    (["server"], 2, "Did you mean 'serve'?"),
    (["bench"], 2, "python -m benchmarks load"),
    (["--verison"], 2, "--version"),
    (["train", "r.yaml", "--n-trials", "5"], 2, "at `training.n_trials`"),
    (["train", "r.yaml", "--metric", "ndcg"], 2, "at `training.metric`"),
    (["train", "r.yaml", "--seed", "1"], 2, "at `training.seed`"),
    (["train", "r.yaml", "--output", "a.svc"], 2, "write it in the recipe, at `output`"),
    (["train", "--recipe", "r.yaml"], 2, "named without an option"),
    (["train", "r.yaml", "--verbos"], 2, "--verbose"),
    (["train", "r.yaml", "--env-var", "A=1"], 2, "give SVC_RECIPE_<NAME>=<value>"),
    (["train", "r.yaml", "r2.yaml"], 2, "r2.yaml"),
    (["train", "rows.csv"], 2, "names it as source: {type: csv, path: rows.csv}"),
    (["validate", "rows.csv"], 2, "is a table of data; write a recipe"),
    (["train", "a.svc"], 2, "name the recipe, a YAML file"),
    (["train", "."], 2, "name the recipe file in it"),
    (["validate"], 2, "RECIPE"),
    (["serve", "r.yaml"], 2, "serve takes a folder, as `svc serve --recipes FOLDER`"),
    (["serve", "--recipe", "r.yaml"], 2, "--recipes"),
    (["serve", "--recipes", "r.yaml"], 2, "name the folder that holds the recipes"),
    (["serve", "--recipes", ".", "--port", "99999"], 2, "less than or equal to 65535"),
    (["serve", "--recipes", ".", "--workers", "many"], 2, "neither a whole number from 1 to 64 nor auto"),
    (["serve", "--recipes", ".", "--insecure"], 2, "--insecure-no-auth"),
    (["serve", "--recipes", ".", "--dev-allow-unsigned"], 8, "needs SVC_ENV=development"),
    (["inspect", "r.yaml"], 2, "r.yaml is a recipe; this takes its artifact, the .svc file at its `output.path`"),
    (["report", "r.yaml"], 2, "is a recipe"),
    (["inspect", "rows.csv"], 2, "rows.csv is a table; this takes an artifact, a .svc file"),
    (["recommend", "a.svc"], 2, "ends with .parquet, .csv or .jsonl"),
    (["recommend", "a.svc", "--output", "x.csv", "--limit", "0"], 2, "greater than or equal to 1"),
    (["recommend", "a.svc", "--output", "x.csv", "--shard", "3/2"], 2, "such as 0/16"),
    (["recommend", "a.svc", "--output", "x.csv", "--filter", "genres:Drama"], 2, "needs a recipe"),
    (["promote", "r.yaml"], 2, "the first digits that `svc history r.yaml` shows"),
    (["keygen", "--type", "singing"], 2, "'--type': 'singing' is not one of 'signing', 'api'"),
    (["demo", "--folder", "r.yaml"], 2, "is a file"),
    (["demo", "--folder", "."], 2, "name an empty or a new folder"),
]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("arguments", "exit_code", "told"), COMMANDS, ids=map(str, range(len(COMMANDS))))
def test_errors_of_commands_name_the_remedy(
    arguments: list[str], exit_code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command ends with the expected exit code, and stderr has the advice."""
    Path("recipes").mkdir()
    for path in ("r.yaml", "recipes/book.yaml"):
        Path(path).write_text(yaml.safe_dump(BASE), encoding="utf-8")
    Path("rows.csv").write_text(INTERACTIONS, encoding="utf-8")
    Path("a.svc").touch()
    assert main.run(arguments) == exit_code
    assert told in capsys.readouterr().err


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Change to an empty folder without keys, and return it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SVC_SIGNING_KEYS", raising=False)
    return tmp_path


INTERACTIONS = "user,item\n" + "".join(f"u{user},i{item}\n" for user in range(20) for item in range(20))
TIMES = INTERACTIONS.replace("\n", ",1700000000\n").replace("item,1700000000", "item,when", 1)
ITEMS = "item,year\ni1,1999\n"
TIMED = "{user_column: user, item_column: item, time_column: when}"
WEIGHED = "{user_column: user, item_column: item, weight_column: when}"
IN_MS = "{user_column: user, item_column: item, time_column: when, time_unit: ms}"
PLAIN = "{user_column: user, item_column: item}"
RANDOM = "training: {split: {scheme: random}}"
TABLES: list[tuple[str, str, str, str, int, str]] = [
    ("user,item\n", ITEMS, PLAIN, "", 4, "a header and no rows"),
    (INTERACTIONS, "item,year\ni1,1999\ni2,early\n", PLAIN, "", 5, "it is in data row 2"),
    (INTERACTIONS, "item,year\nbook-1,1999\nbook-2,2001\n", PLAIN, "", 5, "item_metadata has 0 of 20 items"),
    (INTERACTIONS, "item,year\ni1,1999\ni1,2001\n", PLAIN, "", 0, "'i1' occurs more than once"),
    (INTERACTIONS, "id,year\ni1,1999\n", PLAIN, "", 3, "has no column item; it has id, year (code"),
    ("", ITEMS, PLAIN, "", 3, "rows.csv"),
    (INTERACTIONS.replace(",", ";"), ITEMS, PLAIN, "", 3, "delimiter"),
    ("<!DOCTYPE html>\n<p>Gone</p>\n", ITEMS, PLAIN, "", 3, "this is a page of HTML or XML, not a table"),
    (f"# of May\n{INTERACTIONS}", ITEMS, PLAIN, "", 3, "set `skip_rows: 1` to skip the line above the header"),
    (INTERACTIONS.split("\n", 1)[1], ITEMS, PLAIN, "", 3, "header: null"),
    (INTERACTIONS, ITEMS, "{user_column: User, item_column: item}", "", 3, "did you mean 'user'? it has user, item"),
    (INTERACTIONS, ITEMS, TIMED, "", 3, "has no column when; it has user, item (code"),
    (INTERACTIONS, ITEMS, TIMED, RANDOM, 3, "has no column when; it has user, item (code"),
    (TIMES, ITEMS, TIMED, "", 4, "1700000000 is a time near today in s"),
    (TIMES, ITEMS, TIMED, RANDOM, 4, "say what they count in schema.time_unit"),
    (TIMES, ITEMS, IN_MS, "", 0, "set schema.time_unit: s?"),
    (TIMES, ITEMS, IN_MS, RANDOM, 0, "set schema.time_unit: s?"),
    (
        TIMES.replace("1700000000", "monday"),
        ITEMS,
        TIMED,
        "",
        4,
        "no ISO 8601 date or time, such as 2024-05-31T12:00:00Z",
    ),
    (TIMES.replace("1700000000", "monday"), ITEMS, TIMED, RANDOM, 4, "mend schema.time_column or schema.time_unit"),
    (TIMES, ITEMS, WEIGHED, "", 0, "which look like times"),
    (TIMES.replace("1700000000", "0"), ITEMS, WEIGHED, "", 4, "no row has a 'when' above 0: is it the weight?"),
    (TIMES.replace("1700000000", "5").replace("u1,i1,5", "u1,i1,1"), ITEMS, PLAIN, "", 0, "is not used: every row"),
    (INTERACTIONS + INTERACTIONS.split("\n", 1)[1], ITEMS, PLAIN, "", 0, "rows repeat an earlier choice"),
    (INTERACTIONS, ITEMS, "{user_column: item, item_column: user}", "", 5, "are they swapped?"),
    (INTERACTIONS.replace("u1,", ",").replace("u2,", ","), ITEMS, PLAIN, "", 0, "'user' is blank in 40 rows"),
    (
        INTERACTIONS,
        ITEMS,
        PLAIN,
        "cleansing: {where: {lang: {any: [en]}}}",
        3,
        "has no column lang; it has user, item (code",
    ),
    (
        INTERACTIONS,
        ITEMS,
        PLAIN,
        "cleansing: {where: {user: {any: [U1]}}}",
        4,
        "keeps 0 of the first 400 rows: compare its values",
    ),
    (
        INTERACTIONS,
        ITEMS,
        PLAIN,
        "cleansing: {where: {user: {gte: 4}}}",
        4,
        "not a number: write numbers with a point, or compare texts by `any`, with a list",
    ),
]


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_validate_reports_errors_that_a_server_would_have(
    number: int, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`svc validate` reads the first rows of the sources and trains nothing."""
    interactions, metadata, schema, more, exit_code, told = TABLES[number]
    (elsewhere / "rows.csv").write_text(interactions, encoding="utf-8")
    (elsewhere / "items.csv").write_text(metadata, encoding="utf-8")
    recipe = elsewhere / "books.yaml"
    recipe.write_text(
        f"""\
name: books
source: {{type: csv, path: rows.csv}}
schema: {schema}
item_metadata:
  source: {{type: csv, path: items.csv}}
  id_column: item
  filter_fields: [{{name: year, kind: numerical}}]
output: {{path: books.svc}}
{more}
""",
        encoding="utf-8",
    )
    assert main.run(["validate", str(recipe)]) == exit_code
    assert told in capsys.readouterr().out


FRAME = pd.DataFrame({"user_id": ["a", "a", "b"], "item_id": ["x", "y", "x"], "ts": [1_700_000_000] * 3})
TRAININGS: list[tuple[Any, dict[str, Any], str]] = [
    (FRAME, {"user": "user"}, "did you mean 'user_id'?"),
    (FRAME, {"time": "when"}, "it has user_id, item_id, ts"),
    (FRAME, {"time": "ts"}, "svc.train(..., time_unit=...)"),
    (FRAME, {"time": "ts", "time_unit": "sec"}, "did you mean 's'?"),
    (FRAME, {"n_trial": 3}, "did you mean `n_trials`?"),
    (FRAME, {"algorithm": "IALS"}, "did you mean `algorithms: ['IALS']`?"),
    (FRAME, {"limit": 4}, "the page on recipes lists the valid arguments"),
    (FRAME.set_index("user_id"), {}, "no column 'user_id', but the index user_id: give data.reset_index()"),
    (FRAME.rename_axis("row"), {"user": "user"}, "did you mean 'user_id'?"),
    (FRAME.pivot_table(index="user_id", columns="item_id"), {}, "or data.stack().reset_index() of a pivot table"),
    (FRAME, {"algorithms": "IALS"}, "write ['IALS']"),
    (FRAME, {"metric": "ndcg@10"}, "write `metric: ndcg` and `training.cutoff: 10`"),
    (FRAME, {"split": "temporal"}, "write {'scheme': 'time_user'}"),
    (FRAME, {"random_state": 1}, "it is `seed`"),
    (FRAME, {"test_size": 0.2}, "it belongs at `training.split.heldout_ratio`"),
    (FRAME, {"k": 5}, "it is `cutoff`"),
    (FRAME, {"user_column": "user_id"}, "did you mean user?"),
    (FRAME, {"name": "my model"}, "letters, digits, hyphens and underscores"),
    (FRAME, {"output": "a.svc"}, "write {'path': 'a.svc'}"),
    (FRAME, {"refit": True}, "without `output` there is none"),
    (FRAME.iloc[:0], {}, "there is nothing to train on"),
    (FRAME[["user_id"]], {}, "data has no column 'item_id'"),
    (FRAME.assign(user_id=[1.5, 2, 3]), {}, "1.5 is not a whole number: is 'user_id' the column of ids?"),
    (FRAME.assign(user_id=[1.0, 2, 3]), {}, "write data['user_id'] = data['user_id'].astype('Int64').astype(str)"),
    (FRAME.assign(user_id=[None, "a", "b"]), {}, "data.dropna"),
    (FRAME.assign(item_id=[["x"], ["y"], ["z"]]), {}, "data.explode('item_id') makes a row of each"),
    (7, {}, "give a DataFrame with one row per interaction, or a recipe"),
    ([("a", "x")], {}, "give a DataFrame with one row per interaction, or a recipe"),
    ([{"user_id": "a", "item_id": "x"}], {}, "pd.DataFrame(data) makes one of a list of dicts"),
    ("absent.yaml", {}, "there is no such file"),
    ({"name": "a"}, {}, "source: is missing; write {'type': 'csv', 'path': 'data.csv'}"),
]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("number", range(len(TRAININGS)))
def test_errors_of_trainings_in_python_name_the_remedy(number: int) -> None:
    """`svc.train` raises an SvcError whose message has the advice."""
    data, options, told = TRAININGS[number]
    with pytest.raises(SvcError) as caught:
        svc.train(data, **options)
    assert told in caught.value.message


QUESTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("recommend", {"user_id": "nobody"}, "fallback: popular answers anyway"),
    ("recommend", {"user_id": 7}, "use str(7)"),
    ("recommend", {"user_id": ["u1", "u2"]}, "recommend_many takes several users"),
    ("recommend", {"user_id": "u1", "limit": 0}, "greater than or equal to 1"),
    ("recommend", {"user_id": "u1", "limit": "5"}, "whole number without quotes"),
    ("recommend", {}, "give user_id, user_features, history or fallback"),
    ("recommend", {"history": "i1"}, "give a list, such as ['i1']"),
    ("recommend", {"history": ["none"]}, "fallback: popular answers anyway"),
    (
        "recommend",
        {"user_id": "u1", "filter": {"genre": {"any": ["War"]}}},
        "give svc.load or svc.train a DataFrame as items=",
    ),
    ("recommend", {"user_id": "u1", "diversity": 5}, "less than or equal to 1"),
    ("related", {"seed_items": "i1"}, "give a list, such as ['i1']"),
    ("related", {}, "give seed_items or item_features"),
    ("score", {"users": "u1", "items": ["i1"]}, "give a list, such as ['u1']"),
]
LOADS: list[tuple[str, dict[str, Any], str]] = [
    ("absent.svc", {}, "absent.svc does not exist"),
    ("a.svc", {}, "no keys to verify with: give `keys`"),
    ("a.svc", {"keys": "abc"}, "keys: entry 1 has no valid kid; give <kid>:<64 hex characters>"),
    ("a.svc", {"keys": "b:" + "22" * 32}, "the kids here are b: add k1:<64 hex characters>"),
    ("a.svc", {"keys": SIGNING_KEYS, "items": 7}, "give a DataFrame with a row for each item"),
    ("a.svc", {"keys": SIGNING_KEYS, "items": FRAME[["ts"]]}, "has no column 'item_id'"),
]


@pytest.mark.usefixtures("elsewhere")
def test_errors_of_questions_in_python_name_the_remedy() -> None:
    """`svc.load` and each method of a recommender raise an SvcError whose message has the advice."""
    write_artifact(Path("a.svc"), MODELS["neighbours"](), head=header(recipe_name="books"))
    model = svc.load("a.svc", keys=SIGNING_KEYS)
    calls = [(partial(getattr(model, method), **asked), told) for method, asked, told in QUESTIONS]
    calls += [(partial(svc.load, path, **options), told) for path, options, told in LOADS]
    for call, told in calls:
        with pytest.raises(SvcError) as caught:
            call()
        assert told in caught.value.message


def test_names_of_other_libraries_get_a_hint_in_python() -> None:
    """Attributes and arguments that svc lacks name what svc has, and a result of a training can be judged."""
    rows = [(f"u{user}", f"i{item}") for user in range(30) for item in range(30) if (user + item) % 3]
    table = pd.DataFrame(rows, columns=["user_id", "item_id"])
    result = svc.train(table, algorithms=["TopPop"], n_trials=1, progress=False)
    for owner in (svc, result, result.recommender):
        with pytest.raises(AttributeError, match=r"has no attribute 'predict': .*recommend\(user_id\)"):
            owner.predict  # noqa: B018 - the attribute is looked up
    with pytest.raises(AttributeError, match=r"similar_items\(item_id\) has similar items"):
        result.similar  # noqa: B018 - the attribute is looked up
    with pytest.raises(AttributeError, match=r"similar_items\(item_id\) has similar items"):
        result.recommender.recommend_related  # noqa: B018 - the attribute is looked up
    with pytest.raises(SvcError, match=r"svc.load\(path\) opens an artifact"):
        svc.Recommender("a.svc")  # type: ignore[arg-type]
    with pytest.raises(SvcError, match=r"write metrics=\['ndcg'\], cutoff=10"):
        svc.evaluate(result, table, metrics=["ndcg@10"])
    with pytest.raises(SvcError, match=r"'ndcg@x' is none of ndcg, map, recall, hit$"):
        svc.evaluate(result, table, metrics=["ndcg@x"])
    with pytest.raises(TypeError, match="argument 'k'; did you mean limit"):
        result.recommender.recommend("u1", k=5)
    later = pd.DataFrame({"user_id": ["u0"], "item_id": ["i0"]})
    assert svc.evaluate(result, later).n_users == 1
    for function in (svc.evaluate, svc.compare):
        with pytest.raises(TypeError, match="argument 'k'; did you mean cutoff"):
            function(result, later, k=5)
    with pytest.raises(SvcError, match=r"not a TrainResult; it has a `.recommender`"):
        svc.load(result)  # type: ignore[arg-type]
    with pytest.raises(SvcError, match=r"user: name a column of data; svc.evaluate\(result, table\) judges"):
        svc.train(table, later)  # type: ignore[arg-type]
