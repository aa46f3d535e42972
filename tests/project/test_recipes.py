"""Every example in recipes/ trains on data that have the columns of the example."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import shutil
import sqlite3
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from svc.recipe.load import load_recipe
from svc.settings import Settings
from tests.artifact.conftest import ObjectPlace, s3_endpoint, s3_place  # noqa: F401  # fixtures
from tests.e2e.conftest import SIGNING_KEYS, Shop

RECIPES = Path(__file__).parents[2] / "recipes"
USERS, ITEMS, START_S = 150, 40, 1_700_000_000


def choices(n_users: int = USERS) -> Iterator[tuple[int, int, int]]:
    """Yield user, item and time in seconds. Each user chooses mostly among a quarter of the items."""
    rng = random.Random(3)
    for user in range(n_users):
        own = [item for item in range(ITEMS) if item % 4 == user % 4]
        for n, item in enumerate(dict.fromkeys(rng.sample(own, 8) + rng.sample(range(ITEMS), 3))):
            yield user, item, START_S + n * 86_400 + user


def purchases(data: Path, n_users: int = USERS) -> None:
    rows = pd.DataFrame(choices(n_users), columns=["customer_id", "product_id", "bought_at"])
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


@pytest.mark.system
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
    """The recipe of each example, with fewer trials, gives an artifact."""
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    dsn = f"sqlite:///{tmp_path}/data/orders.db"
    train(name, tmp_path, {}, {"SVC_RECIPE_MARKET": "fr", "SVC_RECIPE_DSN": dsn})
    assert list((tmp_path / "artifacts").glob("*.svc"))


@pytest.mark.system
def test_the_example_with_a_gate_lets_only_proven_models_pass(tmp_path: Path) -> None:
    """The first model passes. A later one of TopPop alone is refused with exit code 9."""
    table = tmp_path / "data" / "purchases.csv"
    purchases(table.parent, n_users=1200)
    rows = pd.read_csv(table)
    rows["bought_at"] = rows["bought_at"].sample(frac=1, random_state=1).to_numpy()  # the last ones show a taste too
    rows.to_csv(table, index=False)
    train("proven-only", tmp_path, {}, {})
    pointer = tmp_path / "artifacts" / "proven-only.svc"
    live = pointer.read_text()
    train("proven-only", tmp_path, {"[IALS, CosineKNN, RP3beta, TopPop]": "[TopPop]"}, {}, ended=9)
    assert pointer.read_text() == live
    assert len(list(pointer.parent.glob("proven-only.*.svc"))) == 2


def train(
    name: str,
    folder: Path,
    changes: dict[str, str],
    variables: dict[str, str],
    *,
    ended: int = 0,
    apart: bool = False,
) -> None:
    """Train a copy of the example with a smaller budget.

    `changes` replaces texts of the recipe, such as addresses that a test does not have. With `apart`, the training runs
    in a new process, because a library reads `variables` only once.
    """
    text = (RECIPES / f"{name}.yaml").read_text()
    budget = next(line for line in text.splitlines() if "n_trials:" in line)
    for old, new in {budget: "  n_trials: 4", **changes}.items():
        assert old in text
        text = text.replace(old, new)
    (folder / f"{name}.yaml").write_text(text)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SVC_")}
    shop = Shop(folder, environment | {"SVC_SIGNING_KEYS": SIGNING_KEYS, **variables})
    done = (shop.process if apart else shop.svc)("train", f"{name}.yaml", "--quiet")
    assert done.code == ended, done.err


@pytest.mark.integration
def test_the_bigquery_example_trains(tmp_path: Path) -> None:
    """Google's own clients talk to a fake server, which gets the query's parameter."""
    import pyarrow as pa
    import trustme

    from tests.sources.conftest import BigQuery

    columns = ("user_pseudo_id", "item_id", "event_timestamp")
    rows = zip(*((f"p{user}", f"i{item}", at * 1_000_000) for user, item, at in choices()), strict=True)
    table = pa.table(dict(zip(columns, (pa.array(column) for column in rows), strict=True)))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for server in BigQuery(table, authority.issue_cert("localhost")).run():
        variables = {
            "BIGQUERY_EMULATOR_HOST": server.rest,
            "BIGQUERY_STORAGE_EMULATOR_HOST": server.storage,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "ca.pem"),
        }
        train("events-bigquery", tmp_path, {"project: example-project": "project: test"}, variables, apart=True)
        sent = server.jobs[-1]["configuration"]["query"]["queryParameters"][0]
    assert (sent["name"], sent["parameterValue"]["value"]) == ("event", "purchase")


@pytest.mark.integration
def test_the_https_example_trains(tmp_path: Path) -> None:
    """The server's certificate and the sha256 of the compressed file are checked."""
    import trustme

    from tests.sources.conftest import Page, WebServer

    frame = pd.DataFrame(choices(), columns=["user_id", "item_id", "at"]).assign(rating=4)
    body = gzip.compress(frame.to_csv(index=False).encode())
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    for server in WebServer("https", context).run():
        server.pages["/ratings.csv.gz"] = Page(body=body)
        changes = {"https://data.example.org": server.url, "0" * 64: hashlib.sha256(body).hexdigest()}
        variables = {"SSL_CERT_FILE": str(tmp_path / "ca.pem"), "SVC_HTTP_ALLOW_PRIVATE": "1"}
        train("ratings-https", tmp_path, changes, variables, apart=True)


@pytest.mark.integration
def test_the_s3_example_trains(s3_place: ObjectPlace, tmp_path: Path) -> None:  # noqa: F811
    """Data of one day are read from a bucket, and the model is written to a bucket."""
    rows = pd.DataFrame(choices(), columns=["listener", "song", "played_at"])
    rows["played_at"] = pd.to_datetime(rows["played_at"], unit="s", utc=True)
    rows.to_parquet(tmp_path / "plays.parquet")
    folder = s3_place.uri("")
    s3_place.write("2026-01-31.parquet", (tmp_path / "plays.parquet").read_bytes())
    changes = {"s3://example-data/plays/": folder, "s3://example-models/": folder}
    train(
        "plays-s3",
        tmp_path,
        changes,
        {"SVC_RECIPE_DAY": "2026-01-31", "SVC_LOCK_DIR": str(tmp_path)},
        apart=True,
    )
    assert b"plays-s3." in s3_place.content("plays-s3.svc")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_is_a_valid_recipe(path: Path, tmp_path: Path) -> None:
    """Every example loads without a warning, and has the name of its file."""
    copy = shutil.copy(path, tmp_path)
    loaded = load_recipe(
        Path(copy), {"SVC_RECIPE_MARKET": "template", "SVC_RECIPE_DAY": "2026-01-31"}, settings=Settings()
    )
    assert (loaded.recipe.name, loaded.warnings) == (path.stem, ())


def test_every_example_is_listed() -> None:
    """recipes/README.md names every example."""
    listed = (RECIPES / "README.md").read_text()
    assert [path.name for path in RECIPES.glob("*.yaml") if path.name not in listed] == []
