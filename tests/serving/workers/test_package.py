"""A packed model, which workers map from sealed memory, and the registry in the form for workers."""

from __future__ import annotations

import gc
import pickle
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio

from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import open_store
from svc.errors import ArtifactError, SignatureMismatch
from svc.model.codec import Stored
from svc.model.ranking.filter_fields import NO_FIELDS
from svc.processes import SealedMemory
from svc.serving.models.loader import Loaded, Loader
from svc.serving.models.placed_items import PlacedItems
from svc.serving.models.registry import Entry, ListState
from svc.serving.workers.package import Package, WorkerLanes, pack_loaded, read_entry, write_entry
from tests import planned
from tests.model.test_model import FAMILIES, made, queries
from tests.serving.artifacts import (
    OTHER_KEYS,
    SIGNING_KEYS,
    availability,
    factor_model,
    recipe,
    served_model,
    write_artifact,
)
from tests.serving.models.test_loader import SETTINGS

pytestmark = pytest.mark.anyio

METADATA = {
    "source": {"type": "csv", "path": "items.csv"},
    "id_column": "item_id",
    "fields": ["title"],
    "filter_fields": [{"name": "price", "kind": "numerical"}, {"name": "title", "kind": "categorical"}],
}


def load(folder: Path, pack: Any, keys: str = SIGNING_KEYS) -> Loaded:
    store = open_store(str(folder / "a.svc"), SETTINGS)
    loaded = Loader(SETTINGS, parse_signing_keys(keys), {}, pack=pack).load(
        recipe(folder, item_metadata=METADATA), store
    )
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("family", ["svd", "neighbours", "blend"])
def test_a_worker_ranks_users_for_an_item_from_the_shared_summary(tmp_path: Path, family: str) -> None:
    model = made(family)
    prepare(tmp_path, model)
    store = open_store(str(tmp_path / "a.svc"), SETTINGS)
    loader = Loader(SETTINGS, parse_signing_keys(SIGNING_KEYS), {}, pack=pack_loaded)
    shared = loader.load(recipe(tmp_path, serving={"users": True}), store)
    assert shared is not None
    model.serve_users()
    query = planned.users(model, item_id="i7", item_features=None, limit=9, order="balanced").query
    (expected,), (ranking,) = model.rank([query]), reopened(shared).model.rank([query])
    assert ranking.items.tolist() == expected.items.tolist()
    assert ranking.scores.tolist() == expected.scores.tolist()


def prepare(folder: Path, model: Any) -> None:
    write_artifact(folder / "a.svc", model)
    rows = [f"{model.item_ids.at(row)},title {row},{row}.5" for row in range(len(model.item_ids))]
    (folder / "items.csv").write_text("\n".join(["item_id,title,price", *rows]), encoding="utf-8")


def reopened(shared: Loaded) -> Loaded:
    """Open a packed model as a worker does: the message is pickled, and files arrive as descriptors."""
    assert shared.package is not None
    package = shared.package
    message = pickle.loads(pickle.dumps((package.pickled, package.extents)))
    return Package(*message, package.files).open()


def arrays(value: object, seen: set[int]) -> list[np.ndarray]:
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return [value]
    inner: list[object] = list(value) if isinstance(value, tuple | list) else []
    if isinstance(value, Stored) or hasattr(value, "__dict__"):
        inner += vars(value).values()
    inner += [getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    return [array for part in inner for array in arrays(part, seen)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_answers_the_same_bytes(tmp_path: Path, family: str) -> None:
    """Rankings, JSON of items and filters equal those of the loaded model."""
    prepare(tmp_path, made(family))
    alone, handed = load(tmp_path, None), reopened(load(tmp_path, pack_loaded))
    for expected, got in zip(
        alone.model.rank(queries(alone.model, 8)), handed.model.rank(queries(handed.model, 8)), strict=True
    ):
        assert alone.fragments.items(expected, with_metadata=True) == handed.fragments.items(got, with_metadata=True)
    assert alone.filters.describe() == handed.filters.describe()
    assert handed.filters.kinds == {"price": "numerical", "title": "categorical"}
    assert (handed.sha256, handed.kid, handed.header) == (alone.sha256, alone.kid, alone.header)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_freed_with_its_last_reference(tmp_path: Path, family: str) -> None:
    """Replaced models must not wait for garbage collection, so no model may refer to itself."""
    prepare(tmp_path, made(family))
    model = reopened(load(tmp_path, pack_loaded)).model
    model.rank(queries(model, 8))
    model.serve_users()
    freed = weakref.ref(model)
    gc.disable()
    del model
    gc.enable()
    assert freed() is None


def test_all_arrays_of_a_packed_model_lie_in_sealed_memory(tmp_path: Path) -> None:
    """Stored arrays stay in the verified file. All workers share the derived arrays."""
    prepare(tmp_path, factor_model(40, 70, 8))
    handed = reopened(load(tmp_path, pack_loaded))
    found = arrays(handed.model, set())
    assert len(found) > 5
    for array in found:
        assert not array.flags.writeable
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert array.size == 0 or isinstance(memoryview(base).obj, SealedMemory), array.shape
    assert isinstance(handed.fragments.memory[0], SealedMemory)


def test_a_wrong_signature_is_refused_before_packing(tmp_path: Path) -> None:
    """Verification reads the sealed file that workers map."""
    prepare(tmp_path, factor_model(10, 70, 4))
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path, pack_loaded, keys=OTHER_KEYS)
    assert isinstance(caught.value, SignatureMismatch) or caught.value.stage == "hmac"


async def test_the_age_of_a_list_is_sent_on_a_clock_that_processes_share() -> None:
    """The clocks of event loops differ between processes. The ids of the list are not sent."""
    began = time.perf_counter()
    state = ListState(availability(), ("i1", "i2"), trio.current_time() - 60.0)
    unread = ListState(availability())
    pickled = write_entry(Entry("a", "a.yaml", availability=state, new_items=cast(Any, unread)))
    entry = read_entry(pickled, 7.0, cast(Any, None))
    assert entry.availability is not None
    assert entry.availability.content is None
    assert entry.availability.read_at == pytest.approx(began - 53.0, abs=5.0)
    assert entry.new_items == unread


async def test_new_items_are_sent_once_and_to_each_new_worker() -> None:
    """New items may be large. Later changes of the recipe do not send them again."""
    new = PlacedItems(cast(Any, "n1"), cast(Any, None), NO_FIELDS)
    lane = WorkerLanes(1, lambda _: None)
    entry = Entry(
        "a",
        "a.yaml",
        served_model(name="a", lane=lane, new=new),
    )
    first, second = write_entry(entry), write_entry(entry, entry.served)
    assert (b"n1" in first, b"n1" in second) == (True, False)
    keys: list[tuple[Any, ...]] = []

    def served(*key: Any) -> Any:
        keys.append(key)
        return SimpleNamespace(new="the same", beside=lambda _available, new, _policy: new)

    received: list[Any] = [read_entry(pickled, 0.0, served).served for pickled in (first, second)]
    assert (received[0].items, received[1]) == ("n1", "the same")
    assert keys == [(1, "a", 0.0)] * 2
