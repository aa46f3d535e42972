"""Arguments of every kind that notebooks hold, and errors that name the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import svc
from svc.errors import UsageError
from tests.export.conftest import MODELS
from tests.serving.artifacts import SIGNING_KEYS, write_artifact


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> svc.Recommender:
    path = tmp_path_factory.mktemp("books") / "a.svc"
    write_artifact(path, MODELS["neighbours"]())
    return svc.load(path, keys=SIGNING_KEYS)


def test_numbers_and_lists_of_numpy_and_pandas_are_accepted(books: svc.Recommender) -> None:
    """Series, indexes, arrays, tuples and numpy's numbers are accepted."""
    plain = books.recommend("ü 1", limit=5, exclude_items=["i1", "i2"], explain=2)
    for kind in (pd.Series, pd.Index, np.array, tuple, set):
        given: Any = kind(["i1", "i2"])
        pd.testing.assert_frame_equal(
            books.recommend(np.str_("ü 1"), limit=np.int64(5), exclude_items=given, explain=np.int32(2)),  # type: ignore[arg-type]
            plain,
        )
    history = pd.DataFrame({"item_id": ["i1", "i2"], "weight": [1.0, 2.5]}).to_dict("records")
    assert books.recommend(history=history).attrs == {"profile": "history"}
    assert books.recommend(history=["i1", "none"]).attrs == {"profile": "history", "ignored_items": ["none"]}


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda shop: shop.recommend(5), r"user_id: ids are text, and 5 is of type int: use str\(5\)"),
        (lambda shop: shop.recommend(["ü 1"]), "user_id: one id belongs here, not a list; recommend_many"),
        (lambda shop: shop.recommend(pd.Series(["ü 1"])), "one id belongs here, not a Series"),
        (lambda shop: shop.recommend(float("nan")), "an id is missing"),
        (lambda shop: shop.recommend("ü 1", exclude_items="i1"), r"exclude_items: give a list, such as \['i1'\]"),
        (lambda shop: shop.recommend("ü 1", exclude_items=[1]), r"use str\(1\)"),
        (lambda shop: shop.recommend("ü 1", history=["i1", 7]), r"history: ids are text.*use str\(7\)"),
        (lambda shop: shop.recommend("ü 1", explain=50), "explain"),
        (lambda shop: shop.recommend("ü 1", pins=[{"item": "i1", "position": 0}]), "did you mean item_id"),
        (lambda shop: shop.recommend("ü 1", limit=1000, offset=1), "offset and limit add up to more than 1000"),
        (lambda shop: shop.recommend(), "give user_id, user_features, history or fallback"),
        (lambda shop: shop.related(), "give seed_items or item_features"),
        (lambda shop: shop.similar_items(3), r"item_id: ids are text.*use str\(3\)"),
        (lambda shop: shop.recommend_many([1, 2]), r"users: ids are text.*use str\(1\)"),
        (lambda shop: shop.recommend_many(["ü 1", None]), "users: an id is missing"),
        (lambda shop: shop.recommend_many(pd.DataFrame({"a": ["ü 1"]})), "one column of the DataFrame"),
        (lambda shop: shop.recommend_many(["ü 1"], unknown="drop"), "neither 'raise' nor 'skip'"),
        (lambda shop: shop.score(["ü 1"], ["i1", "i2"]), "as many users as items, not 1 and 2"),
    ],
)
def test_errors_name_arguments_of_the_call(
    books: svc.Recommender, ask: Callable[[svc.Recommender], object], words: str
) -> None:
    """Errors use the words of the call, and none of HTTP."""
    with pytest.raises(UsageError, match=words) as caught:
        ask(books)
    assert "request" not in caught.value.message
