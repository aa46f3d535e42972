"""Filters in exports: the recipe's own rules and --filter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.export.conftest import MODELS, N_ITEMS, Export, manifest_of, rows_of
from tests.serving.artifacts import write_artifact

RECIPE = """
name: shop
source: {type: csv, path: none.csv}
schema: {user_column: u, item_column: i}
item_metadata:
  source: {type: csv, path: items.csv}
  id_column: item_id
  filter_fields:
    - {name: group, kind: categorical}
    - {name: year, kind: numerical}
training: {algorithms: [TopPop]}
output: {path: shop.svc}
"""


def group(number: int) -> str:
    return "abc"[number % 3]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a recipe with filter fields, and items i0..i89 of three groups and of the years from 1950 on."""
    write_artifact(tmp_path / "shop.svc", MODELS["factors"]())
    lines = "".join(f"i{number},{group(number)},{1950 + number}\n" for number in range(N_ITEMS))
    (tmp_path / "items.csv").write_text(f"item_id,group,year\n{lines}")
    (tmp_path / "shop.yaml").write_text(RECIPE)
    return tmp_path / "shop.yaml"


def exported(recommend: Export, recipe: Path, *arguments: str) -> list[tuple[str, str, float]]:
    out = recipe.parent / "out.jsonl"
    assert recommend(recipe, "--output", out, *arguments) == 0
    return [(row["user_id"], row["item_id"], row["score"]) for row in rows_of(out)]


def everything(recommend: Export, recipe: Path) -> list[tuple[str, str, float]]:
    return exported(recommend, recipe, "--limit", str(N_ITEMS))


def first(rows: list[tuple[str, str, float]], limit: int, allowed: Any) -> list[tuple[str, str, float]]:
    """Return the first `limit` rows of each user with an allowed item, by brute force."""
    found: dict[str, list[tuple[str, str, float]]] = {}
    for row in rows:
        kept = found.setdefault(row[0], [])
        if len(kept) < limit and allowed(int(row[1][1:])):
            kept.append(row)
    return [row for kept in found.values() for row in kept]


def test_a_filter_fills_every_page_from_the_remaining_items(recommend: Export, shop: Path) -> None:
    """The result equals brute force over all items, with the same scores. The manifest has the filter."""
    whole = everything(recommend, shop)
    tree = {"all": [{"group": {"any": ["a", "c"]}}, {"not": {"year": {"lt": 1970}}}]}
    found = exported(recommend, shop, "--limit", "5", "--filter", json.dumps(tree))
    assert found == first(whole, 5, lambda number: group(number) in "ac" and number >= 20)
    assert manifest_of(shop.parent / "out.jsonl")["asked"]["filter"] == tree


def test_the_rules_of_the_recipe_apply_to_exports(recommend: Export, shop: Path) -> None:
    """`serving.filter`, the list of available items and --filter apply together. A missing list ends with 3."""
    whole = everything(recommend, shop)
    (shop.parent / "there.csv").write_text("item_id\n" + "".join(f"i{n}\n" for n in range(0, N_ITEMS, 2)))
    availability = "{source: {type: csv, path: there.csv}, id_column: item_id, mode: %s}"
    for mode, parity in (("allow", 0), ("deny", 1)):
        serving = f"serving: {{filter: {{group: {{any: [b]}}}}, availability: {availability % mode}}}\n"
        shop.write_text(RECIPE + serving)
        found = exported(recommend, shop, "--limit", "3", "--filter", '{"year": {"gte": 1960}}')
        assert found == first(whole, 3, lambda n: group(n) == "b" and n % 2 == parity and n >= 10)  # noqa: B023
    (shop.parent / "there.csv").unlink()
    assert recommend(shop, "--output", shop.parent / "x.csv") == 3


def test_related_items_are_filtered_and_seeds_are_not(recommend: Export, shop: Path) -> None:
    """Related items satisfy the filter. Every item is a seed."""
    out = shop.parent / "related.csv"
    arguments = ("--related", "--limit", "4", "--filter", '{"group": {"any": ["a"]}}')
    assert recommend(shop, "--output", out, *arguments) == 0
    rows = rows_of(out)
    assert len({row["seed_item_id"] for row in rows}) == N_ITEMS
    assert {group(int(row["item_id"][1:])) for row in rows} == {"a"}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("{", "--filter: is not JSON"),
        ('{"grup": {"any": ["a"]}}', "did you mean 'group'?"),
        ('{"group": {"gte": 1}}', "--filter: group.gte: a categorical field takes any, exists"),
        ('{"year": {"exists": true}, "group": {"exists": true}}', "exactly one key"),
    ],
)
def test_wrong_filters_end_with_2(recommend: Export, shop: Path, capsys: Any, tree: str, words: str) -> None:
    """The message names the place in the tree and the remedy."""
    assert recommend(shop, "--output", shop.parent / "x.csv", "--filter", tree) == 2
    assert words in capsys.readouterr().err


def test_a_filter_needs_a_recipe(recommend: Export, shop: Path, capsys: Any) -> None:
    """An artifact alone has no metadata to filter by, so the command ends with 2."""
    artifact = shop.with_suffix(".svc")
    assert recommend(artifact, "--output", shop.parent / "x.csv", "--filter", '{"year": {"gte": 1}}') == 2
    assert "needs a recipe" in capsys.readouterr().err


def test_parts_with_different_filters_do_not_merge(recommend: Export, shop: Path) -> None:
    """Shards with another filter, or without one, belong to different exports."""
    out = shop.parent / "all.csv"
    for index, more in enumerate((("--filter", '{"year": {"gte": 1960}}'), ())):
        assert recommend(shop, "--output", out, "--shard", f"{index}/2", *more) == 0
    assert recommend("--merge", "--output", out) == 5


def test_parts_with_different_lists_of_available_items_do_not_merge(recommend: Export, shop: Path) -> None:
    """The list has changed between two shards, so both are refused until the older one is written again."""
    out, there = shop.parent / "all.csv", shop.parent / "there.csv"
    availability = "{source: {type: csv, path: there.csv}, id_column: item_id, mode: allow}"
    shop.write_text(f"{RECIPE}serving: {{availability: {availability}}}\n")
    for index, last in enumerate((10, 11)):
        there.write_text("item_id\n" + "".join(f"i{n}\n" for n in range(last)))
        assert recommend(shop, "--output", out, "--shard", f"{index}/2") == 0
    assert recommend("--merge", "--output", out) == 5
    assert recommend(shop, "--output", out, "--shard", "0/2") == 0
    assert recommend("--merge", "--output", out) == 0
