"""The shards of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.export.request import ExportRequest, Shard
from svc.model.ids import IdTable, digest
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from tests.export.conftest import Artifact, Export, manifest_of, rows_of


@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.integers(1, 50))
def test_each_id_is_in_exactly_one_shard(text: str, count: int) -> None:
    """The shard of an id depends only on a digest of the id."""
    assert sum(Shard(index, count).holds(digest(text.encode())) for index in range(count)) == 1


def test_the_manifest_tells_lists_of_new_items_apart() -> None:
    """Parts with other new items are of another export. The order of the list does not matter."""

    def candidates(*ids: str, sold: str = "") -> str:
        new = NewItems(IdTable.from_ids(ids), np.zeros((len(ids), 2)), 9, None)
        allowed = ItemSet.of_flags(np.array([True] * 9 + [item != sold for item in ids])) if sold else None
        return str(ExportRequest(output="x.csv", allowed=allowed, new=new).asked("all")["candidates"])

    assert candidates("n1", "n2") == candidates("n2", "n1") != candidates("n1", "n3")
    ordered = candidates("n1", "n2", "n3", sold="n1")
    assert ordered == candidates("n3", "n1", "n2", sold="n1") != candidates("n1", "n2", "n3", sold="n2")


def test_a_list_of_users_is_exported_in_its_order(artifact: Artifact, recommend: Export, tmp_path: Path) -> None:
    """Each user is written once. Unknown ids are skipped and counted, and blank lines and line ends do not matter."""
    (tmp_path / "ids.txt").write_text("\ufeffu5\r\nnobody\n\nu2\nu5\nnor she\n u2\n")
    out = tmp_path / "out.csv"
    assert recommend(artifact("factors"), "--users", tmp_path / "ids.txt", "--limit", "2", "--output", out) == 0
    assert [(row["user_id"], row["rank"]) for row in rows_of(out)] == [("u5", 1), ("u5", 2), ("u2", 1), ("u2", 2)]
    assert manifest_of(out)["skipped"] == 3


@pytest.mark.parametrize(("content", "words"), [(None, "does not exist"), (b"u1\n\xff\n", "line 2 is not UTF-8")])
def test_an_unreadable_list_ends_with_3(
    artifact: Artifact, recommend: Export, tmp_path: Path, *, capsys: Any, content: bytes | None, words: str
) -> None:
    """The message names the file and the line, and nothing is written."""
    if content is not None:
        (tmp_path / "ids.txt").write_bytes(content)
    out = tmp_path / "out/x.csv"
    assert recommend(artifact("factors"), "--users", tmp_path / "ids.txt", "--output", out) == 3
    assert words in capsys.readouterr().err
    assert not any(out.parent.iterdir())
