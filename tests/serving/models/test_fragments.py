"""Answers joined from prebuilt bytes are the expected JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from svc.asking.item_tables import MetadataTable
from svc.errors import UnknownUser
from svc.model.ids import IdTable
from svc.model.ranking.query import Prepared, Query, Ranking
from svc.serving.models.fragments import NOTHING_MORE, AnswerHeader, ItemFragments, encode_elements, encode_fields

IDS = ["plain", 'quote"back\\slash', "line\nbreak\u2028", "日本語 🎬", "</script>", ","]
ORIGIN = AnswerHeader("r1", "movies", "sha256:00")


def ranking(*columns: int) -> Ranking:
    return Ranking(np.array(columns, np.int32), np.array([1.5 / (place + 1) for place in range(len(columns))]))


def table() -> MetadataTable:
    return MetadataTable(("title", "n"), [(f"t{i}", np.int64(i)) if i != 2 else None for i in range(len(IDS))])


def test_any_id_is_encoded_exactly() -> None:
    """Ids may have quotes, control characters and any script."""
    fragments = ItemFragments.build(IdTable.from_ids(IDS), None)
    document = json.loads(ORIGIN.before(encode_fields(ranking(5, 1, 2, 3, 4, 0), fragments)))
    assert [item["item_id"] for item in document["items"]] == [IDS[i] for i in (5, 1, 2, 3, 4, 0)]
    assert document["recipe"] == "movies"


def test_metadata_is_added_on_request() -> None:
    """Fields follow the score, in their order. An item without a row has nulls."""
    fragments = ItemFragments.build(IdTable.from_ids(IDS), table())
    with_it = json.loads(ORIGIN.before(encode_fields(ranking(1, 2), fragments)))["items"]
    assert [list(item.items())[2:] for item in with_it] == [[("title", "t1"), ("n", 1)], [("title", None), ("n", None)]]
    without = json.loads(ORIGIN.before(encode_fields(ranking(1, 2), fragments, with_metadata=False)))["items"]
    assert [list(item) for item in without] == [["item_id", "score"]] * 2


@pytest.mark.parametrize("score", [0.1 + 0.2, 1e-300, -3.5, 12345678901234567.0, 0.0])
def test_scores_are_encoded_to_the_last_bit(score: float) -> None:
    """A score that is parsed from JSON equals the computed float."""
    fragments = ItemFragments.build(IdTable.from_ids(IDS), None)
    answer = ORIGIN.before(encode_fields(Ranking(np.array([0], np.int32), np.array([score])), fragments))
    assert json.loads(answer)["items"][0]["score"] == score


def test_values_that_json_lacks_are_converted() -> None:
    """NaN becomes null, and a time becomes text."""
    rows = [(float("nan"),), (np.datetime64("2026-01-02"),), (np.float32(0.5),), (b"x",), (None,), (["a"],)]
    fragments = ItemFragments.build(IdTable.from_ids(IDS), MetadataTable(("v",), rows))
    items = json.loads(ORIGIN.before(encode_fields(ranking(0, 1, 2, 4, 5), fragments)))["items"]
    assert [item["v"] for item in items] == [None, "2026-01-02", 0.5, None, ["a"]]


def test_a_batch_holds_answers_and_errors_in_order() -> None:
    """Each element has its index, and lists ignored features beside its items."""
    fragments = ItemFragments.build(IdTable.from_ids(IDS), None)
    about = Prepared(Query(limit=1), ("colour",), ("i9",), "history")
    results = [(ranking(0), NOTHING_MORE), UnknownUser("who"), (ranking(1), about)]
    document = json.loads(
        ORIGIN.before_all(list(encode_elements(results, [fragments] * 3, [b""] * 3, with_metadata=False)))
    )
    assert [element["index"] for element in document["results"]] == [0, 1, 2]
    assert document["results"][1] == {"index": 1, "status": "error", "code": "UNKNOWN_USER", "detail": "who"}
    assert document["results"][2]["ignored_features"] == ["colour"]
    assert document["results"][2]["ignored_items"] == ["i9"]
    assert document["results"][2]["profile"] == "history"


def test_prebuilt_bytes_take_less_than_45_bytes_an_item() -> None:
    """The bytes of an item are its id, its braces and keys, and eight bytes of offsets."""
    fragments = ItemFragments.build(IdTable.from_ids([f"i{i}" for i in range(10_000)]), None)
    blob, offsets = fragments.memory
    assert offsets.nbytes == 8 * 10_000 + 4
    assert len(blob) + offsets.nbytes < 10_000 * 45
