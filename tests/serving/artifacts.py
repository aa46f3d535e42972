"""Real signed artifacts without training: models built by hand and written through the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from svc.artifact import layout
from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import open_store
from svc.model.codec import encode
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.load_model import running_irspack_version
from svc.model.model import Model
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import SVDScorer
from svc.model.recommenders.popularity import PopularityScorer
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.recipe.serving_schema import Availability
from svc.serving.models.registry import Served
from svc.settings import Settings

SIGNING_KEYS = "k1:" + "11" * 32
OTHER_KEYS = "k2:" + "22" * 32


def ids(prefix: str, count: int) -> IdTable:
    return IdTable.from_ids([f"{prefix}{number}" for number in range(count)])


def history(n_users: int, n_items: int, seen: int = 2) -> History:
    """Return histories: each user has seen `seen` items from the user's own number on, modulo `n_items`."""
    starts = np.arange(n_users)[:, np.newaxis] % (n_items - seen)
    columns = (starts + np.arange(seen)).astype(np.int32).ravel()
    return History(np.arange(0, n_users * seen + 1, seen, dtype=np.int64), columns)


def popularity_model(best: int = 0, n_users: int = 4, n_items: int = 6) -> Model:
    """Return a model that recommends `i<best>` to every user who has not seen it."""
    scores = np.arange(n_items, 0, -1, dtype=np.float64)
    scores[best] = n_items + 1
    return Model(
        user_ids=ids("u", n_users),
        item_ids=ids("i", n_items),
        history=history(n_users, n_items),
        scorer=PopularityScorer(scores),
        features=None,
    )


def factor_model(n_users: int, n_items: int, components: int, seed: int = 0) -> Model:
    """Return a model of random factors, as large as a real one."""
    random = np.random.default_rng(seed)
    users = random.standard_normal((n_users, components), dtype=np.float32)
    items = random.standard_normal((n_items, components), dtype=np.float32)
    return Model(
        user_ids=ids("u", n_users),
        item_ids=ids("i", n_items),
        history=history(n_users, n_items, seen=20),
        scorer=SVDScorer(users, FactorIndex.build(items)),
        features=None,
    )


def header(**more: Any) -> dict[str, Any]:
    """Return the smallest header of a model that can be served."""
    return {
        "irspack_version": running_irspack_version(),
        "best_class": "TopPopRecommender",
        "algorithms": ["TopPopRecommender"],
        "metric": "ndcg",
        "cutoff": 20,
        "trained_at": "2026-01-01T00:00:00+00:00",
        **more,
    }


def served_model(model: Any = None, name: str = "movies", **more: Any) -> Served:
    """Return a served model without rules and lists. Parts that are not given are None, for tests without them."""
    parts: dict[str, Any] = {
        "fragments": None,
        "header": {},
        "model_version": "sha256:0",
        "kid": "k1",
        "lane": None,
        "loaded_at": 0.0,
    }
    return Served(name=name, model=model, **parts | more)


def write_artifact(
    path: Path | str,
    model: Model,
    *,
    versioning: Any = "always_overwrite",
    keys: str = SIGNING_KEYS,
    head: Mapping[str, Any] | None = None,
) -> str:
    """Publish `model` at `path`, which may be a URI, and return its sha256."""
    kid, key = parse_signing_keys(keys).active
    payload = encode(model)
    write = partial(layout.write, kid=kid, key=key, header=head or header(), payload=payload)
    return open_store(str(path), Settings()).publish(write, versioning).written.sha256_hex


def recipe(folder: Path, **more: Any) -> LoadedRecipe:
    """Write the recipe `a`, whose artifact is `a.svc` in this folder, and load it as a server does."""
    content = {
        "name": "a",
        "source": {"type": "csv", "path": "none.csv"},
        "schema": {"user_column": "u", "item_column": "i"},
        "output": {"path": "a.svc", "versioning": "always_overwrite"},
        **more,
    }
    (folder / "a.yaml").write_text(json.dumps(content), encoding="utf-8")
    return load_recipe(folder / "a.yaml", {}, settings=Settings(), for_serving=True)


def availability(mode: str = "allow", **more: Any) -> Availability:
    """Return the declaration of a list of available items."""
    source = {"type": "csv", "path": "list.csv"}
    return Availability.model_validate({"source": source, "id_column": "item_id", "mode": mode, **more})
