"""Policies of API keys on a real server: limits of recipes, verbs and rates, and reloads without a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from svc.serving.api.authentication import hash_api_key
from tests.e2e.server import Server, make_home, put, write_recipe
from tests.serving.artifacts import popularity_model, write_artifact

pytestmark = pytest.mark.integration
SHOP, ADMIN = "s" * 43, "a" * 43
ENV = {"SVC_API_KEYS": f"shop:{hash_api_key(SHOP)},admin:{hash_api_key(ADMIN)}"}


def test_a_key_is_limited_by_the_current_policy_file(tmp_path: Path) -> None:
    """A policy limits the recipes, verbs and rate of its key, and no other key.

    A changed file takes effect without a restart. A file that does not parse keeps the previous policies.
    """
    home = make_home(tmp_path, "books", popularity_model(0))
    write_artifact(tmp_path / "films.svc", popularity_model(1))
    write_recipe(home, "films", tmp_path / "films.svc")
    policies = tmp_path / "keys.yaml"
    put(policies, "shop: {recipes: ['book*'], verbs: [recommend]}\n")
    with Server(home, env={**ENV, "SVC_API_KEY_POLICIES": str(policies), "SVC_ACCESS_LOG": "errors"}) as server:

        def ask(key: str, path: str, body: Any = None) -> httpx.Response:
            headers = {"X-API-Key": key}
            return httpx.request("POST" if body else "GET", server.url + path, json=body, headers=headers, verify=False)

        def statuses(key: str) -> list[int]:
            single, related = {"user_id": "u0"}, {"seed_items": ["i0"]}
            return [
                ask(key, "/v1/recipes/books:recommend", single).status_code,
                ask(key, "/v1/recipes/books:recommend-related", related).status_code,
                ask(key, "/v1/recipes/films:recommend", single).status_code,
                ask(key, "/v1/recipes/%66ilms").status_code,
                ask(key, "/v1/recipes/nothing").status_code,
                ask(key, "/v1/metrics").status_code,
            ]

        open_to_all = statuses(ADMIN)
        assert 403 not in open_to_all
        assert statuses(SHOP) == [open_to_all[0], 403, 403, 403, 403, 403]
        for path in ("/v1/recipes", "/v1/health/details"):
            assert "films" in ask(ADMIN, path).text
            assert "films" not in ask(SHOP, path).text
        put(policies, "shop: {recipes: [films")
        assert "not valid YAML" in server.wait_for("key_policies_failed")["error"]
        assert statuses(SHOP)[2] == 403
        put(policies, "shop: {recipes: [films], rate: 1/h, burst: 1}")
        server.wait_for("key_policies_loaded", times=2)
        assert ask(SHOP, "/v1/recipes/films").status_code == 200
        refused = ask(SHOP, "/v1/recipes/films")
        assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
        assert 3590 <= int(refused.headers["retry-after"]) <= 3600
        assert statuses(ADMIN) == open_to_all
        assert server.wait_for("requests_refused", code="RATE_LIMITED")["kid"] == "shop"
        assert not [line for line in server.said("request_answered") if line["status"] in (403, 429)]
