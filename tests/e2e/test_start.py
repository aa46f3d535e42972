"""Starts of a server with recipes of different kinds, whose threads import different libraries at the same time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.server import Server, put, write_recipe
from tests.e2e.test_new_items import HEAD, SIDE
from tests.serving.artifacts import factor_model, popularity_model, write_artifact
from tests.serving.client import model

STARTS = 10
FAILED = frozenset({"warning", "error", "critical"})
"""Levels of events that tell of a failure."""


def mixed_recipes(folder: Path) -> Path:
    """Write five recipes that differ in what their load reads, and return their folder.

    A recipe without tables needs neither Arrow nor pandas. The others read csv or Parquet, with or without filters.
    """
    home = folder / "recipes"
    home.mkdir()
    films = {"item_id": [f"i{item}" for item in range(6)], "title": list("abcdef"), "year": [*range(2000, 2006)]}
    pq.write_table(pa.table(films), folder / "films.parquet")
    put(folder / "films.csv", "item_id,title\n" + "".join(f"i{item},Film {item}\n" for item in range(6)))
    put(folder / "new.csv", "item_id,tag,age\nn1,a,20\n")
    csv, parquet = ({"type": kind, "path": f"../films.{kind}"} for kind in ("csv", "parquet"))
    years = [{"name": "year", "kind": "numerical"}]
    new = {"source": {"type": "csv", "path": "../new.csv"}, "refresh_seconds": 5}
    listed = {"source": csv, "id_column": "item_id", "mode": "allow", "refresh_seconds": 5}
    metadata = {"id_column": "item_id", "fields": ["title"]}
    for name, scorer, more in (
        ("plain", popularity_model(0), {}),
        ("titles", popularity_model(1), {"item_metadata": {"source": csv, **metadata}}),
        (
            "years",
            factor_model(4, 6, 3),
            {
                "item_metadata": {"source": parquet, **metadata, "filter_fields": years},
                "serving": {"filter": {"year": {"gte": 2001}}},
            },
        ),
        ("listed", popularity_model(2), {"serving": {"availability": listed}}),
        (
            "new",
            model(),
            {
                "training": {"algorithms": ["IALSRecommender"]},
                "features": {"item": SIDE},
                "serving": {"new_items": new},
            },
        ),
    ):
        write_recipe(home, name, f"../{name}.svc", **more)
        write_artifact(folder / f"{name}.svc", scorer, head=HEAD if name == "new" else None)
    return home


@pytest.mark.timeout(600)  # a start takes seconds beside other tests
@pytest.mark.parametrize("args", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_no_start_with_different_recipes_fails(tmp_path: Path, args: list[str]) -> None:
    """No thread reads a module that another thread is still importing. Each start is a new interpreter."""
    home = mixed_recipes(tmp_path)
    for _ in range(STARTS):
        with Server(home, args=args, fresh=True) as server:
            assert [record for record in server.records if record["level"] in FAILED] == []
            assert server.health()[0] == 200
            assert server.get("/v1/health/ready").status_code == 200
