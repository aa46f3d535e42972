"""A list of available items in a real object store changes while requests are answered."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, make_home, put, until, write_recipe
from tests.serving.artifacts import factor_model

pytestmark = pytest.mark.integration
N_USERS, N_ITEMS, REFRESHES = 200, 4000, 6
GENRES = ["Comedy", "Drama|Comedy", "War"]


def home(folder: Path, source: str, **availability: Any) -> Path:
    """A recipe whose items have a genre and a year, and whose list lies at `source`."""
    found = make_home(folder, "films", factor_model(N_USERS, N_ITEMS, 16))
    rows = [f"i{item},{GENRES[item % 3]},{1950 + item % 70}" for item in range(N_ITEMS)]
    put(folder / "films.csv", "\n".join(["film,genres,year", *rows, ""]))
    write_recipe(
        found,
        "films",
        folder / "films.svc",
        item_metadata={
            "source": {"type": "csv", "path": str(folder / "films.csv")},
            "id_column": "film",
            "filter_fields": [{"name": "genres", "kind": "multi_label"}, {"name": "year", "kind": "numerical"}],
        },
        serving={
            "filter": {"year": {"gte": 1960}},
            "availability": {
                "source": {"type": "csv", "path": source},
                "id_column": "id",
                "mode": "allow",
                "refresh_seconds": 5,
                **availability,
            },
        },
    )
    return found


def listed(parity: int) -> bytes:
    """All items of even or odd number."""
    return "\n".join(["id", *(f"i{item}" for item in range(N_ITEMS) if item % 2 == parity), ""]).encode()


class Load:
    """Clients who note, for each answer, between which times it was asked and which items it held."""

    def __init__(self, url: str) -> None:
        self.answers: list[tuple[float, int, set[int]]] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(url, number)) for number in range(3)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, url: str, number: int) -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            while not self._stop.is_set():
                began = time.monotonic()
                body = {"user_id": f"u{number}", "limit": 50, "filter": {"genres": {"any": ["Comedy"]}}}
                answer = client.post("/v1/recipes/films:recommend", json=body)
                items = {int(item["item_id"][1:]) for item in answer.json().get("items", [])}
                self.answers.append((began, answer.status_code, items))


@pytest.mark.timeout(300)
def test_a_list_in_s3_changes_under_load(tmp_path: Path, s3_bucket: tuple[str, Any]) -> None:
    """No request fails, and none that begins after a list is in force shows an item that it does not name."""
    bucket, filesystem = s3_bucket
    path = f"{bucket}/available.csv"
    filesystem.pipe_file(path, listed(0))
    in_force: list[tuple[float, int]] = []
    with Server(home(tmp_path, path)) as server, Load(server.url) as load:
        server.wait_for("availability_loaded")
        in_force.append((time.monotonic(), 0))
        for number in range(1, REFRESHES + 1):
            filesystem.pipe_file(path, listed(number % 2))
            until(lambda: len(server.said("availability_loaded")) > number, server.log)  # noqa: B023
            in_force.append((time.monotonic(), number % 2))
        filesystem.pipe_file(path, b"")
        server.wait_for("availability_load_failed")
        assert server.recipe("films")["availability"]["stale"] is False
    assert {status for _, status, _ in load.answers} == {200}
    assert len(load.answers) > 100
    for (start, parity), (end, _) in zip(in_force, [*in_force[1:], (time.monotonic(), 0)], strict=True):
        # A list comes into force before its event is seen here, so the last requests before that may hold either.
        settled = [items for began, _, items in load.answers if start <= began < end - 8]
        assert all(item % 2 == parity for items in settled for item in items)
    for _, _, items in load.answers:
        assert len(items) == 50
        assert all(item % 3 != 2 and item % 70 >= 10 for item in items)


def test_a_list_that_is_too_old_stops_the_recipe_until_it_is_back(tmp_path: Path) -> None:
    """503 with its own code; the server and its health stay."""
    path = tmp_path / "available.csv"
    put(path, listed(0))
    with Server(home(tmp_path, str(path), max_stale_seconds=6)) as server:
        assert server.recommend("films").status_code == 200
        path.unlink()
        until(lambda: server.recommend("films").status_code == 503, server.log)
        assert server.recommend("films").json()["code"] == "AVAILABILITY_STALE"
        assert server.health()[0] == 200
        assert server.details()[0] == 503
        server.wait_for("availability_stale", mode="allow")
        put(path, listed(1))
        until(lambda: server.recommend("films").status_code == 200, server.log)
        assert server.metric('svc_availability_age_seconds{recipe="films"}') < 10
