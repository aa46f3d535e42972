"""`svc recommend`: wrong usage, and the allowed items of an export."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from svc.cli.main import run
from svc.cli.recommend import allowed_items
from svc.errors import UsageError
from svc.model.ids import IdTable
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.settings import Settings


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.svc"], "--output is missing"),
        (["--output", "x.csv"], "name the recipe or the artifact"),
        (["a.svc", "--output", "x.txt"], "must end with .parquet, .csv, .jsonl"),
        (["a.svc", "--output", ".csv"], "must end with"),
        (["a.svc", "--output", "x.csv", "--limit", "1001"], "less than or equal to 1000"),
        (["a.svc", "--output", "x.csv", "--limit", "0"], "greater than or equal to 1"),
        (["a.svc", "--output", "x.csv", "--shard", "3/3"], "'3/3' is not a shard"),
        (["a.svc", "--output", "x.csv", "--shard", "one"], "'one' is not a shard"),
        (["a.svc", "--output", "x.csv", "--shards", "3"], "--shards needs --merge or --engine"),
        (["a.svc", "--output", "x.csv", "--related", "--users", "ids.txt"], "--related ranks items for every item"),
        (["a.svc", "--output", "x.csv", "--to-users", "--related"], "leave --related, --users and --filter out"),
        (["a.svc", "--output", "x.csv", "--to-users", "--users", "i"], "leave --related, --users and --filter out"),
        (["a.yaml", "--output", "x.csv", "--to-users", "--filter", "{}"], "leave --related, --users and --filter out"),
        (["a.svc", "--output", "x.csv", "--items", "ids.txt"], "go with --to-users"),
        (["a.svc", "--output", "x.csv", "--users", "./x.csv"], "x.csv is the list of ids: name another file"),
        (["a.yaml", "--output", "x.csv", "--filter", "{"], "--filter: is not JSON"),
        (["a.svc", "--output", "x.csv", "--order", "lift"], "go with --to-users"),
        (
            ["a.svc", "--output", "x.csv", "--to-users", "--order", "best"],
            "'best' is not one of 'score', 'lift', 'balanced'",
        ),
        (["a.svc", "--output", "x.csv", "--merge"], "--merge needs only --output"),
        (["a.svc", "--output", "x.csv", "--engine", "dask://h:1", "--shard", "0/2"], "leave --shard out"),
    ],
)
def test_wrong_usage_ends_with_2(capsys: Any, arguments: list[str], words: str) -> None:
    """No artifact is read, and the message names the option and the remedy."""
    assert run(["recommend", *arguments]) == 2
    assert words in capsys.readouterr().err


ITEMS = IdTable.from_ids(["a", "b", "c", "d"])
MODEL = cast(Any, SimpleNamespace(item_ids=ITEMS))


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Return a function that makes a recipe: items a and b are of 1990, c and d of 2000, and c is sold out."""

    def load(serving: dict[str, Any] | None) -> LoadedRecipe:
        (tmp_path / "items.csv").write_text("item_id,year\na,1990\nb,1990\nc,2000\nd,2000\n")
        (tmp_path / "sold_out.csv").write_text("item_id\nc\n")
        recipe: dict[str, Any] = {
            "name": "shop",
            "source": {"type": "csv", "path": "none.csv"},
            "schema": {"user_column": "u", "item_column": "i"},
            "item_metadata": {
                "source": {"type": "csv", "path": "items.csv"},
                "id_column": "item_id",
                "filter_fields": [{"name": "year", "kind": "numerical"}],
            },
            "training": {"algorithms": ["TopPop"]},
            "output": {"path": "shop.svc"},
        }
        path = tmp_path / "shop.yaml"
        path.write_text(json.dumps(recipe if serving is None else {**recipe, "serving": serving}))
        return load_recipe(path, {}, settings=Settings(), for_serving=True)

    return load


def test_a_table_of_the_recipe_is_not_overwritten(make: Any, capsys: Any, tmp_path: Path) -> None:
    """The paths are compared after links, because the recipe and the command start at other folders."""
    make(None)
    (tmp_path / "link.csv").symlink_to("items.csv")
    before = (tmp_path / "items.csv").read_bytes()
    for name in ("items.csv", "link.csv"):
        assert run(["recommend", str(tmp_path / "shop.yaml"), "--output", str(tmp_path / name)]) == 2
        assert "is the item_metadata.source of the recipe" in capsys.readouterr().err
    assert (tmp_path / "items.csv").read_bytes() == before


def names(found: Any) -> list[str]:
    return [ITEMS.at(column) for column in found.columns().tolist()]


def test_without_filters_and_lists_all_items_are_allowed(make: Any) -> None:
    """No table is read for this."""
    assert allowed_items(make(None), None, MODEL, Settings(), {}) is None


def test_filters_and_lists_are_joined(make: Any) -> None:
    """The allowed items are those that the server would show, without those that --filter excludes."""
    sold_out = {"source": {"type": "csv", "path": "sold_out.csv"}, "id_column": "item_id", "mode": "deny"}
    asked = {"year": {"gte": 1995}}
    assert names(allowed_items(make(None), asked, MODEL, Settings(), {})) == ["c", "d"]
    assert names(allowed_items(make({"availability": sold_out}), None, MODEL, Settings(), {})) == ["a", "b", "d"]
    both = make({"availability": sold_out, "filter": {"year": {"lte": 2000}}})
    assert names(allowed_items(both, asked, MODEL, Settings(), {})) == ["d"]


def test_a_wrong_filter_is_wrong_usage(make: Any) -> None:
    """The message names the place in the tree. A field that the server may not show cannot be filtered on."""
    with pytest.raises(UsageError, match="--filter: year"):
        allowed_items(make(None), {"year": {"gte": "soon"}}, MODEL, Settings(), {})
    hidden = Settings(metadata_field_deny=frozenset({"year"}))
    with pytest.raises(UsageError, match="year"):
        allowed_items(make(None), {"year": {"gte": 1995}}, MODEL, hidden, {})
