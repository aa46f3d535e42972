"""Error answers: their status and code, and the hint of a filter that no item satisfies."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from structlog.testing import capture_logs

from svc.serving.api import failures
from tests.serving.api.verbs.test_filters import filtering
from tests.serving.client import BATCH, RECOMMEND, RELATED, serving

pytestmark = pytest.mark.anyio


CASES: list[tuple[str, str, Any, int, str]] = [
    ("unknown user", RECOMMEND, {"user_id": "nobody"}, 404, "UNKNOWN_USER"),
    ("unknown seeds", RELATED, {"seed_items": ["x"]}, 404, "UNKNOWN_SEED_ITEMS"),
    (
        "nothing left",
        RELATED,
        {"seed_items": ["i0"], "exclude_items": [f"i{i}" for i in range(60)]},
        404,
        "NO_CANDIDATES",
    ),
    (
        "nothing left, cold",
        RECOMMEND,
        {"user_features": {}, "exclude_items": [f"i{i}" for i in range(60)]},
        404,
        "NO_CANDIDATES",
    ),
    ("unknown recipe", "/v1/recipes/none:recommend", {"user_id": "u1"}, 404, "RECIPE_NOT_FOUND"),
    ("stub", "/v1/recipes/stub:recommend", {"user_id": "u1"}, 503, "RECIPE_UNAVAILABLE"),
    ("stub, batch", "/v1/recipes/stub:batch-recommend", {"requests": [{"user_id": "u1"}]}, 503, "RECIPE_UNAVAILABLE"),
    ("no features", "/v1/recipes/plain:recommend", {"user_features": {"age": 3}}, 400, "FEATURES_NOT_SUPPORTED"),
    ("bad feature", RECOMMEND, {"user_features": {"age": 1e9}}, 400, "FEATURE_VALUE_UNUSABLE"),
    ("broken scorer", "/v1/recipes/broken:recommend", {"user_id": "u1"}, 500, "INTERNAL_ERROR"),
    ("bad path", "/v1/recipes/movies:explode", {}, 404, "NOT_FOUND"),
    ("bad name", "/v1/recipes/a.b:recommend", {}, 404, "NOT_FOUND"),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
async def test_failures_have_their_status_and_code(path: str, body: Any, status: int, code: str) -> None:
    """Every error body has request_id, detail and code, and no internals of the server."""
    async with serving() as (client, _):
        answer = await client.post(path, body, headers={"x-request-id": "abc-1"})
    assert (answer.status, answer.json["code"]) == (status, code)
    assert list(answer.json) == ["request_id", "detail", "code"]
    assert answer.json["request_id"] == answer.headers["x-request-id"] == "abc-1"
    assert "secret" not in answer.body.decode()


async def test_tracebacks_are_limited_to_the_first_failures_of_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every failure is logged, but only the first ones with a traceback."""
    monkeypatch.setattr(failures, "_last_tracebacks", deque(maxlen=failures.TRACEBACKS_A_MINUTE))
    async with serving() as (client, _):
        with capture_logs() as logs:
            for _ in range(3 * failures.TRACEBACKS_A_MINUTE):
                assert (await client.post("/v1/recipes/broken:recommend", {"user_id": "u1"})).status == 500
    failed = [record for record in logs if record["event"] == "request_failed"]
    assert len(failed) == 3 * failures.TRACEBACKS_A_MINUTE
    assert sum(record.get("exc_info") is not None for record in failed) == failures.TRACEBACKS_A_MINUTE


EMPTY = "no item is left to recommend after exclusions"
DRAMA = "genres has no value 'drama'; did you mean 'Drama'?"
YEARS = "no item has year in this range; its numbers are from 1991 to 2049"
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"genres": {"any": ["drama"]}}, f"{EMPTY}: {DRAMA}"),
    ({"genres": {"all": ["Comedy", "drama"]}}, f"{EMPTY}: {DRAMA}"),
    ({"all": [{"year": {"gt": 1990}}, {"genres": {"any": ["drama"]}}]}, f"{EMPTY}: {DRAMA}"),
    ({"genres": {"any": ["zzz"]}}, f"{EMPTY}: genres has no value 'zzz'"),
    ({"year": {"gt": 3000}}, f"{EMPTY}: {YEARS}"),
    ({"year": {"gt": 2000, "lt": 1995}}, f"{EMPTY}: {YEARS}"),
    ({"all": [{"genres": {"any": ["War"]}}, {"not": {"genres": {"any": ["War"]}}}]}, EMPTY),
]


async def test_a_condition_that_no_item_satisfies_is_named() -> None:
    """The error suggests the most similar value, or gives the range of numbers. Elements of a batch get it, too."""
    bodies = [{"user_id": "u3", "filter": tree} for tree, _ in MESSAGES]
    async with filtering() as (client, _):
        answers = [await client.post(RECOMMEND, body) for body in bodies]
        batch = (await client.post(BATCH, {"requests": bodies})).json
    expected = [message for _, message in MESSAGES]
    assert {(answer.status, answer.json["code"]) for answer in answers} == {(404, "NO_CANDIDATES")}
    assert [answer.json["detail"] for answer in answers] == expected
    assert [element["detail"] for element in batch["results"]] == expected
