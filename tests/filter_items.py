"""A recipe whose items have the fields of the random filters in `filter_trees`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from svc.model.model import Model
from tests.e2e.server import make_home, put, write_recipe
from tests.filter_trees import KINDS


def filterable_home(folder: Path, name: str, model: Model, rows: Iterable[str]) -> Path:
    """Return a folder with the recipe `name`.

    Each row is the CSV line of one item: its id, then a value of each field.
    """
    found = make_home(folder, name, model)
    put(folder / "items.csv", "\n".join([",".join(["item", *KINDS]), *rows, ""]))
    metadata = {
        "source": {"type": "csv", "path": str(folder / "items.csv")},
        "id_column": "item",
        "filter_fields": [{"name": field, "kind": kind} for field, kind in KINDS.items()],
    }
    write_recipe(found, name, folder / f"{name}.svc", item_metadata=metadata)
    return found
