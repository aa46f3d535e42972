"""A caller's DataFrame of items: filters read its columns, and answers show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import svc
from svc.errors import UsageError
from tests.export.conftest import MODELS
from tests.serving.artifacts import SIGNING_KEYS, write_artifact

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


@pytest.mark.parametrize("convert", [lambda frame: frame, pa.Table.from_pandas], ids=["pandas", "pyarrow"])
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
    ],
)
def test_an_unusable_frame_of_items_is_refused(artifact: Path, items: Any, words: str) -> None:
    """The error comes before any request."""
    with pytest.raises(UsageError, match=words):
        shop(artifact, items)


def test_filters_without_items_are_refused(artifact: Path) -> None:
    """The error says which argument to give."""
    for control in ({"filter": {"year": {"gte": 1}}}, {"limits": [{"field": "genres", "max": 1}]}):
        with pytest.raises(UsageError, match="items="):
            svc.load(artifact, keys=SIGNING_KEYS).recommend("ü 3", **control)
