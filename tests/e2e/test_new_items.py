"""A real server with two workers recommends the new items of a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server, make_home, put, until, write_recipe
from tests.serving.artifacts import header
from tests.serving.client import model

pytestmark = pytest.mark.system
COLUMNS = [{"name": "tag", "kind": "categorical"}, {"name": "age", "kind": "numerical"}]
SIDE = {"source": {"type": "csv", "path": "none.csv"}, "id_column": "item_id", "columns": COLUMNS}
HEAD = header(
    features={
        "version": 1,
        "active": True,
        "user": {"dimension": 4, "columns": ["tag", "age"]},
        "item": {"dimension": 4, "columns": ["tag", "age"]},
    }
)


def test_a_new_item_is_recommended_and_follows_its_list(tmp_path: Path) -> None:
    """A broken list changes nothing. The next valid list takes effect."""
    home = make_home(tmp_path, "films", model(), head=HEAD)
    listed = tmp_path / "new.csv"
    put(listed, "item_id,tag,age\nn1,a,20\ni3,b,30\n")
    source = {"type": "csv", "path": str(listed)}
    write_recipe(
        home,
        "films",
        tmp_path / "films.svc",
        training={"algorithms": ["IALSRecommender"]},
        features={"item": SIDE},
        serving={"new_items": {"source": source, "refresh_seconds": 5, "max_share": None}},
    )
    with Server(home, args=["--workers", "2"]) as server:

        def new() -> list[str]:
            answer = server.recommend("films", "u1", limit=100).json()
            return sorted(item["item_id"] for item in answer["items"] if item.get("reason") == ["new"])

        assert new() == ["n1"]

        def asked(verb: str, body: dict[str, Any]) -> list[dict[str, Any]]:
            return list(server.client.post(f"/v1/recipes/films:{verb}", json=body).json()["items"])

        described = asked("recommend-related", {"item_features": {"tag": "a", "age": 20}})
        for verb, body in (("recommend-related", {"seed_items": ["n1"]}), ("recommend", {"history": ["n1"]})):
            for _ in range(4):  # by any worker
                assert asked(verb, body) == described != []
        put(listed, "item_id,tag,age\nn1,a,20\nn1,b,30\n")
        until(lambda: server.said("new_items_load_failed"))
        assert new() == ["n1"]
        put(listed, "item_id,tag,age\nn2,a,20\nn3,b,30\n")
        until(lambda: new() == ["n2", "n3"])
        assert server.details()[1]["recipes"]["films"]["new_items"]["n_new"] == 2
