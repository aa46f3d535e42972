"""Film ratings from training to filtered answers, while a list of available films changes in an object store.

SVC_TEST_FILM_RATINGS names a folder with `ratings.csv` (user_id, item_id, rating, ts) and `movies.csv` (item_id, title,
year, genres), such as MovieTweetings. Without it, the tests make a small data set of the same form.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import time
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SIGNING_KEYS, Shop, make_shop
from tests.e2e.load import Clients
from tests.e2e.server import Server, put, until

pytestmark = pytest.mark.integration
GIVEN = os.environ.get("SVC_TEST_FILM_RATINGS")
GENRES = ("Action", "Comedy", "Crime", "Drama", "Romance", "War")
REFRESHES, PAGE = 3, 20
RECOMMEND = "/v1/recipes/films:recommend"


@dataclass
class Films:
    """Year and genres of each film, and the films that each user rated, in the order of the files."""

    years: dict[str, int | None]
    genres: dict[str, set[str]]
    rated: dict[str, list[str]]

    @classmethod
    def read(cls, folder: Path) -> Films:
        with (folder / "movies.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        rated = defaultdict(list)
        with (folder / "ratings.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rated[row["user_id"]].append(row["item_id"])
        return cls(
            years={row["item_id"]: int(row["year"]) if row["year"] else None for row in rows},
            genres={row["item_id"]: set(row["genres"].split("|")) - {""} for row in rows},
            rated=dict(rated),
        )

    def fits(self, film: str) -> bool:
        """Return whether a film satisfies `FILTER`. A film that the table lacks has no year and no genre."""
        year, genres = self.years.get(film), self.genres.get(film, set())
        return bool(genres & {"Comedy", "Drama"}) and year is not None and year >= 1990 and "War" not in genres


FILTER = {
    "all": [{"genres": {"any": ["Comedy", "Drama"]}}, {"year": {"gte": 1990}}, {"not": {"genres": {"any": ["War"]}}}]
}


def write_films(folder: Path) -> None:
    """Write tables like the real ones, with commas in titles, several genres, missing years, and users with tastes."""
    rng = random.Random(5)
    genres = [rng.sample(GENRES, rng.randint(1, 3)) for _ in range(600)]
    with (folder / "movies.csv").open("w", newline="", encoding="utf-8") as file:
        rows = (
            [f"tt{n:07}", f"Film, the {n}th", 1950 + n % 70 if n % 50 else "", "|".join(genres[n])] for n in range(600)
        )
        csv.writer(file).writerows([["item_id", "title", "year", "genres"], *rows])
    with (folder / "ratings.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "item_id", "rating", "ts"])
        for user in range(400):
            liked = [n for n in range(600) if GENRES[user % 6] in genres[n]]
            for n in dict.fromkeys([*rng.sample(liked, 15), *rng.sample(range(600), 10)]):
                writer.writerow([f"u{user}", f"tt{n:07}", rng.randint(3, 10), 1_365_000_000 + rng.randrange(10**7)])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Return a shop with a trained model of films."""
    made = make_shop(tmp_path_factory.mktemp("films"))
    made.recipe.unlink()
    if GIVEN is None:
        write_films(made.folder)
    else:
        for name in ("movies.csv", "ratings.csv"):
            shutil.copy(Path(GIVEN) / name, made.folder / name)
    recipe = {
        "name": "films",
        "source": {"type": "csv", "path": str(made.folder / "ratings.csv")},
        "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
        "training": {
            "algorithms": ["CosineKNN"],
            "n_trials": 2,
            "split": {"scheme": "time_user", "heldout_ratio": 0.2},
        },
        "item_metadata": {
            "source": {"type": "csv", "path": str(made.folder / "movies.csv"), "dtype": {"item_id": "str"}},
            "id_column": "item_id",
            "fields": ["title"],
            "on_field_missing": "null",
            "filter_fields": [
                {"name": "genres", "kind": "multi_label", "delimiter": "|"},
                {"name": "year", "kind": "numerical"},
            ],
        },
        "output": {"path": str(made.folder / "artifacts" / "films.svc"), "versioning": "append_sha"},
    }
    put(made.folder / "recipes.json", json.dumps(recipe))
    home = made.folder / "recipes"
    home.mkdir()
    put(home / "films.yaml", json.dumps(recipe))
    trained = made.svc("train", str(home / "films.yaml"), "--quiet")
    assert trained.code == 0, trained.err
    return made


def with_list(shop: Shop, uri: str) -> Path:
    """Add a list of available films at `uri` and a fallback to the recipe, and return the folder of recipes."""
    recipe = json.loads((shop.folder / "recipes.json").read_text())
    available = {"source": {"type": "csv", "path": uri}, "id_column": "item_id", "mode": "allow", "refresh_seconds": 5}
    recipe["serving"] = {"availability": available, "fallback": "popular"}
    home = shop.folder / "recipes"
    put(home / "films.yaml", json.dumps(recipe))
    return home


class Visitors(Clients):
    """A known user, a visitor with a history and a stranger, each with up to 20 filtered requests a second."""

    def __init__(self, url: str, films: Films) -> None:
        self.answers: list[tuple[float, float, dict[str, Any], httpx.Response]] = []
        self._url = url
        self._films = films
        super().__init__(3)

    def ask(self, number: int) -> None:
        rng = random.Random(number)
        users = list(self._films.rated)
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self.over.wait(0.05):
                user = rng.choice(users)
                who = ({"user_id": user}, {"history": self._films.rated[user][:5]}, {"user_id": "a stranger"})[number]
                body = {**who, "limit": PAGE, "filter": FILTER}
                began = time.time()
                answer = client.post(RECOMMEND, json=body)
                self.answers.append((began, time.time(), body, answer))


@pytest.mark.timeout(300)
def test_filtered_pages_stay_full_and_allowed_while_the_list_changes(shop: Shop, s3_bucket: tuple[str, Any]) -> None:
    """Each page is full while films are left, and shows only films that the filter and the list allow.

    Each list drops a sixth of the films for good. Films that are not in the list when a request begins must not appear.
    """
    films = Films.read(shop.folder)
    catalogue = sorted({film for rated in films.rated.values() for film in rated})
    dropped_by = {film: place % 6 for place, film in enumerate(catalogue)}  # the number of the list that drops it
    bucket, filesystem = s3_bucket

    def listed(number: int) -> bytes:
        kept = [film for film in catalogue if not 1 <= dropped_by[film] <= number]
        return "\n".join(["item_id", *kept, ""]).encode()

    def left(number: int, without: set[str]) -> int:
        return sum(
            films.fits(film) and not 1 <= dropped_by[film] <= number and film not in without for film in catalogue
        )

    filesystem.pipe_file(f"{bucket}/available.csv", listed(0))
    home = with_list(shop, f"{bucket}/available.csv")
    with Server(home, env={"SVC_SIGNING_KEYS": SIGNING_KEYS}) as server:
        with Visitors(server.url, films) as visitors:
            server.wait_for("availability_loaded")
            for number in range(1, REFRESHES + 1):
                filesystem.pipe_file(f"{bucket}/available.csv", listed(number))
                server.wait_for("availability_loaded", times=number + 1)
            so_far = len(visitors.answers)
            until(lambda: len(visitors.answers) > so_far + 50, server.log)
        in_force = [
            datetime.fromisoformat(record["timestamp"]).timestamp() for record in server.said("availability_loaded")
        ]
        fallbacks = server.metric('svc_v1_fallbacks_total{recipe="films",verb="recommend"}')
    ways: dict[str, int] = defaultdict(int)
    for began, _, body, response in visitors.answers:
        assert response.status_code == 200, response.text
        answer = response.json()
        shown = [item["item_id"] for item in answer["items"]]
        number = bisect(in_force, began) - 1
        seen = set(films.rated.get(body.get("user_id", ""), body.get("history", ())))
        assert all(films.fits(film) for film in shown)
        assert not [film for film in shown if 1 <= dropped_by[film] <= number]
        assert len(set(shown)) == len(shown)
        assert not seen & set(shown)
        assert len(shown) == PAGE or len(shown) <= left(number, seen)
        assert len(shown) >= min(PAGE, left(REFRESHES, seen))
        ways[answer.get("profile", "user")] += 1
    assert ways.keys() == {"user", "history", "popular"}
    assert fallbacks == ways["popular"]
    assert any(dropped_by[film["item_id"]] >= 1 for *_, one in visitors.answers[:50] for film in one.json()["items"])


def test_a_filtered_page_keeps_order_and_scores_of_the_whole_ranking(shop: Shop) -> None:
    """The page begins with the films among the first 1,000 that pass the filter, with equal order and scores."""
    films = Films.read(shop.folder)
    put(shop.folder / "recipes" / "films.yaml", (shop.folder / "recipes.json").read_text())
    with Server(shop.folder / "recipes", env={"SVC_SIGNING_KEYS": SIGNING_KEYS}) as server:
        for user in list(films.rated)[:40]:
            everything = server.recommend("films", user, limit=1000).json()["items"]
            expected = [item for item in everything if films.fits(item["item_id"])]
            shown = server.recommend("films", user, limit=PAGE, filter=FILTER).json()["items"]
            assert shown[: len(expected)] == expected[:PAGE]
            assert len(shown) == PAGE
