"""Random filters for fuzz tests, most of them valid, some with an invalid part."""

from __future__ import annotations

import random
from typing import Any

KINDS = {"genres": "multi_label", "country": "categorical", "year": "numerical"}
LABELS = ("Comedy", "Drama", "War", "d e", "é", "none such")
NUMBERS = (0, -1, 1960, 1990.5, 2**53, 1e308)
ODD: tuple[Any, ...] = (
    *(None, True, 7, -1.5, "", " ", "all", "\ud800", "x" * 9000, [], {}, [[]], [None], {"": 1}, {"any": 1}),
    *({"not": []}, {"all": {}}, {"any": []}, {"genres": {}}, {"genres": {"any": []}}, {"genres": {"any": [7]}}),
    *({"year": {"gte": "1990"}}, {"year": {"any": [1990]}}, {"year": {"exists": 1}}, {"yaer": {"gte": 1990}}),
    *({"genres": {"any": ["Comedy"] * 1001}}, {"all": [{"year": {"lt": 1}}] * 33}, {"a": 1, "b": 2}),
)


def condition(rng: random.Random) -> dict[str, Any]:
    """Return a valid condition over a declared field."""
    field = rng.choice(list(KINDS))
    if rng.random() < 0.1:
        return {field: {"exists": rng.random() < 0.5}}
    if field == "year":
        operators = rng.sample(("gt", "gte", "lt", "lte", "eq"), rng.randint(1, 3))
        return {field: {operator: rng.choice((rng.randint(1950, 2030), *NUMBERS)) for operator in operators}}
    operator = "all" if field == "genres" and rng.random() < 0.3 else "any"
    n_values = rng.choice((1, 1, 2, 3, 5, 40, 400))
    return {field: {operator: [rng.choice((*LABELS, f"g{rng.randint(0, 30)}")) for _ in range(n_values)]}}


def tree(rng: random.Random, depth: int = 0) -> Any:
    """Return a filter of valid conditions, which may exceed the limits a little."""
    draw = rng.random()
    if depth >= 8 or draw < 0.35 + 0.08 * depth:
        return condition(rng)
    if draw < 0.6:
        return {"not": tree(rng, depth + 1)}
    return {rng.choice(("all", "any")): [tree(rng, depth + 1) for _ in range(rng.choice((1, 2, 2, 3, 6)))]}


def spoiled(rng: random.Random, given: Any) -> Any:
    """Return `given` with a part of it, or all of it, replaced by an odd value."""
    if not given or rng.random() < 0.3 or not isinstance(given, dict | list):
        return rng.choice(ODD)
    if isinstance(given, list):
        place = rng.randrange(len(given))
        return [*given[:place], spoiled(rng, given[place]), *given[place + 1 :]]
    key = rng.choice(list(given))
    rest = {name: part for name, part in given.items() if name != key}
    if rng.random() < 0.2:
        return {**rest, rng.choice(("", "not", "genre", "gte", "\ud800", key * 2)): given[key]}
    return {**rest, key: spoiled(rng, given[key])}


def fuzzed(rng: random.Random) -> Any:
    """Return a random filter. Two in three have no invalid part."""
    made = tree(rng)
    return spoiled(rng, made) if rng.random() < 1 / 3 else made


def widest(rng: random.Random) -> dict[str, Any]:
    """Return the largest filter allowed: 32 conditions of 1,000 values each."""
    return {"any": [{"country": {"any": [f"c{rng.randrange(10**9)}" for _ in range(1000)]}} for _ in range(32)]}
