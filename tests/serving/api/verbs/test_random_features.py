"""Random feature maps: the refusal of each unusable one names its cause."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.client import serving

pytestmark = pytest.mark.anyio
MAPS = 1000
COLUMNS = ("tag", "age")
TEXTS = ("a", "b", "", " ", "日本語", "\u202e\u0000", "🦆" * 40, "x" * 9000, "-1", "NaN", "1e400", "a|b")
NUMBERS = (0, 41, -0.0, 89.5, 1e3, -1e300, 10**400, 2**63, 1e-320)


def _value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return chance.choice(TEXTS)
    if kind < 4:
        return chance.choice(NUMBERS)
    if kind == 4:
        return chance.choice((None, True, False))
    if kind == 5:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return {chance.choice(TEXTS): _value(chance, depth + 1)}
    return chance.uniform(10, 90)


def _map(chance: random.Random) -> dict[str, Any]:
    names = [*COLUMNS, *COLUMNS, "Tag", "år", "", "k" * 300]
    size = chance.choice((0, 1, 1, 2, 2, 3, 70))
    return {chance.choice(names) + ("" if size < 70 else str(i)): _value(chance) for i in range(size)}


def _bodies() -> Iterator[tuple[str, str, bytes]]:
    chance = random.Random(20_240)
    for _ in range(MAPS):
        side = chance.choice(("user", "item"))
        verb = "recommend" if side == "user" else "recommend-related"
        body = json.dumps({f"{side}_features": _map(chance)}, ensure_ascii=chance.random() < 0.5)
        yield side, verb, body.encode("utf-8", "surrogatepass")


async def test_random_features_cause_no_server_error() -> None:
    """No answer is a 5xx. The refusal of an unusable value names its column."""
    seen: Counter[str] = Counter()
    async with serving() as (client, _):
        for side, verb, body in _bodies():
            answer = await client.post(f"/v1/recipes/movies:{verb}", body)
            said = answer.json
            seen[said.get("code", "ok")] += 1
            assert answer.status in (200, 400, 422), (body, said)
            if answer.status == 400:
                assert said["code"] == "FEATURE_VALUE_UNUSABLE", (body, said)
                assert any(repr(column) in said["detail"] for column in COLUMNS), (body, said)
            elif answer.status == 422:
                assert any(f"{side}_features" in error["loc"] or not error["loc"] for error in said["errors"]), said
    assert set(seen) == {"ok", "FEATURE_VALUE_UNUSABLE", "VALIDATION_ERROR"}, seen
