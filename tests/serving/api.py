"""A served model and a client that calls the application in memory, for the tests of the HTTP side."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import trio

from svc.metrics import Metrics
from svc.model.coldstart import LeastSquares
from svc.model.features import FEATURE_VERSION, FeatureState, NumberColumn, SideEncoder, TokenColumn
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.query import Query, Ranking
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.serving.app import Application, build_app
from svc.serving.auth import Authenticator
from svc.serving.fragments import ItemFragments
from svc.serving.lanes import Lane
from svc.serving.metadata import MetadataTable
from svc.serving.registry import Entry, Faults, Registry, Served
from svc.serving.state import ServerState
from svc.serving.threads import ScoringThreads
from svc.settings import Settings

N_USERS, N_ITEMS, COMPONENTS = 20, 60, 6
HEADER = {
    "algorithms": ["IALSRecommender"],
    "metric": "ndcg",
    "cutoff": 20,
    "best_class": "IALSRecommender",
    "kid": "k1",
}


def encoder() -> SideEncoder:
    return SideEncoder(
        (
            TokenColumn("tag", "categorical", IdTable.from_ids(["a", "b"])),
            NumberColumn("age", mean=40.0, deviation=10.0, low=10.0, high=90.0),
        )
    )


def model(*, features: bool = True) -> Model:
    """A small feature-aware factor model; user u3 has seen items i0 to i3."""
    rng = np.random.default_rng(4)

    def factors(rows: int) -> np.ndarray:
        return rng.normal(size=(rows, COMPONENTS)).astype(np.float32)

    weights = factors(4)
    placing = LeastSquares(
        alpha0=0.1, reg=0.01, nu=0.5, confidence=1.0, pull=1.0, n_users=N_USERS, n_items=N_ITEMS,
        user_weights=weights, item_weights=weights,
    )  # fmt: skip
    seen = [np.arange(user + 1, dtype=np.int32) for user in range(N_USERS)]
    made = Model(
        user_ids=IdTable.from_ids([f"u{user}" for user in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i{item}" for item in range(N_ITEMS)]),
        history=History(np.cumsum([0, *map(len, seen)]).astype(np.int64), np.concatenate(seen)),
        scorer=IALSScorer(factors(N_USERS), FactorIndex.build(factors(N_ITEMS)), placing),
        features=FeatureState(FEATURE_VERSION, encoder(), encoder()) if features else None,
    )
    made.ready()
    return made


@dataclass(frozen=True)
class Answer:
    """What came back: status, headers in lower case, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls an ASGI application as hypercorn would."""

    def __init__(self, app: Application, headers: Mapping[str, str] | None = None) -> None:
        self.app = app
        self.headers = {"host": "localhost:8080", **(headers or {})}

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        client: str = "127.0.0.1",
        query: str = "",
    ) -> Answer:
        parts = [body] if isinstance(body, bytes) else list(body)
        given = {**self.headers, **({"content-length": str(len(body))} if body and isinstance(body, bytes) else {})}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in {**given, **(headers or {})}.items()],
            "client": (client, 50000),
            "server": ("127.0.0.1", 8080),
            "extensions": {},
        }
        sent: list[Any] = []
        messages = iter(
            [{"type": "http.request", "body": part, "more_body": True} for part in parts]
            + [{"type": "http.request", "body": b"", "more_body": False}]
        )

        async def receive() -> Any:
            await trio.lowlevel.checkpoint()
            message = next(messages, None)
            return message or await trio.sleep_forever()

        async def send(message: Any) -> None:
            await trio.lowlevel.checkpoint()
            sent.append(message)

        await self.app(scope, receive, send)
        found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: object, **more: Any) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.call("POST", path, raw, **more)


class Broken:
    """A model whose scorer runs out of memory."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        raise MemoryError("no room for /secret/path")


@asynccontextmanager
async def serving(
    settings: Settings | None = None, keys: Mapping[str, bytes] | None = None, metrics: Metrics | None = None
) -> AsyncIterator[tuple[Client, ServerState]]:
    """The application with the recipes `movies` (features, metadata), `plain` (neither), `broken` and a `stub`."""
    settings = settings or Settings()
    auth = Authenticator(dict(keys or {}), trio.CapacityLimiter(1), log_each_bypass=settings.log_level == "debug")
    state = ServerState(Registry(), settings, metrics or Metrics.disabled(), auth)
    rich, poor = model(), model(features=False)
    table = MetadataTable(
        ("title", "year"), [(f"Title {item}", 1990 + item) if item else None for item in range(N_ITEMS)]
    )
    async with trio.open_nursery() as nursery:
        for name, served, metadata in (("movies", rich, table), ("plain", poor, None), ("broken", Broken(poor), None)):
            lane = Lane(served, ScoringThreads(1))
            await nursery.start(lane.run)
            fragments = ItemFragments.build(served.item_ids, metadata)
            version = "sha256:" + name.encode().hex().ljust(64, "0")
            state.registry.put(
                Entry(name, f"{name}.yaml", Served(name, served, fragments, HEADER, version, "k1", lane, 0.0))
            )
        state.registry.put(Entry("stub", "stub.yaml", None, replace(Faults(), load="signature mismatch")))
        yield Client(build_app(state)), state
        nursery.cancel_scope.cancel()
