"""Stored attributes, and the bytes that they take."""

from __future__ import annotations

import numpy as np

from svc.model.ids import IdTable
from svc.model.stored import Stored


class Inner(Stored):
    def __init__(self) -> None:
        self.numbers = np.zeros(3)
        self._derived = np.zeros(100)


class Outer(Stored):
    def __init__(self) -> None:
        self.inner = Inner()
        self.several = (Inner(),)
        self.ids = IdTable.from_ids(["a"])
        self.name = "x"


def test_derived_attributes_are_not_stored() -> None:
    """Attributes with a leading underscore are not stored, and computed again after loading."""
    assert set(Inner().__getstate__()) == {"numbers"}


class Later(Stored):
    ALWAYS_STORED = frozenset({"scales"})
    scales: object = None
    ties: object = None
    recency: float = 0.0
    parts_of: tuple[str, ...] = ()

    def __init__(self, **given: object) -> None:
        self.first = None
        vars(self).update({"scales": None, "ties": None, "recency": 0.0, "parts_of": (), **given})


def test_optional_attributes_are_stored_only_if_set() -> None:
    """Artifacts without them keep their bytes. Arrays without elements are stored."""
    assert list(Later().__getstate__()) == ["first", "scales"]
    given = {"ties": np.zeros(0, dtype=bool), "recency": 0.5, "parts_of": ("a",)}
    assert Later(**given).__getstate__() == {"first": None, "scales": None, **given}


def test_parts_lists_every_array_by_its_path() -> None:
    """Paths lead through stored objects, tuples and id tables. Plain values are not counted."""
    parts = Outer().parts()
    assert parts["inner.numbers"] == parts["several.0.numbers"] == 24
    assert parts["ids.blob"] == 1
    assert not any("_derived" in path or path == "name" for path in parts)
