"""Each kind of store end to end: train from its data, inspect, serve, swap, and keep the model if one is broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.artifact.conftest import (  # noqa: F401  # fixtures
    REMOTE,
    azure_endpoint,
    azure_place,
    gcs_endpoint,
    gcs_place,
    s3_endpoint,
    s3_place,
    web_place,
)
from tests.e2e.conftest import write_sales
from tests.e2e.server import until

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, Shop

pytestmark = pytest.mark.integration
CLIENT_VARIABLES = ("AWS_", "AZURE_", "STORAGE_", "NO_GCE_", "GCSFS_")


@pytest.fixture(params=REMOTE)
def place(request: pytest.FixtureRequest) -> Any:
    """Return a store on a real server of its protocol."""
    return request.getfixturevalue(f"{request.param}_place")


def environment(folder: Path) -> dict[str, str]:
    """Return the variables with which another process reaches the store."""
    found = {name: value for name, value in os.environ.items() if name.startswith(CLIENT_VARIABLES)}
    anonymous = json.dumps({"token": "anon", "project": "test"})
    interval_s = "5"  # also the limit of one poll of a store
    found |= {"FSSPEC_GS": anonymous, "SVC_HTTP_ALLOW_PRIVATE": "1", "SVC_LOCK_DIR": str(folder / "locks")}
    return found | {"SVC_WATCH_INTERVAL": interval_s}


def as_parquet(shop: Shop) -> bytes:
    """Return the sales of the shop as a Parquet file."""
    return bytes(pd.read_csv(shop.folder / "sales.csv").to_parquet())


def served_from(server: Server, *, other_than: str | None) -> str:
    """Wait until another version answers, and return it. The first poll is slow: it imports the store's client."""
    answers: list[dict[str, Any]] = []

    def changed() -> bool:
        answers.append(server.ask("/v1/recipes/shop:recommend", {"user_id": "u1", "limit": 3})[1])
        return answers[-1].get("model_version", other_than) != other_than

    until(changed, lambda: str(server.records[-5:]), deadline_s=90)
    return str(answers[-1]["model_version"])


@pytest.mark.timeout(400)
def test_every_store_serves_and_swaps_trained_models(shop: Shop, serve: Callable[..., Server], place: Any) -> None:
    """Data and artifacts are in the store. The server swaps models, and keeps the last one if an artifact is broken."""
    uri, variables = place.uri("shop.svc").replace("az://", "abfs://"), environment(shop.folder)
    shop.edit("artifacts/shop.svc, versioning: always_overwrite", f'"{uri}", versioning: append_sha')
    if not uri.startswith("http"):  # a source on the web needs its digest
        shop.edit("{type: csv, path: sales.csv}", f'{{type: parquet, path: "{place.uri("sales.parquet")}"}}')
    place.write("sales.parquet", as_parquet(shop))
    trained = shop.train(**variables)
    assert trained.code == 0, trained.err
    assert trained.record("recipe_lock_local_only")["output"] == uri
    assert trained.record("artifact_written")["pointer"] == uri

    inspected = shop.svc("inspect", uri, "--json", **variables)
    assert inspected.code == 0, inspected.err
    first = json.loads(inspected.out)["model_version"]

    server = serve(**variables)
    assert served_from(server, other_than=None) == first

    write_sales(shop.folder / "sales.csv", seed=2)
    place.write("sales.parquet", as_parquet(shop))
    again = shop.train(**variables)
    assert again.code == 0, again.err
    second = served_from(server, other_than=first)

    place.write("shop.svc", b"rubbish")
    server.wait_for("artifact_load_failed")
    assert server.ask("/v1/recipes/shop:recommend", {"user_id": "u1"})[1]["model_version"] == second
    assert server.ask("/v1/health/details")[0] == 503
    assert "SECRET" not in json.dumps(server.records) + trained.err + inspected.out
    assert server.stop() == 0
