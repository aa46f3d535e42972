"""What the console shows of a recipe: search in its items, its features and its versions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from svc.artifact import layout
from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import Store
from svc.artifact.versions import Versions
from svc.asking.item_tables import MetadataTable
from svc.model.features import TokenColumn
from svc.model.ids import IdTable
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.serving.models import console
from svc.serving.models.console import MAX_VALUES, _column, find_items, read_versions
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.registry import Entry, Served
from svc.settings import Settings
from tests.e2e.server import write_recipe
from tests.serving import artifacts
from tests.serving.artifacts import SIGNING_KEYS, header
from tests.serving.client import N_ITEMS, Client, model, serving

pytestmark = pytest.mark.anyio
ITEMS = "/v1/recipes/movies/items"


async def find(client: Client, **parameters: Any) -> list[str]:
    """Return the ids that a search finds."""
    answer = await client.get(ITEMS, query="&".join(f"{key}={quote(str(value))}" for key, value in parameters.items()))
    assert answer.status == 200, answer.body
    return [item["item_id"] for item in answer.json["items"]]


def served(titles: dict[int, Any]) -> Served:
    """Return the test model with these titles. Other items have none."""
    made = model()
    table = MetadataTable(("title",), [(titles[item],) if item in titles else None for item in range(N_ITEMS)])
    return artifacts.served_model(made, fragments=ItemFragments.build(made.item_ids, table))


def ids_of(found: tuple[list[dict[str, Any]], bool]) -> list[str]:
    return [item["item_id"] for item in found[0]]


async def test_items_are_found_by_id_and_metadata() -> None:
    """Every word must occur, in any field and any case. An item whose id is the whole text comes first."""
    async with serving() as (client, _):
        assert await find(client, q="tItLe 59") == ["i59"]
        assert await find(client, q="2031 41") == ["i41"]
        assert await find(client, q="i5") == ["i5", *(f"i{number}" for number in range(50, 60))]
        assert await find(client, q="nothing like this") == []
        answer = await client.get(ITEMS, query="q=title+59")
    assert answer.json["items"] == [{"item_id": "i59", "title": "Title 59", "year": 2049}]
    assert list(answer.json) == ["recipe", "model_version", "items", "more"]


async def test_a_search_without_words_returns_the_first_items() -> None:
    """The number of items is bounded. The field `more` says that others exist."""
    async with serving() as (client, _):
        assert await find(client) == [f"i{number}" for number in range(20)]
        assert await find(client, limit=3) == ["i0", "i1", "i2"]
        assert (await client.get(ITEMS, query="limit=3")).json["more"] is True
        assert (await client.get(ITEMS, query="q=59")).json["more"] is False


@pytest.mark.parametrize("query", ["limit=0", "limit=21", "limit=x", "limit=1.0", "limit=", f"q={'x' * 257}"])
async def test_parameters_of_a_search_have_bounds(query: str) -> None:
    """The answer is 422. The error names the parameter without its value."""
    async with serving() as (client, _):
        answer = await client.get(ITEMS, query=query)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    assert answer.json["errors"][0]["loc"] == ["query", query.partition("=")[0]]


async def test_a_recipe_without_a_model_has_no_items() -> None:
    """The errors are those of the verbs. Items without metadata are found by id."""
    async with serving() as (client, _):
        assert (await client.get("/v1/recipes/stub/items")).json["code"] == "RECIPE_UNAVAILABLE"
        assert (await client.get("/v1/recipes/none/items")).json["code"] == "RECIPE_NOT_FOUND"
        assert (await client.get("/v1/recipes/plain/items", query="q=i7")).json["items"] == [{"item_id": "i7"}]


def test_only_values_are_searched() -> None:
    """Names of fields and JSON syntax are not found."""
    shop = served({0: "a plain name"})
    for text in ("title", "item_id", '"', ":", "null", "{"):
        assert ids_of(find_items(shop, text, 20)) == []


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ('The "Quoted" \\ one', '"quoted" \\'),
        ("Straße", "STRASSE"),
        ("ÉTUDE", "étude"),
        (["Crime", "History"], "history"),
        ("two\nlines", "lines"),
        (1984, "1984"),
    ],
)
def test_search_ignores_case_and_json_escapes(title: object, text: str) -> None:
    """Case is ignored beyond ASCII, too. Text that JSON escapes is found as written."""
    assert ids_of(find_items(served({7: title}), text, 20)) == ["i7"]


@pytest.mark.parametrize("size", [1, 50, 300, 100_000])
def test_each_item_is_searched_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same for any size of blocks."""
    monkeypatch.setattr(console, "BLOCK_BYTES", size)
    shop = served({item: f"Volume {item} " + "x" * (item % 7 * 20) for item in range(N_ITEMS)})
    for item in range(N_ITEMS):
        assert ids_of(find_items(shop, f"volume {item}", N_ITEMS)).count(f"i{item}") == 1
    assert ids_of(find_items(shop, "volume", N_ITEMS)) == [f"i{item}" for item in range(N_ITEMS)]


def test_a_search_at_its_time_limit_returns_the_found_items(lowered: list[int]) -> None:
    """The field `more` is then True. A search lowers the priority of its thread."""
    assert find_items(served({}), "", 20, longest_s=-1) == ([], True)
    assert len(lowered) == 1


async def test_a_description_has_the_feature_columns() -> None:
    """If the model has features, the description has their names, kinds and values of the training."""
    async with serving() as (client, _):
        columns = (await client.get("/v1/recipes/movies")).json["feature_columns"]
        assert "feature_columns" not in (await client.get("/v1/recipes/plain")).json
    assert columns["user"] == columns["item"]
    assert columns["user"] == [
        {"name": "tag", "kind": "categorical", "n_values": 2, "values": ["a", "b"]},
        {"name": "age", "kind": "numerical", "low": 10.0, "high": 90.0, "mean": 40.0},
    ]


async def test_denied_features_are_described_without_values() -> None:
    """SVC_METADATA_FIELD_DENY applies to features of the same name."""
    async with serving(Settings(metadata_field_deny=("Tag", "age"))) as (client, _):
        columns = (await client.get("/v1/recipes/movies")).json["feature_columns"]["item"]
    assert columns == [
        {"name": "tag", "kind": "categorical", "n_values": 2, "values": []},
        {"name": "age", "kind": "numerical"},
    ]


def test_a_description_has_a_bounded_number_of_values() -> None:
    """A vocabulary of thousands is described by its size."""
    tokens = IdTable.from_ids([f"v{number}" for number in range(MAX_VALUES + 50)])
    column = _column(TokenColumn("brand", "categorical", tokens), open_values=True)
    assert (len(column["values"]), column["n_values"]) == (MAX_VALUES, MAX_VALUES + 50)


KEYS = parse_signing_keys(SIGNING_KEYS)


def books(folder: Path, versioning: str = "append_sha") -> LoadedRecipe:
    path = write_recipe(folder, "books", folder / "books.svc")
    path.write_text(path.read_text(encoding="utf-8").replace("always_overwrite", versioning), encoding="utf-8")
    return load_recipe(path, {}, settings=Settings(), for_serving=True)


def train(folder: Path, number: int) -> str:
    kid, key = KEYS.active
    head = header(trained_at=f"2099-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00", best_score=number / 1000)
    write = partial(layout.write, kid=kid, key=key, header=head, payload=[b"x"])
    return Versions(str(folder / "books.svc"), KEYS, Settings()).publish(write, head, move=True, keep=None).sha8


def test_versions_are_listed_without_reading_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint lists the versions of `svc history`. A version without a line in the log has only its name."""
    trained = [train(tmp_path, number) for number in range(3)]
    versions = Versions(str(tmp_path / "books.svc"), KEYS, Settings())
    versions.rollback(trained[1], hold=True)
    expected = [version.as_fields() for version in versions.history()]
    unlogged = tmp_path / "books.0123abcd.svc"
    unlogged.write_bytes(b"no artifact")

    def refused(*_: object) -> None:
        raise AssertionError("an artifact was read")

    monkeypatch.setattr(Store, "read_version", refused)
    found = read_versions(books(tmp_path), KEYS, Settings())
    assert found["versioning"] == "append_sha"
    (unknown,) = [version for version in found["versions"] if version["sha8"] == "0123abcd"]
    assert (unknown["trained_at"], unknown["best_class"], unknown["live"]) == (None, None, False)
    assert [version for version in found["versions"] if version is not unknown] == expected
    assert [version["sha8"] for version in expected if version["held"]] == [trained[1]]


def test_the_served_version_has_facts_without_a_log(tmp_path: Path) -> None:
    """Before the log begins, the facts of the served version come from its header, and others have only their names."""
    old, new = (train(tmp_path, number) for number in range(2))
    (tmp_path / "books.svc.log.jsonl").unlink(missing_ok=True)
    (live,) = [version.as_fields() for version in Versions(str(tmp_path / "books.svc"), KEYS, Settings()).history()][:1]
    head = {"trained_at": live["trained_at"], "best_class": live["best_class"], "best_score": live["best_score"]}
    loaded = replace(served({}), header=head, model_version=f"sha256:{new}{'0' * 56}")
    listed = read_versions(books(tmp_path), KEYS, Settings(), Entry("books", "books.yaml", loaded))["versions"]
    assert listed[0] == live
    assert (listed[0]["live"], listed[0]["best_score"]) == (True, 0.001)
    assert [(version["sha8"], version["trained_at"]) for version in listed[1:]] == [(old, None)]


def test_a_recipe_without_versioning_has_no_versions(tmp_path: Path) -> None:
    """The recipe keeps one file, and the answer names this mode."""
    assert read_versions(books(tmp_path, "always_overwrite"), KEYS, Settings()) == {
        "versioning": "always_overwrite",
        "versions": [],
    }


def test_only_the_newest_versions_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six versions with a bound of four, the four newest are listed."""
    monkeypatch.setattr(console, "MOST", 4)
    trained = [train(tmp_path, number) for number in range(6)]
    found = read_versions(books(tmp_path), KEYS, Settings())["versions"]
    assert [version["sha8"] for version in found] == trained[:1:-1]
