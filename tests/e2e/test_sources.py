"""Each kind of source end to end: `svc validate`, `svc train`, and a server with the trained model.

The sources in object stores are those of `test_stores.py`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.conftest import ROOT, Ended, Shop, write_sales
from tests.e2e.server import Server, until
from tests.serving.artifacts import SIGNING_KEYS
from tests.sources.conftest import BigQuery, Page, WebServer, tls_context

pytestmark = pytest.mark.integration
SECRET = "hunter2"
DSN = "SVC_RECIPE_DSN"
COLUMNS = ("user_id", "item_id", "ts")
SERVERS = {"postgres": "SVC_TEST_POSTGRES_URL", "mariadb": "SVC_TEST_MYSQL_URL"}
TRAINING = {"algorithms": ["TopPop"], "n_trials": 1, "cutoff": 5, "split": {"scheme": "time_user"}}
KINDS = ("csv", "jsonl", "parquet", "delta", "duckdb", "sqlite", *SERVERS, "bigquery", "https", "plugin")


@dataclass(frozen=True)
class Source:
    """The `source` block of a recipe, the variables that the source needs, and more blocks of the recipe."""

    options: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the sales that every source provides to a CSV file, and return its path."""
    path = tmp_path_factory.mktemp("sales") / "sales.csv"
    write_sales(path)
    return path


def rows_of(sales: Path) -> list[tuple[str, str, int]]:
    with sales.open(newline="") as file:
        return [(row["user_id"], row["item_id"], int(row["ts"])) for row in csv.DictReader(file)]


def as_parquet(sales: Path, path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = zip(*rows_of(sales), strict=True)
    pq.write_table(pa.table(dict(zip(COLUMNS, map(list, columns), strict=True))), path)
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, str]]:
    """Return a private certificate authority, and the variables that make httpx and gRPC trust it."""
    import trustme

    made, path = trustme.CA(), tmp_path_factory.mktemp("authority") / "ca.pem"
    made.cert_pem.write_to_path(str(path))
    return made, {"SSL_CERT_FILE": str(path), "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(path)}


@pytest.fixture
def csv_source(sales: Path, tmp_path: Path) -> Source:
    """Return a compressed CSV file with semicolons, UTF-16 and a header in the second line."""
    text = "# sales of the month\n" + sales.read_text().replace(",", ";")
    (tmp_path / "sales.csv.gz").write_bytes(gzip.compress(text.encode("utf-16")))
    return Source({"type": "csv", "path": "sales.csv.gz", "delimiter": ";", "encoding": "utf-16", "header": 1})


@pytest.fixture
def parquet_source(sales: Path, tmp_path: Path) -> Source:
    return Source({"type": "parquet", "path": f"file://{as_parquet(sales, tmp_path / 'sales.parquet')}"})


def filled(url: Any, sales: Path, table: str) -> Any:
    """Write the sales to `table` of a database, and return an engine for it."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} (user_id VARCHAR(20), item_id VARCHAR(20), ts BIGINT)")
        insert = sqlalchemy.text(f"INSERT INTO {table} VALUES (:user_id, :item_id, :ts)")
        connection.execute(insert, [dict(zip(COLUMNS, row, strict=True)) for row in rows_of(sales)])
    return engine


def query(table: str) -> dict[str, Any]:
    statement = f"SELECT ts, item_id, user_id FROM {table} WHERE ts >= :since"
    return {"type": "sql", "dsn_env": DSN, "query": statement, "query_parameters": {"since": 0}}


@pytest.fixture
def sqlite_source(sales: Path, tmp_path: Path) -> Source:
    url = f"sqlite:///{tmp_path}/sales.db"
    filled(url, sales, "sales").dispose()
    return Source(query("sales"), {DSN: url})


def database_source(kind: str, sales: Path) -> Iterator[Source]:
    """Yield a table of the database, with a user who may only read that table."""
    import sqlalchemy

    if not os.environ.get(SERVERS[kind]):
        pytest.skip(f"{SERVERS[kind]} is not set; give the SQLAlchemy URL of a database whose user may create users")
    url, name = sqlalchemy.make_url(os.environ[SERVERS[kind]]), f"svc_{secrets.token_hex(4)}"
    create, drop = {
        "postgres": (f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'", f"DROP OWNED BY {name}"),
        "mariadb": (f"CREATE USER {name} IDENTIFIED BY '{SECRET}'", "DO 0"),
    }[kind]
    engine = filled(url, sales, name)
    with engine.begin() as connection:
        for statement in (create, f"GRANT SELECT ON {name} TO {name}"):
            connection.exec_driver_sql(statement)
    reader = url.set(username=name, password=SECRET).render_as_string(hide_password=False)
    yield Source(query(name), {DSN: reader})
    with engine.begin() as connection:
        user = "ROLE" if kind == "postgres" else "USER"
        for statement in (f"DROP TABLE {name}", drop, f"DROP {user} {name}"):
            connection.exec_driver_sql(statement)


@pytest.fixture
def postgres_source(sales: Path) -> Iterator[Source]:
    yield from database_source("postgres", sales)


@pytest.fixture
def mariadb_source(sales: Path) -> Iterator[Source]:
    yield from database_source("mariadb", sales)


@pytest.fixture
def bigquery_source(sales: Path, tmp_path: Path, authority: tuple[Any, dict[str, str]]) -> Iterator[Source]:
    """Yield a fake BigQuery with REST and, over TLS, the Storage Read API."""
    import pyarrow.parquet as pq

    table = pq.read_table(as_parquet(sales, tmp_path / "sales.parquet"))
    options = {"type": "bigquery", "query": "SELECT * FROM sales", "project": "test"}
    for server in BigQuery(table, authority[0].issue_cert("localhost")).run():
        emulators = {"BIGQUERY_EMULATOR_HOST": server.rest, "BIGQUERY_STORAGE_EMULATOR_HOST": server.storage}
        yield Source(options, emulators | authority[1])
        assert "rows from 0" in server.calls


@pytest.fixture
def https_source(sales: Path, tmp_path: Path, authority: tuple[Any, dict[str, str]]) -> Iterator[Source]:
    """Yield interactions, features and metadata over TLS, two of them behind a redirect."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    items = [f"i{number}" for number in range(40)]
    years = pa.table({"item_id": items, "year": [1980 + number for number in range(40)]})
    pq.write_table(years, tmp_path / "years.parquet")
    titles = "item_id,title\n" + "".join(f"{item},Thing {item}\n" for item in items)
    bodies = {"sales.csv": sales.read_bytes(), "titles.csv": titles.encode()}
    bodies["years.parquet"] = (tmp_path / "years.parquet").read_bytes()
    for server in WebServer("https", tls_context(authority[0].issue_cert("localhost"))).run():
        server.pages = {f"/v2/{name}": Page(body) for name, body in bodies.items()}
        for name in ("sales.csv", "titles.csv"):
            server.pages[f"/{name}"] = Page(status=307, headers={"Location": f"/v2/{name}?sig={SECRET}"})
        server.pages["/years.parquet"] = server.pages["/v2/years.parquet"]

        def source(name: str, url: str = server.url) -> dict[str, Any]:
            digest = hashlib.sha256(bodies[name]).hexdigest()
            return {"type": name.rpartition(".")[2], "path": f"{url}/{name}?sig={SECRET}", "sha256": digest}

        year = {"source": source("years.parquet"), "id_column": "item_id"}
        features = {"item": year | {"columns": [{"name": "year", "kind": "numerical"}]}}
        metadata = {"source": source("titles.csv"), "id_column": "item_id", "fields": ["title"]}
        more = {"features": features, "item_metadata": metadata, "training": TRAINING | {"algorithms": ["IALS"]}}
        yield Source(source("sales.csv"), authority[1] | {"SVC_HTTP_ALLOW_PRIVATE": "1"}, more)


@pytest.fixture
def plugin_source(sales: Path, tmp_path: Path) -> Source:
    """Install the example plugin of docs/ with pip, and return a source of its type."""
    site, example = tmp_path / "site", ROOT / "docs" / "plugin-example"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(example)]
    subprocess.run(install, check=True, timeout=150)
    lists: dict[str, list[str]] = {}
    for user, item, _ in sorted(rows_of(sales), key=lambda row: row[2]):
        lists.setdefault(user, []).append(item)
    (tmp_path / "sales.txt").write_text("".join(f"{user} {' '.join(items)}\n" for user, items in lists.items()))
    schema = {"user_column": "user_id", "item_column": "item_id", "time_column": "position", "time_unit": "s"}
    variables = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    return Source({"type": "lists", "path": "sales.txt"}, variables, {"schema": schema})


@pytest.fixture
def delta_source(sales: Path, tmp_path: Path) -> Source:
    """Return a Delta table from which the rows of a user were removed."""
    import deltalake
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(as_parquet(sales, tmp_path / "sales.parquet"))
    removed = table.slice(0, 50).set_column(0, "user_id", pa.array(["removed"] * 50))
    deltalake.write_deltalake(tmp_path / "lake", pa.concat_tables([table, removed]))
    deltalake.DeltaTable(tmp_path / "lake").delete("user_id = 'removed'")
    return Source({"type": "delta", "path": "lake"})


@pytest.fixture
def duckdb_source(sales: Path, tmp_path: Path) -> Source:
    """Return a query over a copy of the sales in the recipe's folder."""
    (tmp_path / "copy.csv").write_bytes(sales.read_bytes())
    query = "SELECT user_id, item_id, ts FROM 'copy.csv' WHERE ts >= $since"
    return Source({"type": "duckdb", "query": query, "query_parameters": {"since": 0}})


@pytest.fixture
def jsonl_source(sales: Path, tmp_path: Path) -> Source:
    """Return compressed sessions with the list of their events."""
    events: dict[str, list[dict[str, Any]]] = {}
    for user, item, ts in rows_of(sales):
        events.setdefault(user, []).append({"item_id": item, "ts": ts})
    lines = [json.dumps({"user_id": user, "events": listed}) for user, listed in events.items()]
    (tmp_path / "sales.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    names = {"item_column": "events.item_id", "time_column": "events.ts", "time_unit": "s"}
    options = {"type": "jsonl", "path": "sales.jsonl.gz", "explode": "events"}
    return Source(options, more={"schema": {"user_column": "user_id", **names}})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: tuple[Any, dict[str, str]]) -> Iterator[Server]:
    """Yield a server for all tests, which add their recipes to its `folder`."""
    folder = tmp_path_factory.mktemp("recipes")
    with Server(folder, env=authority[1] | {"SVC_HTTP_ALLOW_PRIVATE": "1"}) as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running


def recipe(kind: str, source: Source, folder: Path) -> dict[str, Any]:
    return {
        "name": kind,
        "source": source.options,
        "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
        "training": TRAINING,
        "output": {"path": f"file://{quote(str(folder / 'the model.svc'))}"},
        **source.more,
    }


def answer_of(server: Server, kind: str) -> dict[str, Any]:
    """Wait until the server has the recipe and its model, and return the answer for `u1`."""
    answers: list[Any] = []

    def answered() -> bool:
        answers.append(server.client.post(f"/v1/recipes/{kind}:recommend", json={"user_id": "u1", "limit": 3}))
        return bool(answers[-1].status_code == 200)

    until(answered, server.log, deadline_s=120)
    return dict(answers[-1].json())


def checked_and_trained(shop: Shop) -> tuple[Ended, Ended]:
    """Run `svc validate` and `svc train` at the same time."""
    running = [shop.start(command, str(shop.recipe)) for command in ("validate", "train")]
    outputs = [process.communicate(timeout=150) for process in running]
    first, second = (Ended(process.returncode, *text) for process, text in zip(running, outputs, strict=True))
    return first, second


def most_sold(sales: Path, user: str) -> list[int]:
    """Return the sales of the three most popular items that the user has not bought."""
    rows = rows_of(sales)
    counts = Counter(item for _, item, _ in rows)
    seen = {item for buyer, item, _ in rows if buyer == user}
    return sorted((count for item, count in counts.items() if item not in seen), reverse=True)[:3]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of the stores' clients in this process, which only fill the places
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_same_recommendations(
    kind: str, request: pytest.FixtureRequest, sales: Path, tmp_path: Path
) -> None:
    """Each source has the same sales. The checks pass, the training succeeds, and no secret is logged."""
    source: Source = request.getfixturevalue(f"{kind}_source")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    keys = {"SVC_SIGNING_KEYS": SIGNING_KEYS, "PYTHONPATH": str(ROOT)}
    shop = Shop(tmp_path, inherited | keys | source.environment)
    shop.recipe.write_text(json.dumps(recipe(kind, source, tmp_path)))

    checked, trained = checked_and_trained(shop)
    assert checked.code == 0, checked.out + checked.err
    assert [line for line in checked.out.splitlines() if line.startswith("ok      source: ")], checked.out
    assert trained.code == 0, trained.err
    assert trained.record("data_fetched")["n_rows"] == len(rows_of(sales))

    server = request.getfixturevalue("server")
    (server.folder / f"{kind}.yaml").write_text(shop.recipe.read_text())
    answer, log = answer_of(server, kind), server.log()
    artifact = Path(trained.record("artifact_written")["artifact"])
    assert answer["model_version"] == f"sha256:{hashlib.sha256(artifact.read_bytes()).hexdigest()}"
    assert SECRET not in checked.out + checked.err + trained.out + trained.err + log
    if kind == "https":
        assert trained.record("csv_source_redirect")["status"] == 307
        assert server.said("metadata_source_redirect", status=307)
        assert [item["title"] for item in answer["items"]] == [f"Thing {item['item_id']}" for item in answer["items"]]
    else:
        counts = Counter(item for _, item, _ in rows_of(sales))
        assert [counts[item["item_id"]] for item in answer["items"]] == most_sold(sales, "u1")
