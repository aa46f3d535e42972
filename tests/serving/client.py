"""A served model, and a client that calls the application in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import trio

from svc.asking.item_tables import MetadataTable
from svc.metrics import Metrics
from svc.model.coldstart import LeastSquares
from svc.model.features import FEATURE_VERSION, FeatureState, NumberColumn, SideEncoder, TokenColumn
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator
from svc.serving.api.key_policies import KeyPolicies
from svc.serving.api.request import ServerState
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.lanes import Lane
from svc.serving.models.registry import Entry, Faults, Registry, Served
from svc.serving.models.threads import ScoringThreads
from svc.serving.transport.http1 import WHOLE_BYTES
from svc.serving.transport.messages import Response
from svc.settings import Settings
from tests.serving.artifacts import served_model
from tests.serving.documented import require_documented
from tests.serving.sent import Sent

N_USERS, N_ITEMS, COMPONENTS = 20, 60, 6
RECOMMEND = "/v1/recipes/movies:recommend"
RELATED = "/v1/recipes/movies:recommend-related"
BATCH = "/v1/recipes/movies:batch-recommend"
BATCH_RELATED = "/v1/recipes/movies:batch-recommend-related"
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
    """Return a small factor model with features. User u3 has seen items i0 to i3."""
    rng = np.random.default_rng(4)

    def factors(rows: int) -> np.ndarray:
        return rng.normal(size=(rows, COMPONENTS)).astype(np.float32)

    weights = factors(encoder().dim)
    least_squares = LeastSquares(
        alpha0=0.1, reg=0.01, nu=0.5, confidence=1.0, target_weight=1.0, n_users=N_USERS, n_items=N_ITEMS,
        user_weights=weights, item_weights=weights,
    )  # fmt: skip
    seen = [np.arange(user + 1, dtype=np.int32) for user in range(N_USERS)]
    made = Model(
        user_ids=IdTable.from_ids([f"u{user}" for user in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i{item}" for item in range(N_ITEMS)]),
        history=History(np.cumsum([0, *map(len, seen)]).astype(np.int64), np.concatenate(seen)),
        scorer=IALSScorer(factors(N_USERS), FactorIndex.build(factors(N_ITEMS)), least_squares),
        features=FeatureState(FEATURE_VERSION, encoder(), encoder()) if features else None,
    )
    made.ready()
    return made


@dataclass(frozen=True)
class Answer:
    """An answer, with the names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answer_of(response: Response) -> Answer:
    """Return the answer to a client, without the headers that the connection adds."""
    kind = {"content-type": response.content_type.decode()}
    return Answer(
        response.status, {**kind, **{k.decode(): v.decode() for k, v in response.headers}}, b"".join(response.parts)
    )


class Client:
    """Calls an application as a connection does, and checks each answer by the OpenAPI document."""

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
        target = (f"{path}?{query}" if query else path).encode()
        encoded = [(name.lower().encode(), value.encode()) for name, value in {**given, **(headers or {})}.items()]
        whole = body if isinstance(body, bytes) and len(body) <= WHOLE_BYTES else None
        sent = Sent(method, target, encoded, parts, client, whole, arrived_s=trio.current_time())
        response = await self.app(sent)
        assert response is not None
        answer = answer_of(response)
        require_documented(method, path, answer.status, answer.headers, answer.body)
        return answer

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: object, **more: Any) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.call("POST", path, raw, **more)


def served_in(state: ServerState) -> Served:
    """Return the `Served` of the recipe `movies`."""
    entry = state.registry.get("movies")
    assert entry is not None
    assert entry.served is not None
    return entry.served


def serve(state: ServerState, served: Served) -> None:
    """Replace the `Served` of the recipe `movies`."""
    entry = state.registry.get("movies")
    assert entry is not None
    state.registry.put(replace(entry, served=served))


class Counting:
    """A model that counts the queries that it ranks."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.ranked = 0

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        self.ranked += len(queries)
        return self._model.rank(queries)


class Broken:
    """A model whose scorer runs out of memory."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        raise MemoryError("no room for /secret/path")


async def put(
    nursery: trio.Nursery, state: ServerState, name: str, model: Any, metadata: MetadataTable | None = None
) -> None:
    """Serve a model as the recipe of this name."""
    lane = Lane(model, ScoringThreads(1))
    await nursery.start(lane.run)
    fragments = ItemFragments.build(model.item_ids, metadata)
    version = "sha256:" + name.encode().hex().ljust(64, "0")
    state.registry.put(
        Entry(
            name,
            f"{name}.yaml",
            served_model(model, name, fragments=fragments, header=HEADER, model_version=version, lane=lane),
        )
    )


@asynccontextmanager
async def serving(
    settings: Settings | None = None,
    keys: Mapping[str, bytes] | None = None,
    metrics: Metrics | None = None,
    policies: KeyPolicies | None = None,
) -> AsyncIterator[tuple[Client, ServerState]]:
    """Serve the recipes `movies` (features, metadata), `plain` (neither), `broken` and a `stub`."""
    settings = replace(settings or Settings(), metrics_enabled=metrics is not None)
    auth = Authenticator(dict(keys or {}), log_each_bypass=settings.log_level == "debug")
    state = ServerState(Registry(), settings, metrics or Metrics.disabled(), auth, policies=policies)
    rich, poor = model(), model(features=False)
    table = MetadataTable(
        ("title", "year"), [(f"Title {item}", 1990 + item) if item else None for item in range(N_ITEMS)]
    )
    async with trio.open_nursery() as nursery:
        for name, served, metadata in (("movies", rich, table), ("plain", poor, None), ("broken", Broken(poor), None)):
            await put(nursery, state, name, served, metadata)
        state.registry.put(Entry("stub", "stub.yaml", None, replace(Faults(), load="signature mismatch")))
        yield Client(Application(state)), state
        nursery.cancel_scope.cancel()
