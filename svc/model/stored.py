"""Choose the attributes of a model's objects that go into the payload. The others are computed again after loading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, ClassVar

import numpy as np


class Stored:
    """Base of the payload's objects. Attributes with a leading underscore are derived and not stored.

    If a class has a default for an attribute, its values None, 0, False and empty are not stored either, unless
    ALWAYS_STORED names it: a new optional attribute leaves the bytes of other artifacts as they are. `STORED_NAMES`
    gives an attribute another name in the payload, so that renaming it in the code changes no artifact.
    """

    ALWAYS_STORED: ClassVar[frozenset[str]] = frozenset()
    STORED_NAMES: ClassVar[dict[str, str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not (name[0] == "_" or self._lacks(name, value))}

    def _lacks(self, name: str, value: object) -> bool:
        is_optional = hasattr(type(self), name) and name not in self.ALWAYS_STORED
        return is_optional and isinstance(value, NoneType | bool | float | tuple) and not value

    def parts(self) -> dict[str, int]:
        """Return the bytes of each stored array, by the name of its attribute: `outer.inner` for one of a stored
        object.
        """
        return {path: size for name, value in self.__getstate__().items() for path, size in _parts(name, value)}


def _parts(path: str, value: object) -> Iterator[tuple[str, int]]:
    if isinstance(value, np.ndarray):
        yield path, value.nbytes
    elif isinstance(value, Stored):
        yield from ((f"{path}.{inner}", size) for inner, size in value.parts().items())
    elif isinstance(value, tuple):
        for position, element in enumerate(value):
            yield from _parts(f"{path}.{position}", element)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _parts(f"{path}.{field.name}", getattr(value, field.name))
