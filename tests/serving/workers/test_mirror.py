"""The parent's registry in the form for workers."""

from __future__ import annotations

import pickle
import time
from typing import Any, cast

import pytest
import trio

from svc.recipe.serving_schema import Availability
from svc.serving.models.lists.availability import ItemList
from svc.serving.models.lists.new_items import PlacedItems
from svc.serving.models.registry import Entry, Served
from svc.serving.workers.mirror import RemoteLane, mirrored


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


def declared() -> Availability:
    return Availability.model_validate(
        {"mode": "allow", "source": {"type": "csv", "path": "x.csv"}, "id_column": "item_id"}
    )


@pytest.mark.anyio
async def test_a_list_is_sent_on_a_shared_clock_and_without_ids() -> None:
    """Each event loop has a clock of its own."""
    began = time.perf_counter()
    listed = ItemList(("i1", "i2"), trio.current_time() - 60.0)
    entry, _ = pickle.loads(pickle.dumps(mirrored(Entry("a", "a.yaml", availability=declared(), listed=listed))))
    assert entry.listed.ids == ()
    assert entry.listed.read_at == pytest.approx(began - 60.0, abs=5.0)


@pytest.mark.anyio
async def test_new_items_are_sent_once_and_to_each_new_worker() -> None:
    """They may be large, and each change sends the whole state of a recipe."""
    new = PlacedItems(cast(Any, "n1"), cast(Any, None), None)
    unused: Any = None
    lane = RemoteLane(1, lambda _: None)
    entry = Entry("a", "a.yaml", Served("a", unused, unused, {}, "sha256:0", "k1", lane, 0.0, new=new))
    (_, first), (_, second) = mirrored(entry), mirrored(entry, entry.served)
    assert first is not None
    assert first.new is not None
    assert second is not None
    assert pickle.loads(first.new).items == "n1"
    assert (first.keeps_new, second.keeps_new, second.new) == (False, True, None)
