"""What the parent's registry tells its workers."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
import trio

from svc.recipe.serving_schema import Availability
from svc.serving.models.lists.availability import ItemList
from svc.serving.models.registry import Entry
from svc.serving.workers.mirror import MirroringRegistry, WorkersState, mirrored


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


def declared() -> Availability:
    return Availability.model_validate(
        {"mode": "allow", "source": {"type": "csv", "path": "x.csv"}, "id_column": "item_id"}
    )


@pytest.mark.anyio
async def test_each_change_is_told_once() -> None:
    """In order, and skipped files only when they changed."""
    told: list[tuple[Any, ...]] = []
    registry = MirroringRegistry(lambda *message: told.append(message))
    registry.put(Entry("a", "a.yaml"))
    registry.skip({})
    registry.skip({"b.yaml": "wrong"})
    registry.skip({"b.yaml": "wrong"})
    registry.remove("a")
    assert [message[0] for message in told] == ["entry", "skip", "remove"]
    assert registry.get("a") is None


@pytest.mark.anyio
async def test_a_list_is_told_with_a_time_that_all_processes_share_and_without_its_ids() -> None:
    """Each event loop has a clock of its own."""
    began = time.perf_counter()
    listed = ItemList(("i1", "i2"), trio.current_time() - 60.0)
    message = pickle.loads(pickle.dumps(mirrored(Entry("a", "a.yaml", availability=declared(), listed=listed))))
    assert message.entry.listed.ids == ()
    assert message.entry.listed.read_at == pytest.approx(began - 60.0, abs=5.0)


def test_health_tells_of_the_workers() -> None:
    """Also of those whose place stays empty because each dies at once."""
    registry = MirroringRegistry(lambda *_: None)
    registry.workers = WorkersState(4, 3, 1)
    document, status = registry.health()
    assert document["workers"] == {"total": 4, "ready": 3, "failing": 1}
    assert status == 200
