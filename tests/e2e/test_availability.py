"""A list of available items changes while requests are answered, in a real object store and as a file."""

from __future__ import annotations

import os
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.load import Clients
from tests.e2e.server import Server, make_home, put, until, write_recipe
from tests.serving.artifacts import factor_model

pytestmark = pytest.mark.integration
N_USERS, PAGE = 200, 50
REFRESHES = int(os.environ.get("SVC_TEST_REFRESHES", "2"))
LISTED = max(30_000, 500 * REFRESHES)
STEP = LISTED // max(REFRESHES, 1)
"""The number of items that each list exchanges for new ones."""
GENRES = ["Comedy", "Drama|Comedy", "War"]


def home(folder: Path, source: str, n_items: int) -> Path:
    """Write a recipe with genres and years, and with the list of available items at `source`."""
    found = make_home(folder, "films", factor_model(N_USERS, n_items, 16))
    rows = [f"i{item},{GENRES[item % 3]},{1950 + item % 70}" for item in range(n_items)]
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
            },
        },
    )
    return found


@dataclass(frozen=True)
class Answer:
    """The outcome of a request: Unix times, status, and the number, lowest and highest of its items."""

    began: float
    ended: float
    status: int
    items: int
    lowest: int
    highest: int
    fits: bool
    """Whether every item satisfies the filters of the recipe and of the request."""


class Viewers(Clients):
    """A known user, a visitor with a history and a stranger: each keeps an `Answer` for up to 50 requests a second."""

    def __init__(self, url: str) -> None:
        self.answers: list[Answer] = []
        self._url = url
        super().__init__(3)

    def ask(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self.over.wait(0.02):
                began = time.time()
                who = ({"user_id": "u7"}, {"history": ["i3", "i900"]}, {"user_id": "stranger"})[number]
                body = {**who, "limit": PAGE, "filter": {"genres": {"any": ["Comedy"]}}, "fallback": "popular"}
                answer = client.post("/v1/recipes/films:recommend", json=body)
                items = [int(item["item_id"][1:]) for item in answer.json().get("items", [])]
                fits = all(item % 3 != 2 and item % 70 >= 10 for item in items)
                found = (len(items), min(items, default=-1), max(items, default=-1), fits)
                self.answers.append(Answer(began, time.time(), answer.status_code, *found))


def window(number: int) -> bytes:
    """Return list `number`: LISTED consecutive items.

    The first of them is STEP items after the first of the list before.
    """
    first = number * STEP
    return "\n".join(["id", *(f"i{item}" for item in range(first, first + LISTED)), ""]).encode()


@pytest.mark.timeout(300 + 10 * REFRESHES)
def test_a_long_list_in_s3_changes_under_load(
    tmp_path: Path, s3_bucket: tuple[str, Any], record_property: Callable[[str, object], None]
) -> None:
    """No request fails, every page is full, and no page has an item outside the lists in force.

    An item that a list drops never returns, so it must not be shown to requests that begin after that list. Items of
    lists that are not yet written must not be shown either. SVC_TEST_REFRESHES is the number of refreshes.
    """
    bucket, filesystem = s3_bucket
    path = f"{bucket}/available.csv"
    filesystem.pipe_file(path, window(0))
    written = [time.time()]
    with Server(home(tmp_path, path, LISTED + REFRESHES * STEP)) as server, Viewers(server.url) as viewers:
        server.wait_for("availability_loaded", n_ids=LISTED)
        for number in range(1, REFRESHES + 1):
            written.append(time.time())
            filesystem.pipe_file(path, window(number))
            server.wait_for("availability_loaded", times=number + 1)
        last = len(viewers.answers)
        until(lambda: len(viewers.answers) > last + 100, server.log)
        filesystem.pipe_file(path, b"")
        server.wait_for("availability_load_failed")
        assert server.recipe("films")["availability"]["stale"] is False
        in_force = [
            datetime.fromisoformat(record["timestamp"]).timestamp() for record in server.said("availability_loaded")
        ]
    answers = viewers.answers
    assert len(in_force) == len(written) == REFRESHES + 1
    assert {answer.status for answer in answers} == {200}
    assert all(answer.items == PAGE and answer.fits for answer in answers)
    shown_gone = [one for one in answers if one.lowest < (bisect(in_force, one.began) - 1) * STEP]
    shown_early = [
        answer for answer in answers if answer.highest >= (bisect(written, answer.ended) - 1) * STEP + LISTED
    ]
    assert (shown_gone, shown_early) == ([], [])
    # The same check against the list after the one in force finds something, so it can fail.
    assert any(answer.lowest < bisect(in_force, answer.began) * STEP for answer in answers)
    record_property("answers", len(answers))
