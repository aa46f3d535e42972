"""What does each verb cost with the largest permitted value of each field, and do others notice?

    python -m benchmarks largest                            # a neighbour model with rows of 200, some three minutes
    python -m benchmarks largest --kind ials --verbs recommend,recommend-related
    python -m benchmarks largest --row 2000 --beside 20

A server with 100,000 items and 1,000 users answers each request of `largest_requests` alone: one with all fields
together, the others with one field and `limit` at its largest. A row says the status, the processor milliseconds of
the server, the bytes of the answer, and the longest time that a probe of `/v1/health` took meanwhile, which is the
longest pause of the event loop. With `--beside` one key asks for 1,000 varied items again and again, and the
99th percentile of another key's pages of 10 varied items is shown alone and beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.common import ids, origin, processor_s
from benchmarks.hostile import address_of
from benchmarks.largest_requests import FIELDS, RECIPE, Asked, every_request
from benchmarks.probing import probing
from svc.model.coldstart import LeastSquares
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder, TokenColumn
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.recipe.filter_tree import MAX_VALUES
from svc.serving.api.authentication import hash_api_key, new_api_key
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import header as artifact_header
from tests.serving.artifacts import write_artifact

N_USERS, LENGTH, COMPONENTS, LABELS = 1_000, 50, 128, 1_000
PATIENCE_S, BESIDE_LIMIT = 600.0, 10
VARIED = {"diversity": 1, "limit": 1000}
ENVIRONMENT = {"SVC_CACHED_ANSWERS": "0", "SVC_MAX_ARTIFACT_BYTES": "8GiB", "SVC_MAX_PAYLOAD_BYTES": "8GiB"}
"""Rows of 2,000 take 1.6 GB, more than a server loads by default."""


def neighbours(rng: np.random.Generator, n_items: int, row: int) -> NeighbourScorer:
    columns = np.sort(rng.integers(0, n_items, (n_items, row), dtype=np.int32), axis=1).ravel()
    weights = rng.random(n_items * row, dtype=np.float32)
    return NeighbourScorer(np.arange(0, n_items * row + 1, row), columns, weights)


def factors(rng: np.random.Generator, n_items: int) -> IALSScorer:
    items, users = (rng.normal(0, 0.1, (n, COMPONENTS)).astype(np.float32) for n in (n_items, N_USERS))
    effects = rng.normal(0, 0.1, (LABELS + 1, COMPONENTS)).astype(np.float32)
    solver = LeastSquares(
        alpha0=0.01, reg=0.01, nu=1.0, confidence=1.0, target_weight=1.0, n_users=N_USERS, n_items=n_items,
        user_weights=effects, item_weights=effects,
    )  # fmt: skip
    return IALSScorer(users, FactorIndex.build(items), solver)


def model(kind: str, n_items: int, row: int) -> Model:
    """Return a model of one kind. The factor model reads the feature `tag` of users and items."""
    rng = np.random.default_rng(0)
    scorer: Scorer = neighbours(rng, n_items, row) if kind == "neighbours" else factors(rng, n_items)
    seen = np.sort(rng.integers(0, n_items - LENGTH, (N_USERS, LENGTH)), axis=1) + np.arange(LENGTH)
    tags = SideEncoder((TokenColumn("tag", "multi_label", IdTable.from_ids(ids("t", LABELS))),))
    return Model(
        user_ids=IdTable.from_ids(ids("u", N_USERS)),
        item_ids=IdTable.from_ids(ids("i", n_items)),
        history=History(np.arange(0, seen.size + 1, LENGTH), seen.astype(np.int32).ravel()),
        scorer=scorer,
        features=FeatureState(FEATURE_VERSION, tags, tags) if kind == "ials" else None,
    )


@contextmanager
def serving(kind: str, n_items: int, row: int, keys: dict[str, str]) -> Iterator[Server]:
    """Serve a model whose items have one of MAX_VALUES values in each filter field."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = [",".join([f"i{n}", *[f"v{n % (MAX_VALUES - 1)}"] * len(FIELDS)]) for n in range(n_items)]
        (folder / "items.csv").write_text("\n".join([",".join(["item_id", *FIELDS]), *lines]), encoding="utf-8")
        metadata = {
            "source": {"type": "csv", "path": str(folder / "items.csv")},
            "id_column": "item_id",
            "filter_fields": [{"name": name, "kind": "categorical"} for name in FIELDS],
        }
        (folder / "recipes").mkdir()
        more: dict[str, Any] = {"item_metadata": metadata, "serving": {"users": True}}
        write_recipe(folder / "recipes", RECIPE, folder / "a.svc", **more)
        side = {"dimension": LABELS + 1, "columns": ["tag"]}
        state = (
            {"features": {"version": FEATURE_VERSION, "active": True, "user": side, "item": side}}
            if kind == "ials"
            else {}
        )
        write_artifact(folder / "a.svc", model(kind, n_items, row), head=artifact_header(**state))
        listed = ",".join(f"{name}:{hash_api_key(key)}" for name, key in keys.items())
        with Server(folder / "recipes", env=ENVIRONMENT | {"SVC_API_KEYS": listed}) as server:
            yield server


def ask(server: Server, asked: Asked, headers: dict[str, str]) -> tuple[int, float, int, float]:
    """Return status, processor seconds, bytes of the answer, and the longest time of a probe in seconds."""
    body = None if asked.body is None else json.dumps(asked.body)
    with probing(address_of(server.url)) as probes:
        began = processor_s(server.process.pid)
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=headers) as client:
            answer = client.request("GET" if body is None else "POST", asked.path, content=body)
        taken = processor_s(server.process.pid) - began
    return answer.status_code, taken, len(answer.content), max(probes, default=0.0)


def beside(server: Server, seconds: float, keys: dict[str, str]) -> None:
    """Print the 99th percentile of one key's varied pages, alone and beside a key that asks for 1,000 varied items."""
    over, answered = threading.Event(), [0]
    path = f"/v1/recipes/{RECIPE}:recommend"

    def greedy() -> None:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=header(keys["greedy"])) as client:
            while not over.is_set():
                answered[0] += client.post(path, json={"user_id": "u1", **VARIED}).status_code == 200

    def p99_ms(until: float) -> tuple[float, int]:
        took, failed = list[float](), 0
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=header(keys["modest"])) as client:
            while time.perf_counter() < until:
                began = time.perf_counter()
                body = {"user_id": f"u{len(took) % N_USERS}", "diversity": 0.3, "limit": BESIDE_LIMIT}
                failed += client.post(path, json=body).status_code != 200
                took.append(time.perf_counter() - began)
        return float(np.quantile(took, 0.99)) * 1e3, failed

    p99_ms(time.perf_counter() + 2)
    alone = p99_ms(time.perf_counter() + seconds)
    threads = [threading.Thread(target=greedy) for _ in range(2)]
    for thread in threads:
        thread.start()
    attacked = p99_ms(time.perf_counter() + seconds)
    over.set()
    for thread in threads:
        thread.join()
    words = f"{attacked[0]:.1f} ms beside {answered[0]} pages of 1,000, {attacked[1]} refused"
    print(f"another key's pages of 10 varied items, p99: {alone[0]:.1f} ms alone, {words}", flush=True)


def header(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("neighbours", "ials"), default="neighbours")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--row", type=int, default=200, help="weights of an item")
    parser.add_argument("--verbs", help="names of endpoints, separated by commas")
    parser.add_argument("--beside", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    print("\n".join(origin()))
    names = options.verbs.split(",") if options.verbs is not None else None
    keys = {name: new_api_key() for name in ("greedy", "modest")}
    with serving(options.kind, options.items, options.row, keys) as server:
        headers = header(keys["greedy"])
        print(f"{options.kind}, {options.items:,} items, rows of {options.row}")
        print(
            "| endpoint | largest | status | processor ms | answer bytes | longest pause ms |\n"
            + "|---|---|--:|--:|--:|--:|"
        )
        small = Asked("recommend", "48 bytes", f"/v1/recipes/{RECIPE}:recommend", {"user_id": "u1", **VARIED})
        for asked in [small, *every_request()]:
            if names is None or asked.endpoint in names:
                status, taken, size, pause = ask(server, asked, headers)
                row = f"| {asked.endpoint} | {asked.field} | {status} | {taken * 1e3:.0f} | {size:,} |"
                print(f"{row} {pause * 1e3:.0f} |", flush=True)
        if options.beside:
            beside(server, options.beside, keys)


if __name__ == "__main__":
    main()
