"""The mistakes of a first hour: what people write who know other products, and what they are told.

Each row is something that a newcomer wrote, with the part of the message that has the way out. The words of
whole messages are tested beside the modules that write them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from svc.cli import main
from svc.serving.models.policy import Policy
from svc.sources.base import check_spec
from tests.recipe.loading import METADATA, refusal
from tests.serving.api.verbs.test_filters import filtering
from tests.serving.client import BATCH, RECOMMEND, RELATED

INTERNAL = ("Tuple", "a valid integer", "Extra inputs", "after validation", "must match ^", "Traceback")
U1 = {"user_id": "u1"}

REQUESTS: list[tuple[str, dict[str, Any], str]] = [
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
    (RECOMMEND, {**U1, "filters": {"genres": {"any": ["War"]}}}, "did you mean filter?"),
    (RECOMMEND, {"item_id": "i1"}, ":recommend-related takes seed_items"),
    (RELATED, {"item_id": "i1"}, "did you mean seed_items?"),
    (RELATED, {"items": ["i1"]}, "did you mean seed_items?"),
    (RELATED, {"user_id": "u1"}, ":recommend takes user_id"),
    (RELATED, {}, "give seed_items or item_features"),
    (RELATED, {"seed_items": ["none"]}, "none of the seed items is in the training data"),
    (RECOMMEND, {"user_id": "nobody"}, "user_features can stand in for it"),
    (RECOMMEND, {"history": ["none"]}, "no item of the history is in the training data"),
    (RECOMMEND, {**U1, "history_mode": "replace"}, "give history, or leave history_mode out"),
    (RECOMMEND, {**U1, "filter": {"genres": {"any": ["drama"]}}}, "genres has no value 'drama'; did you mean 'Drama'?"),
    (RECOMMEND, {**U1, "filter": {"genre": {"any": ["Drama"]}}}, "did you mean 'genres'?"),
    (RECOMMEND, {**U1, "filter": {"year": {"gt": 3000}}}, "there are numbers from 1991 to 2049"),
    (RECOMMEND, {**U1, "filter": {"year": {"gte": "2000"}}}, "a finite number"),
    (RECOMMEND, {**U1, "filter": []}, "an object with exactly one key"),
    (RECOMMEND, {**U1, "boosts": [{"field": "genres", "value": "War", "factor": 2}]}, "names its items by a filter"),
    (RECOMMEND, {**U1, "limits": [{"feild": "genres", "max": 3}]}, "did you mean field?"),
    (RECOMMEND, {**U1, "limits": [{"field": "genre", "max": 3}]}, "did you mean 'genres'?"),
    (RECOMMEND, {**U1, "limits": [{"field": "year", "max": 3}]}, "a field of numbers cannot be limited"),
    (RECOMMEND, {**U1, "pins": [{"item_id": "i1", "position": 0}] * 2}, "two pins have the same item_id"),
    (RECOMMEND, {**U1, "history": [{"item": "i1"}]}, 'an object {"item_id": ..., "weight": ...}'),
    (BATCH, {"request": [U1]}, "did you mean requests?"),
    (BATCH, {"requests": [{"user": "u1"}]}, "did you mean user_id?"),
    (BATCH, {"requests": [{**U1, "filter": {"genres": {"any": ["drama"]}}}]}, "did you mean 'Drama'?"),
    ("/v1/recipes/movies:recomend", U1, "did you mean :recommend?"),
    ("/v1/recipes/movies/recommend", U1, "did you mean :recommend?"),
]


@pytest.mark.anyio
async def test_a_mistaken_request_is_told_the_way_out() -> None:
    """In words of the API, single and in batches."""
    unexplained = []
    async with filtering() as (client, _):
        for path, body, told in REQUESTS:
            answer = await client.post(path, body)
            said = json.dumps(answer.json, ensure_ascii=False).replace('\\"', '"')
            if told not in said or any(word in said for word in INTERNAL):
                unexplained.append((path, body, said))
    assert unexplained == []


@pytest.mark.anyio
async def test_what_is_asked_and_not_done_is_said() -> None:
    """A pin that is not shown, and why; an empty question is answered by the fallback, as an empty history is."""
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


RECIPES: list[tuple[dict[str, Any], str]] = [
    ({"training": {"algorithms": ["IALSS"]}}, "did you mean IALSRecommender?"),
    ({"training": {"algorithms": ["als"]}}, "did you mean IALSRecommender?"),
    ({"training": {"algorithms": []}}, "must have at least one entry"),
    ({"training": {"time_decay": {"half_life": "30 days"}}}, "did you mean 30d?"),
    ({"training": {"time_decay": {"half_life": 30}}}, "write 30d for days"),
    ({"training": {"n_trials": "3x"}}, "must be a whole number"),
    ({"training": {"metric": "ndcg@10"}}, "write `metric: ndcg` and `training.cutoff: 10`"),
    ({"training": {"split": "time_user"}}, "write {scheme: time_user}"),
    ({"training": {"trials": 20}}, "did you mean `n_trials`?"),
    ({"n_trials": 20}, "it belongs at `training.n_trials`"),
    ({"promotion": "enforce"}, "write {mode: enforce}"),
    ({"promotion": {"mode": "enforce"}}, "needs output.versioning: append_sha"),
    ({"output": "artifacts/a.svc"}, "write {path: artifacts/a.svc}"),
    ({"output": {"path": "a.svc", "version": "append_sha"}}, "did you mean `versioning`?"),
    ({"source": "data/ratings.csv"}, "write {type: csv, path: data/ratings.csv}"),
    ({"source": {"type": "cvs", "path": "a.csv"}}, "did you mean"),
    ({"schema": {"user": "u", "item": "i"}}, "user_column"),
    ({"name": "my movies"}, "letters, digits, hyphens and underscores"),
    ({"item_metadata": {**METADATA, "filter_fields": ["genres"]}}, "write {name: genres, kind: categorical}"),
    (
        {"item_metadata": METADATA, "serving": {"boosts": [{"field": "genres", "value": "Drama", "factor": 2}]}},
        "a boost names its items by a filter",
    ),
    ({"cleansing": {"event_weights": {"buy": "3x"}}}, "must be a number, or 'exclude'"),
]


@pytest.mark.parametrize(("more", "told"), RECIPES, ids=map(str, range(len(RECIPES))))
def test_a_mistaken_recipe_is_told_the_way_out(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    """In the words of recipes."""
    said = refusal(tmp_path, more, check_source=check_spec)
    assert told in said
    assert not any(word in said for word in INTERNAL)


COMMANDS: list[tuple[list[str], int, str]] = [
    (["trian", "r.yaml"], 2, "train"),
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
]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("arguments", "exit_code", "told"), COMMANDS, ids=map(str, range(len(COMMANDS))))
def test_a_mistaken_command_is_told_the_way_out(
    arguments: list[str], exit_code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code of its kind."""
    assert main.run(arguments) == exit_code
    assert told in capsys.readouterr().err


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder to work in, without keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SVC_SIGNING_KEYS", raising=False)
    return tmp_path


INTERACTIONS = "user,item\n" + "".join(f"u{user},i{item}\n" for user in range(20) for item in range(10))
TABLES: dict[str, tuple[str, str, int, str]] = {
    "empty": ("user,item\n", "item,year\ni1,1999\n", 4, "a header and no rows"),
    "text": (INTERACTIONS, "item,year\ni1,1999\ni2,early\n", 5, "year"),
    "others": (INTERACTIONS, "item,year\nbook-1,1999\nbook-2,2001\n", 0, "none of the 2 ids of the first rows"),
    "twice": (INTERACTIONS, "item,year\ni1,1999\ni1,2001\n", 0, "'i1' is there more than once"),
}


@pytest.mark.parametrize("name", TABLES)
def test_validate_finds_what_a_server_would_stumble_over(
    name: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the first rows, before any training."""
    interactions, metadata, exit_code, told = TABLES[name]
    (elsewhere / "rows.csv").write_text(interactions, encoding="utf-8")
    (elsewhere / "items.csv").write_text(metadata, encoding="utf-8")
    recipe = elsewhere / "books.yaml"
    recipe.write_text(
        """\
name: books
source: {type: csv, path: rows.csv}
schema: {user_column: user, item_column: item}
item_metadata:
  source: {type: csv, path: items.csv}
  id_column: item
  filter_fields: [{name: year, kind: numerical}]
output: {path: books.svc}
""",
        encoding="utf-8",
    )
    assert main.run(["validate", str(recipe)]) == exit_code
    assert told in capsys.readouterr().out
