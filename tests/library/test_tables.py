"""DataFrames for training: accepted kinds, and errors for unusable ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import svc
from svc.errors import RecipeError, SvcError, TimeUnitRequired, UnknownUser, UsageError
from svc.library.tables import facts_table, is_table

SMALL: dict[str, Any] = {"algorithms": ["CosineKNN"], "n_trials": 1, "cutoff": 5, "parallelism": 1}


def sales() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "user_id": [f"u{user}" for user in random.integers(0, 60, 900)],
            "item_id": [f"i{item}" for item in random.zipf(1.3, 900) % 40],
            "when": pd.to_datetime(random.integers(1_600_000_000, 1_700_000_000, 900), unit="s"),
            "stars": random.integers(1, 6, 900).astype(np.float64),
        }
    )


def test_a_frame_becomes_a_recommender_and_nothing_is_written(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """No key, output or recipe is needed. An Arrow table, categories and another index give the same model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SVC_SIGNING_KEYS", raising=False)
    frame = sales()
    result = svc.train(frame, time="when", weight="stars", **SMALL)
    assert len(result.recommender.recommend("u7", limit=3)) == 3
    assert result.header["recipe"]["training"]["split"] == {"scheme": "time_user"}
    assert result.header["recipe"]["source"]["type"] == "dataframe"
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
    with pytest.raises(UsageError, match=r"use `\.recommender`"):
        _ = result.artifact
    for same in (pa.table(frame), frame.set_index(frame.index[::-1]), frame[frame.columns[::-1]]):
        other = svc.train(same, time="when", weight="stars", **SMALL)
        assert other.header["recipe_hash"] == result.header["recipe_hash"]
        pd.testing.assert_frame_equal(other.recommender.recommend_many(), result.recommender.recommend_many())
    coded = frame.astype({"user_id": "category", "item_id": "category"})
    other = svc.train(coded, time="when", weight="stars", **SMALL)
    pd.testing.assert_frame_equal(other.recommender.recommend_many(), result.recommender.recommend_many())


def test_tables_that_arrow_reads_are_accepted() -> None:
    """A dict of columns, a batch, and a reader, which can be read only once, give the same model and figures.

    So does a frame whose columns have numbers as names.
    """
    frame = sales()
    table = pa.table(frame)
    result = svc.train(frame, time="when", **SMALL)
    kept = pa.table({"user_id": frame["user_id"][:300], "item_id": [f"i{row % 40}" for row in range(300)]})
    judged = svc.evaluate(result.recommender, kept.to_pandas().sample(frac=1, random_state=0)).scores
    shapes: list[Callable[[pa.Table], Any]] = [
        lambda table: table,
        lambda table: table.combine_chunks().to_batches()[0],
        pa.Table.to_reader,
        lambda table: {name: list(table.column(name).to_pylist()) for name in table.column_names},
        lambda table: {name: column.to_numpy() for name, column in table.to_pandas().items()},
        lambda table: {name: table.column(name) for name in table.column_names},
    ]
    for shape in shapes:
        other = svc.train(shape(table.drop_columns("stars")), time="when", **SMALL)
        assert other.header["best_score"] == result.header["best_score"]
        pd.testing.assert_frame_equal(svc.evaluate(result.recommender, shape(kept)).scores, judged)
    numbered = svc.train(frame.rename(columns={"user_id": 0, "item_id": 1}), "0", "1", time="when", **SMALL)
    assert numbered.best_score == result.best_score
    figures = svc.evaluate(
        result.recommender, kept.to_pandas().set_axis([0, 1], axis=1), user_column="0", item_column="1"
    )
    pd.testing.assert_frame_equal(figures.scores, judged)
    for spoilt in ({"user_id": ["a"], "item_id": ["b", "c"]}, {"user_id": [object()], "item_id": ["b"]}):
        with pytest.raises(UsageError, match="data: cannot be read as a table"):
            svc.train(spoilt)


@pytest.mark.integration
def test_polars_tables_are_accepted_for_interactions_and_items() -> None:
    """Interactions with categories and times, and items, give the same answers and errors as from pandas."""
    import polars

    frame = sales()
    items = pd.DataFrame({"item_id": ["i1", "i2"], "title": ["One", "Two"], "tags": [["a"], ["a", "b"]]})
    theirs = polars.from_pandas(frame).with_columns(polars.col("user_id").cast(polars.Categorical))
    options = {"time": "when", "weight": "stars", **SMALL}
    result = svc.train(frame, items=items, **options)
    shop, other = result.recommender, svc.train(theirs, items=polars.from_pandas(items), **options).recommender
    pd.testing.assert_frame_equal(other.recommend_many(), shop.recommend_many())
    wanted = {"include_seen": True, "filter": {"tags": {"any": ["a"]}}}
    pd.testing.assert_frame_equal(other.recommend("u7", **wanted), shop.recommend("u7", **wanted), check_dtype=False)
    users, chosen = theirs["user_id"].cast(polars.String).head(5), theirs["item_id"].head(5)
    expected = shop.score(frame["user_id"].head(5), frame["item_id"].head(5))
    pd.testing.assert_frame_equal(other.score(users, chosen), expected)
    assert len(svc.compare([result, {"algorithms": ["TopPop"], "n_trials": 1}], theirs, seeds=1, time="when")) == 2
    later = frame[["user_id"]].assign(item_id=[f"i{row % 40}" for row in range(900)])
    judged = svc.evaluate(shop, polars.from_pandas(later)).scores
    pd.testing.assert_frame_equal(judged, svc.evaluate(shop, later).scores)
    with pytest.raises(UsageError, match="whole numbers"):
        svc.train(theirs.with_columns(polars.lit(7).alias("user_id")), **SMALL)
    with pytest.raises(UsageError, match="not a Series"):
        svc.train(theirs["user_id"], **SMALL)


@pytest.mark.integration
def test_duckdb_relations_are_trained_on_and_judged_by() -> None:
    """A relation, and its reader of batches, give the same answers as pandas."""
    import duckdb

    frame = sales()
    later = frame[["user_id"]].assign(item_id=[f"i{row % 40}" for row in range(900)])
    result = svc.train(frame, time="when", weight="stars", **SMALL)
    judged = svc.evaluate(result.recommender, later).scores
    with duckdb.connect() as database:
        database.execute("CREATE TABLE sales AS SELECT * FROM frame")
        database.execute("CREATE TABLE later AS SELECT * FROM later")
        for read in (database.table, lambda name: database.table(name).arrow()):
            other = svc.train(read("sales"), time="when", weight="stars", **SMALL)
            pd.testing.assert_frame_equal(other.recommender.recommend_many(), result.recommender.recommend_many())
            pd.testing.assert_frame_equal(svc.evaluate(result.recommender, read("later")).scores, judged)


def test_a_dict_is_a_recipe(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in the dict are relative to the working folder. With an output, the artifact is written and needs a key."""
    monkeypatch.chdir(tmp_path)
    sales().to_csv("sales.csv", index=False)
    recipe = {
        "name": "shop",
        "source": {"type": "csv", "path": "sales.csv"},
        "schema": {"user_column": "user_id", "item_column": "item_id"},
        "item_metadata": {
            "source": {"type": "csv", "path": "sales.csv"},
            "id_column": "item_id",
            "fields": ["stars"],
            "filter_fields": [{"name": "stars", "kind": "numerical"}],
        },
        "serving": {"filter": {"stars": {"gte": 4}}},
        "training": SMALL,
    }
    shop = svc.train(recipe).recommender
    shown = shop.recommend("u7", limit=40)
    assert len(shown)
    assert shown["stars"].min() >= 4, "the recipe's own filter and metadata hold, as on a server"
    assert "shop" in repr(shop)
    written = svc.train(recipe, output={"path": "models/shop.svc"}, keys={"k1": "11" * 32})
    assert (tmp_path / "models/shop.svc").samefile(written.artifact)
    with pytest.raises(UsageError, match="user: names a column of a DataFrame"):
        svc.train(recipe, "visitor")


def test_rows_of_a_frame_can_be_filtered() -> None:
    """`cleansing.where` and `cleansing.hide` may name columns without any other use."""
    frame = sales()
    where = {"stars": {"gte": 2}}
    kept = svc.train(frame, cleansing={"where": where}, **SMALL).header["data_stats"]
    assert kept["dropped_by_where"] == int((frame["stars"] < 2).sum())
    hidden = svc.train(frame, cleansing={"hide": {"stars": {"lt": 2}}}, **SMALL)
    assert hidden.header["data_stats"]["hidden_by_rule"] == int((frame["stars"] < 2).sum())


@pytest.mark.parametrize("split", ["random", "time_user", "time_global"])
def test_what_was_rejected_stays_away_without_a_time_and_from_users_without_a_choice(split: str) -> None:
    """Such a user is unknown. Answers by fallback, history and batch leave out the rejected items."""
    frame = sales()
    best = svc.train(frame, time="when", split={"scheme": split}, **SMALL).recommender.popular(limit=3)["item_id"]
    rejected = [("stranger", item, pd.NaT, 1.0) for item in best] + [("u1", f"i{n}", pd.NaT, 1.0) for n in range(30)]
    rows = pd.DataFrame(rejected, columns=list(frame.columns))
    cleansing = {"where": {"stars": {"gte": 2}}, "hide": {"stars": {"lt": 2}}}
    kept = frame[(frame["stars"] >= 2) | (frame["user_id"] == "u2")]
    result = svc.train(pd.concat([kept, rows]), time="when", split={"scheme": split}, cleansing=cleansing, **SMALL)
    model, n_low = result.recommender, int((kept["stars"] < 2).sum())
    assert result.header["data_stats"]["hidden_by_rule"] == len(rejected) + n_low
    assert "stranger" not in model.users()
    assert not set(model.recommend("u1", limit=40)["item_id"]) & {f"i{n}" for n in range(30)}
    assert set(model.recommend("u1", limit=40, include_seen=True)["item_id"]) & {f"i{n}" for n in range(30)}
    with pytest.raises(UnknownUser):
        model.recommend("stranger")
    asked: list[dict[str, Any]] = [{"fallback": "popular"}, {"history": [kept["item_id"].iloc[0]]}]
    for options in asked:
        pages = [model.recommend("stranger", limit=40, **options)]
        many = model.recommend_many(["u3", "stranger"], limit=40, **options)
        pages.append(many[many["user_id"] == "stranger"])
        for page in pages:
            assert len(page) > 3
            assert not set(page["item_id"]) & set(best)
        assert set(model.recommend("nobody", limit=40, **options)["item_id"]) & set(best)
        assert set(model.recommend("stranger", limit=40, include_seen=True, **options)["item_id"]) & set(best)


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (lambda data: data["user_id"], {}, "not a Series"),
        (lambda data: data.head(0), {}, "no rows"),
        (lambda data: data.assign(user_id=7), {}, r"user: ids are text.*whole numbers; write data"),
        (lambda data: data.assign(item_id=7.5), {}, r"item: ids are text.*floating.*; 7.5 is not a whole number"),
        (lambda data: data.assign(user_id=[["u1"]] * 900), {}, "lists instead of single ids"),
        (lambda data: data.assign(user_id=["u1", 2] * 450), {}, "holds int, str; give it one type"),
        (lambda data: data.assign(user_id=None), {}, r"'user_id' holds nothing but missing values$"),
        (lambda data: data.assign(user_id=["u1", None] * 450), {}, r"450 of 900 rows have no id.*dropna"),
        (lambda data: data.assign(user_id=["u1", ""] * 450), {}, r"450 of 900 rows have a blank id.*str.strip"),
        (
            lambda data: data.assign(item_id=pd.Categorical(["i1", " \u3000\t"] * 450)),
            {},
            r"item: 450 of 900 .*a blank id",
        ),
        (lambda data: pd.concat([data, data[["stars"]]], axis=1), {}, "two columns are named 'stars'"),
        (lambda data: data, {"user": "userid"}, "no column 'userid'; did you mean 'user_id'"),
        (lambda data: 7, {}, "give a DataFrame.*or a recipe.*not a int"),
        (lambda data: {}, {}, "data: an empty dict is neither a table nor a recipe"),
    ],
)
def test_errors_name_the_argument_its_value_and_the_way_out(spoil: Any, options: dict[str, Any], words: str) -> None:
    """An error names the argument and its value, and says how to correct it."""
    with pytest.raises(UsageError, match=words):
        svc.train(spoil(sales()), **options, **SMALL)


def test_misspelt_options_and_times_without_a_unit_are_refused() -> None:
    """The error suggests the nearest option, or names the unit in which the times are near today."""
    with pytest.raises(RecipeError, match="no argument 'n_trial'; did you mean `n_trials`"):
        svc.train(sales(), n_trial=3)
    with pytest.raises(TimeUnitRequired, match=r"1600000000 is a time near today in s.*time_unit=\.\.\."):
        svc.train(sales().assign(when=1_600_000_000), time="when", **SMALL)
    with pytest.raises(RecipeError, match=r"schema\.time_unit: must be one of"):
        svc.train(sales().assign(when=1_600_000_000), time="when", time_unit="seconds", **SMALL)
    with pytest.raises(UsageError, match=r"a recipe has it as `schema.time_unit`"):
        svc.train({"name": "a"}, time_unit="s")
    assert svc.train(sales().assign(when=1_600_000_000), time="when", time_unit="s", **SMALL).header["best_class"]


def test_missing_ids_may_be_dropped() -> None:
    """Rows with missing or blank ids are an error unless the caller asks to drop them."""
    frame = sales().assign(user_id=lambda data: data["user_id"].mask(data.index < 9).mask(data.index == 9, " "))
    result = svc.train(frame, cleansing={"drop_null_ids": True}, **SMALL)
    assert result.header["data_stats"]["n_rows"] <= 890


def books(**columns: Any) -> pd.DataFrame:
    """Return a row for each item of `sales`, and for one that nobody chose."""
    ids = [f"i{item}" for item in range(41)]
    return pd.DataFrame({"book": ids, "genre": ["odd", "even"] * 20 + ["odd"], "unused": [object()] * 41} | columns)


GENRES: dict[str, Any] = {"id_column": "book", "columns": [{"name": "genre", "kind": "categorical"}]}
WITH_FEATURES: dict[str, Any] = {**SMALL, "algorithms": ["IALS"]}


@pytest.mark.parametrize("kind", [pd.DataFrame, lambda frame: pa.Table.from_pandas(frame.drop(columns="unused"))])
def test_features_may_be_a_table(kind: Callable[[pd.DataFrame], Any], tmp_path: Path) -> None:
    """The model is that of the same features in a file. The caller's arguments stay as they are."""
    given = {"item": {"data": kind(books()), **GENRES}}
    result = svc.train(sales(), features=given, **WITH_FEATURES)
    assert given["item"].keys() == {"data", "id_column", "columns"}
    books().to_csv(tmp_path / "books.csv", index=False)
    source = {"type": "csv", "path": str(tmp_path / "books.csv")}
    of_file = svc.train(sales(), features={"item": {"source": source, **GENRES}}, **WITH_FEATURES)
    odd = {"seed_items": [], "item_features": {"new": {"genre": "odd"}}, "limit": 5}
    pd.testing.assert_frame_equal(result.recommender.related(**odd), of_file.recommender.related(**odd))


@pytest.mark.parametrize(
    ("side", "words"),
    [
        (
            {"data": "books.csv", **GENRES},
            r"features\.item\.data: give a DataFrame with a row for each item, not a str",
        ),
        (
            {"data": books(book=range(41)), **GENRES},
            r"features\.item\.id_column: .* whole numbers; write features\.item",
        ),
        ({"data": books(), **GENRES, "id_column": "boook"}, "boook"),
        ({"data": books(), "source": {"type": "csv", "path": "a.csv"}, **GENRES}, r"features\.item\.data"),
    ],
)
def test_unusable_features_are_named(side: dict[str, Any], words: str) -> None:
    """The error names the argument. A table and a source together are an error."""
    with pytest.raises(SvcError, match=words):
        svc.train(sales(), features={"item": side}, **WITH_FEATURES)


def test_a_column_like_a_time_that_nobody_named_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """There is no word if the times are named, or if no column is called like one."""
    frame = sales().assign(date=1.0)
    for options, hints in (({}, 1), ({"time": "when"}, 0), ({"schema": {"time_column": "when"}}, 0)):
        caplog.clear()
        svc.train(frame, **options, **SMALL)
        assert caplog.text.count("time_unused") == caplog.text.count("time='when' holds out the latest") == hints
    caplog.clear()
    svc.train(sales().rename(columns={"when": "sometime", "stars": "ts"}), weight="ts", **SMALL)
    assert "time_unused" not in caplog.text


def test_a_result_recommends_and_is_judged() -> None:
    """Both answers are those of its recommender. The columns of the ids are those of the training."""
    renamed = sales().rename(columns={"user_id": "who", "item_id": "what"})
    result = svc.train(renamed, user="who", item="what", **SMALL)
    pd.testing.assert_frame_equal(result.recommend("u7", limit=3), result.recommender.recommend("u7", limit=3))
    later = pd.DataFrame({"who": ["u1", "u2"], "what": ["i0", "none"]})
    judged = svc.evaluate(result.recommender, later, user_column="who", item_column="what", cutoff=7)
    pd.testing.assert_frame_equal(result.evaluate(later, cutoff=7).scores, judged.scores)
    assert (
        result.evaluate(later.rename(columns={"who": "user"}), user_column="user").n_users
        == result.evaluate(later).n_users
    )
    assert repr(result).endswith(" on held-out rows; not written>")


def test_each_result_has_a_table() -> None:
    """Results are shown as HTML tables. No style sets a colour, so that a dark page keeps its own."""
    result = svc.train(sales(), **SMALL)
    assert "artifact" not in result._repr_html_()
    judged = svc.evaluate(result.recommender, pd.DataFrame({"user_id": ["u1", "u2"], "item_id": ["none", "none"]}))
    for shown, words in ((result, "score"), (result.recommender, "60"), (judged, "ndcg")):
        markup = shown._repr_html_()
        assert words in markup
        assert markup.count("<table") == markup.count("color") == markup.count("color:inherit") > 0


def test_facts_have_the_form_of_their_type() -> None:
    """A boolean is a word, and a large integer has separators."""
    markup = facts_table("t", {"a": True, "b": False, "c": 12345, "d": 0.123456})
    assert [markup.count(f">{shown}<") for shown in ("yes", "no", "12,345", "0.1235")] == [1, 1, 1, 1]


def test_text_is_escaped() -> None:
    """Names may come from recipes of other people."""
    assert "<b>" not in facts_table("<b>", {"<b>": "<b>"})


def test_dir_lists_public_names() -> None:
    """`dir(svc)` lists the public names and no imports of the package."""
    assert dir(svc) == sorted([*svc.__all__, "__version__"])


def test_a_series_of_any_library_is_no_table() -> None:
    """A series is not taken for a table, although it offers an Arrow stream as tables do."""

    class Stream:
        def __arrow_c_stream__(self) -> None: ...

    class Prices(pd.Series): ...

    assert is_table(Stream())
    for series in (pd.Series([1]), Prices([1]), type("Series", (Stream,), {})()):
        assert not is_table(series)
