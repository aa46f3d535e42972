"""A caller's DataFrame of items: filters read its columns, and answers show them.

New items in Python are recommended as by a server, and refused with row and column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import svc
from svc.asking.item_lists import NewItemList
from svc.asking.item_tables import MetadataTable
from svc.errors import FeaturesNotSupported, UsageError
from svc.model.ids import IdTable
from svc.model.ranking.filter_fields import FilterFields
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.placed_items import place_with_fragments
from tests.asking.test_item_lists import declared
from tests.export.conftest import MODELS
from tests.library.test_answers import as_answered, catalogue
from tests.serving.artifacts import SIGNING_KEYS, header, write_artifact
from tests.serving.client import RECOMMEND, RELATED, model, serve, served_in, serving

FRAME = pd.DataFrame(
    {
        "item_id": ["i1", "i2", "i3", "i4", "not trained", "i1"],
        "title": ["Old", "Two", "Three", None, "None", "One"],
        "genres": [["a"], np.array(["a", "b"]), ["b"], None, ["a"], ["a", "c"]],
        "tags": ["x|y", "y", "", None, "x", "x|y"],
        "year": pd.array([1990, 1995, None, 2001, 2000, 1999], dtype="Int64"),
        "kept": [True, False, True, None, True, False],
        "added": pd.to_datetime(["2020-01-01"] * 6),
    }
)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "a.svc", MODELS["neighbours"]())
    return tmp_path / "a.svc"


def shop(artifact: Path, items: Any) -> svc.Recommender:
    return svc.load(artifact, keys=SIGNING_KEYS, items=items)


SHAPES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pyarrow": pa.Table.from_pandas,
    "batch": pa.RecordBatch.from_pandas,
    "reader": lambda frame: pa.Table.from_pandas(frame).to_reader(),
    "dict": lambda frame: {name: pa.array(column) for name, column in frame.items()},
}


@pytest.mark.parametrize("convert", SHAPES.values(), ids=SHAPES)
def test_columns_of_every_kind_can_be_filtered_by(artifact: Path, convert: Any) -> None:
    """Lists and delimited text are labels, numbers are numbers, other text is one value. Last rows count."""
    books = shop(artifact, convert(FRAME))

    def matching(**condition: Any) -> set[str]:
        return set(books.recommend("ü 3", limit=90, include_seen=True, filter=condition)["item_id"])

    assert matching(genres={"any": ["a"]}) == {"i1", "i2"}
    assert matching(genres={"all": ["a", "c"]}) == {"i1"}
    assert matching(tags={"any": ["y"]}) == {"i1", "i2"}
    assert matching(year={"gte": 1995}) == {"i1", "i2", "i4"}
    assert matching(title={"any": ["One", "Old"]}) == {"i1"}
    assert matching(kept={"any": ["true"]}) == {"i3"}
    assert matching(
        genres={"exists": False},
    ).isdisjoint({"i1", "i2", "i3"})
    shown = books.recommend("ü 3", include_items=["i2"], include_seen=True).iloc[0]
    assert (shown["title"], list(shown["genres"]), shown["year"]) == ("Two", ["a", "b"], 1995)


@pytest.mark.parametrize("convert", [lambda frame: frame, pa.Table.from_pandas], ids=["pandas", "pyarrow"])
def test_ids_of_answers_have_the_type_of_text_in_frames(artifact: Path, convert: Any) -> None:
    """Empty answers have it too, so that answers join with tables of any pandas and stack with one another."""
    books = shop(artifact, convert(FRAME))
    text = pd.Series(["i1"]).dtype
    assert text == FRAME["item_id"].dtype
    answers = [
        *(books.recommend("ü 3"), books.recommend("ü 3", offset=900), books.recommend("ü 3", explain=1)),
        *(books.recommend_many(), books.score(["ü 3"], ["i1"]), books.score([], []), books.popular()),
        *(
            books.related(["i1"]),
            books.similar_items("i1"),
            books.recommend_users("i1"),
            books.explain("ü 3"),
        ),
    ]
    for answer in answers:
        assert {name: answer[name].dtype for name in ("user_id", "item_id") if name in answer} == {
            name: text for name in ("user_id", "item_id") if name in answer
        }
    assert answers[0]["title"].dtype == text


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (FRAME["title"], "give a DataFrame"),
        (FRAME.rename(columns={"item_id": "id"}), "no column 'item_id'"),
        (FRAME.assign(item_id=range(6)), r"ids are text.*use str\(\.\.\.\)"),
        (FRAME.assign(score=1.0), "rename the column 'score'"),
        (pd.concat([FRAME, FRAME[["year"]]], axis=1), "two columns are named 'year'"),
        (FRAME.assign(facts=[{"a": 1}] * 6), "items: filter field 'facts': a map does not belong here"),
    ],
)
def test_an_unusable_frame_of_items_is_refused(artifact: Path, items: Any, words: str) -> None:
    """The error comes before any request."""
    with pytest.raises(UsageError, match=words):
        shop(artifact, items)


def test_filters_without_items_are_refused(artifact: Path) -> None:
    """The error names the argument `items`, which the call lacks."""
    for control in ({"filter": {"year": {"gte": 1}}}, {"limits": [{"field": "genres", "max": 1}]}):
        with pytest.raises(UsageError, match="items="):
            svc.load(artifact, keys=SIGNING_KEYS).recommend("ü 3", **control)


pytestmark = pytest.mark.anyio

NEW = pd.DataFrame(
    {
        "item_id": ["n0", "n1", "i3", "n2"],
        "tag": pd.Categorical(["a", "b", "a", None]),
        "age": [50, np.nan, 20, 31.5],
        "more": [object()] * 4,
    }
)
SIDE = {"dimension": 4, "columns": ["tag", "age"]}
HEAD = header(best_class="IALSRecommender", features={"version": 1, "active": True, "user": SIDE, "item": SIDE})
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"user_id": "u3", "limit": 40},
    {"user_id": "u3", "limit": 4, "offset": 3},
    {"history": ["i5", "n1"], "limit": 30, "explain": 2},
    {"user_features": {"tag": "a", "age": 30}, "limit": 60},
    {"user_id": "u1", "filter": {"genres": {"any": ["Drama"]}}, "limit": 40},
    {"user_id": "u1", "limits": [{"field": "genres", "max": 2}], "boosts": [], "diversity": 0.3, "limit": 20},
    {"user_id": "u2", "include_items": ["n0", "n2", "i50", "i51", "i52", "i53", "nothing"], "exclude_items": ["n2"]},
    {"user_id": "u2", "pins": [{"item_id": "n1", "position": 1}], "limit": 5},
    {"fallback": "popular", "limit": 60},
)


def listed_items(titles: MetadataTable, fields: FilterFields, columns: NDArray[np.int64]) -> NewItemList:
    """Return the list of new items as a server reads it.

    `columns` are the positions of its items in `titles` and `fields`.
    """
    rows = [{"tag": "a", "age": 50}, {"tag": "b", "age": None}, {"tag": "a", "age": 20}, {"tag": None, "age": 31.5}]
    metadata = MetadataTable(titles.fields, [titles.rows[column] for column in columns.tolist()])
    return NewItemList(tuple(NEW["item_id"]), tuple(rows), metadata, fields.of_items(columns), b"")


@pytest.mark.parametrize("shares", [(0.2, 0.0), (None, 0.0), (0.5, 0.3)])
async def test_new_items_stand_in_frames_as_in_answers(tmp_path: Path, shares: tuple[float | None, float]) -> None:
    """Results for one user and for many have the order, score bits, reasons, titles, filters and rules of the API."""
    trained = model()
    n_items = trained.n_items
    ids = IdTable.from_ids([*trained.item_ids.all(), "n0", "n1", "n2"])
    frame, titles, fields = catalogue(ids)
    write_artifact(tmp_path / "a.svc", trained, head=HEAD)
    most, least = shares
    shop = svc.load(
        tmp_path / "a.svc",
        keys=SIGNING_KEYS,
        items=frame,
        new_items=NEW,
        new_items_share=most,
        new_items_min_share=least,
    )
    async with serving() as (client, state):
        listed = listed_items(titles, fields, np.array([n_items, n_items + 1, 3, n_items + 2]))
        placed = place_with_fragments(listed, trained, declared(max_share=most, min_share=least))
        own = MetadataTable(titles.fields, titles.rows[:n_items])
        fragments = ItemFragments.build(trained.item_ids, own)
        served = replace(served_in(state), fragments=fragments, filters=fields.of_items(np.arange(n_items)))
        serve(state, served.beside(None, placed, served.policy))
        reasons = []
        for body in QUESTIONS:
            answer = (await client.post(RECOMMEND, body)).json
            here = as_answered(shop.recommend(**body))
            assert here == {name: answer[name] for name in here}, body
            reasons += [tuple(item.get("reason", ())) for item in answer["items"]]
        related = (await client.post(RELATED, {"seed_items": ["i1"], "limit": 60})).json
        popular = (await client.get("/v1/recipes/movies/popular", query="limit=60")).json
    assert {("new",), ("new", "pinned"), ("popular",), ()} <= {*reasons}
    assert as_answered(shop.related(["i1"], limit=60))["items"] == related["items"]
    assert as_answered(shop.popular(limit=60))["items"] == popular["items"]
    many = shop.recommend_many(["u1", "u3"], limit=40)
    alone = shop.recommend("u3", limit=40)
    pd.testing.assert_frame_equal(many[many["user_id"] == "u3"][alone.columns].reset_index(drop=True), alone)
    explained = shop.explain("u3", limit=40).drop_duplicates("rank")
    assert explained["item_id"].tolist() == shop.recommend("u3", limit=40, explain=3)["item_id"].tolist()
    assert explained["item_id"].isin(["n0", "n1", "n2"]).any()


def test_new_items_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """The error names the row and the column, or a remedy."""
    artifact = tmp_path / "a.svc"
    write_artifact(artifact, model(), head=HEAD)

    def refused(new_items: Any, words: str, share: float | None = None, least: float = 0.0) -> None:
        with pytest.raises(UsageError, match=words):
            svc.load(
                artifact,
                keys=SIGNING_KEYS,
                new_items=new_items,
                new_items_share=share,
                new_items_min_share=least,
            )

    refused(NEW.assign(item_id=["n0", "n1", "n0", "n2"]), "new_items: .* 'n0' in data rows 1 and 3, column 'item_id'")
    refused(NEW.assign(item_id=["n0", None, "n3", "n2"]), "new_items: .* no id in data row 2, column 'item_id'")
    refused(NEW.assign(item_id=range(4)), r"whole numbers; write new_items\['item_id'\]")
    refused(NEW.drop(columns="age"), "new_items: the table has no column 'age'; .* item_id, tag, more")
    refused(NEW.assign(age=[None, None, None, "old"]), "new_items: data row 4, item 'n2': feature 'age'")
    refused(["n0"], "new_items: give a DataFrame with a row for each item, not a list")
    refused(NEW, "new_items_share: 1.5 is not within 0..1", 1.5)
    refused(NEW, "new_items_min_share: 1.5 is not within 0..1", None, 1.5)
    for share, least in ((0.0, 0.0), (0.2, 0.2), (1.0, 1.0)):
        svc.load(artifact, keys=SIGNING_KEYS, new_items=NEW, new_items_share=share, new_items_min_share=least)
    refused(NEW, "new_items_min_share: 0.3 is above new_items_share, 0.2", 0.2, 0.3)
    refused(NEW, "new_items_min_share: -0.1 is not within 0..1", None, -0.1)
    write_artifact(artifact, model(features=False))
    with pytest.raises(FeaturesNotSupported, match="item"):
        svc.load(artifact, keys=SIGNING_KEYS, new_items=NEW)


def test_tables_of_every_shape_and_lists_without_new_items_are_accepted(tmp_path: Path) -> None:
    """Arrow tables, batches, readers and dicts give the same answers as pandas.

    An empty list, or a list of known items, does not change answers.
    """
    artifact = tmp_path / "a.svc"
    write_artifact(artifact, model(), head=HEAD)
    plain = svc.load(artifact, keys=SIGNING_KEYS).recommend("u3", limit=60)
    of_pandas = svc.load(artifact, keys=SIGNING_KEYS, new_items=NEW).recommend("u3", limit=60)
    for convert in SHAPES.values():
        of_arrow = svc.load(artifact, keys=SIGNING_KEYS, new_items=convert(NEW[["age", "item_id", "tag"]]))
        pd.testing.assert_frame_equal(of_arrow.recommend("u3", limit=60), of_pandas)
    assert len(of_pandas) == len(plain) + 3
    for rows in (NEW[:0], NEW[2:3]):
        unchanged = svc.load(artifact, keys=SIGNING_KEYS, new_items=rows).recommend("u3", limit=60)
        pd.testing.assert_frame_equal(unchanged, plain)


def test_a_trained_recommender_reads_the_list_of_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata describe the new items. A DataFrame replaces the list."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    pd.DataFrame({"u": rng.integers(0, 40, 500), "i": rng.integers(0, 20, 500)}).to_csv("sales.csv", index=False)
    items = pd.DataFrame({"book": range(20), "tag": ["a", "b"] * 10})
    items.to_csv("items.csv", index=False)
    pd.DataFrame({"book": ["3", "n1"], "tag": ["a", "b"]}).to_csv("new.csv", index=False)
    pd.DataFrame({"book": ["3", "n1"], "title": ["Three", "First"]}).to_csv("titles.csv", index=False)
    side = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "book"}
    recipe = {
        "name": "shop",
        "source": {"type": "csv", "path": "sales.csv"},
        "schema": {"user_column": "u", "item_column": "i"},
        "features": {"item": {**side, "columns": [{"name": "tag", "kind": "categorical"}]}},
        "item_metadata": {**side, "source": {"type": "csv", "path": "titles.csv"}, "fields": ["title"]},
        "training": {"algorithms": ["IALS"], "n_trials": 1, "cutoff": 5},
        "serving": {"new_items": {"source": {"type": "csv", "path": "new.csv"}, "max_share": None}},
    }
    shown = svc.train(recipe).recommender.recommend("7", limit=40)
    assert shown[shown["reason"].str.len() > 0][["item_id", "title"]].to_numpy().tolist() == [["n1", "First"]]
    given = svc.train(recipe, new_items=pd.DataFrame({"book": ["n2"], "tag": ["a"]}), new_items_share=None)
    shown = given.recommender.recommend("7", limit=40)
    assert shown[shown["reason"].str.len() > 0]["item_id"].tolist() == ["n2"]


def test_new_items_that_a_user_rejected_are_shown_to_others_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training does not know items that were only rejected. A refit, and the users of an item, leave them out too."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    sales = pd.DataFrame({"u": rng.integers(0, 40, 500), "i": rng.integers(0, 20, 500), "event": "buy", "stars": 5})
    rejected = pd.DataFrame({"u": [7, 7, 7, 99], "i": ["n1", "n2", "n1", "n3"], "event": ["buy", "no", "buy", "no"]})
    pd.concat([sales, rejected.assign(stars=[1, 5, 2, 1])]).to_csv("sales.csv", index=False)
    pd.DataFrame({"item_id": range(20), "tag": ["a", "b"] * 10}).to_csv("items.csv", index=False)
    side = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "item_id"}
    recipe = {
        "name": "shop",
        "source": {"type": "csv", "path": "sales.csv"},
        "schema": {"user_column": "u", "item_column": "i", "event_column": "event"},
        "features": {"item": {**side, "columns": [{"name": "tag", "kind": "categorical"}]}},
        "cleansing": {"hide": {"stars": {"lt": 4}}, "event_weights": {"buy": 1, "no": "exclude"}},
        "training": {"algorithms": ["IALS"], "n_trials": 1, "cutoff": 5},
        "serving": {"users": True},
        "output": {"path": "shop.svc"},
    }
    listed = pd.DataFrame({"item_id": ["n1", "n2", "n3"], "tag": ["a", "b", "a"]})
    for refit in (False, True):
        trained = svc.train(recipe, new_items=listed, new_items_share=None, keys=SIGNING_KEYS, refit=refit)
        shop, described = trained.recommender, {"item_features": {"tag": "a"}, "limit": 100}
        shown = {user: shop.recommend(user, limit=40) for user in ("7", "8")}
        shown["back"] = shop.recommend("7", limit=40, include_seen=True)
        new = {who: set(frame["item_id"]) & set(listed["item_id"]) for who, frame in shown.items()}
        assert new == {"7": {"n3"}, "8": {"n1", "n2", "n3"}, "back": {"n1", "n3"}}
        assert set(shop.recommend_many(["7"], limit=40)["item_id"]) == set(shown["7"]["item_id"])
        everybody = set(shop.recommend_users(**described)["user_id"])
        assert everybody - set(shop.recommend_users("n1", **described)["user_id"]) == {"7"}
        assert everybody == set(shop.recommend_users("n1", include_seen=True, **described)["user_id"])
        assert everybody - set(shop.recommend_users("n2", include_seen=True, **described)["user_id"]) == {"7"}
