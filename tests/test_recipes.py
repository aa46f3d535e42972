"""Every example in recipes/ is trained on data of its shape, through the real program."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from svc.recipe.load import load_recipe
from svc.settings import Settings

RECIPES = Path(__file__).parent.parent / "recipes"
USERS, ITEMS, START_S = 150, 40, 1_700_000_000


def choices() -> Iterator[tuple[int, int, int]]:
    """(user, item, seconds): people keep to their quarter of the items, mostly."""
    rng = random.Random(3)
    for user in range(USERS):
        own = [item for item in range(ITEMS) if item % 4 == user % 4]
        for n, item in enumerate(dict.fromkeys(rng.sample(own, 8) + rng.sample(range(ITEMS), 3))):
            yield user, item, START_S + n * 86_400 + user


def purchases(data: Path) -> None:
    rows = pd.DataFrame(choices(), columns=["customer_id", "product_id", "bought_at"])
    data.mkdir(parents=True, exist_ok=True)
    rows.to_csv(data / "purchases.csv", index=False)
    products = pd.DataFrame({"product_id": range(ITEMS), "title": [f"Thing {n}" for n in range(ITEMS)], "price": 9.5})
    products.to_csv(data / "products.csv", index=False)


def views(data: Path) -> None:
    rows = pd.DataFrame(choices(), columns=["visitor", "page", "viewed_at"])
    rows["viewed_at"] = pd.to_datetime(rows["viewed_at"], unit="s", utc=True)
    rows["page"] = "/p/" + rows["page"].astype(str)
    pd.concat([rows, rows]).to_parquet(data / "views.parquet")


def films(data: Path) -> None:
    rng = random.Random(4)
    pd.DataFrame(choices(), columns=["viewer_id", "film_id", "at"]).to_csv(data / "likes.csv", index=False)
    genres = ["Drama", "Crime|Drama", "Comedy", "Comedy|Family"]
    pd.DataFrame(
        {
            "film_id": range(ITEMS),
            "title": [f"Film {n}" for n in range(ITEMS)],
            "genres": [genres[n % 4] for n in range(ITEMS)],
            "country": [rng.choice(["fr", "jp", "us"]) for _ in range(ITEMS)],
            "year": [1960 + n for n in range(ITEMS)],
        }
    ).to_csv(data / "films.csv", index=False)
    bands = ["young", "old", "young", "old"]
    pd.DataFrame({"viewer_id": range(USERS), "age_band": [bands[n % 4] for n in range(USERS)]}).to_csv(
        data / "viewers.csv", index=False
    )


def markets(data: Path) -> None:
    purchases(data / "fr")


def orders(data: Path) -> None:
    with sqlite3.connect(data / "orders.db") as database:
        database.execute("CREATE TABLE orders (customer_id TEXT, product_id TEXT, ordered_at INTEGER, state TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, 'paid')", choices())
        database.execute("INSERT INTO orders VALUES ('nobody', 'nothing', 0, 'cancelled')")
    database.close()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("shop-purchases", purchases),
        ("page-views", views),
        ("ratings-with-features", films),
        ("market-template", markets),
        ("orders-sql", orders),
    ],
)
def test_an_example_trains(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    """The recipe as it stands, with a smaller budget, gives an artifact."""
    text = (RECIPES / f"{name}.yaml").read_text()
    budget = next(line for line in text.splitlines() if "n_trials:" in line)
    (tmp_path / f"{name}.yaml").write_text(text.replace(budget, "  n_trials: 4"))
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SVC_")}
    environment |= {
        "SVC_SIGNING_KEYS": "test:" + "5a" * 32,
        "SVC_RECIPE_MARKET": "fr",
        "SVC_RECIPE_DSN": f"sqlite:///{tmp_path}/data/orders.db",
        "PYTHONPATH": str(RECIPES.parent),
    }
    command = [sys.executable, "-m", "svc", "train", f"{name}.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "artifacts").glob("*.svc"))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_is_a_valid_recipe(path: Path, tmp_path: Path) -> None:
    """Every example loads without a warning, and its name is its file's."""
    copy = shutil.copy(path, tmp_path)
    loaded = load_recipe(Path(copy), {"SVC_RECIPE_MARKET": "template"}, settings=Settings())
    assert (loaded.recipe.name, loaded.warnings) == (path.stem, ())


def test_every_example_is_listed() -> None:
    """recipes/README.md names each file."""
    listed = (RECIPES / "README.md").read_text()
    assert [path.name for path in RECIPES.glob("*.yaml") if path.name not in listed] == []
