"""A running server reads its key files again on SIGHUP."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest

from svc.serving.api.authentication import hash_api_key
from tests.e2e.server import Server, make_home, put, until, write_recipe
from tests.serving.artifacts import OTHER_KEYS, SIGNING_KEYS, popularity_model, write_artifact

pytestmark = pytest.mark.integration
OLD, NEW = "o" * 43, "n" * 43


def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    """On SIGHUP the server accepts new API keys, refuses old ones, and loads artifacts of new signing keys.

    An invalid key file changes nothing and is logged.
    """
    home = make_home(tmp_path, "a", popularity_model(0))
    signing, api = tmp_path / "signing", tmp_path / "api"
    put(signing, SIGNING_KEYS)
    put(api, f"shop:{hash_api_key(OLD)}")
    env = {"SVC_SIGNING_KEYS": "", "SVC_SIGNING_KEYS_FILE": str(signing), "SVC_API_KEYS_FILE": str(api)}
    with Server(home, env=env) as server:

        def ask(key: str) -> int:
            return httpx.get(
                f"{server.url}/v1/recipes", headers={"Authorization": f"Bearer {key}"}, verify=False
            ).status_code

        assert (ask(OLD), ask(NEW)) == (200, 401)
        write_artifact(tmp_path / "a.svc", popularity_model(1), keys=OTHER_KEYS)
        server.wait_for("artifact_load_failed", name="a")
        put(signing, f"{SIGNING_KEYS},{OTHER_KEYS}")
        put(api, "nonsense")
        server.process.send_signal(signal.SIGHUP)
        assert "SVC_API_KEYS" in server.wait_for("keys_reload_failed")["error"]
        assert (ask(OLD), ask(NEW)) == (200, 401)
        put(api, f"shop-2:{hash_api_key(NEW)}")
        server.process.send_signal(signal.SIGHUP)
        assert server.wait_for("keys_reloaded")["api_keys_configured"] == 1
        assert (ask(OLD), ask(NEW)) == (401, 200)
        until(lambda: len(server.said("artifact_loaded")) == 2)


def test_sighup_during_the_start_reloads_the_keys(tmp_path: Path) -> None:
    """SIGHUP during the start reloads the keys, even while a store has not answered yet.

    The system's default action for SIGHUP would end the process.
    """
    home = make_home(tmp_path, "a", popularity_model(0))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_recipe(home, "slow", f"http://127.0.0.1:{silent.getsockname()[1]}/slow.svc")
        env = {"SVC_HTTP_ALLOW_PRIVATE": "1", "SVC_WATCH_INTERVAL": "5"}
        with Server(home, env=env, ready="artifact_loaded") as server:
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("keys_reloaded")
            server.wait_for("serve_started")
            names = [record["event"] for record in server.records]
            assert names.index("keys_reloaded") < names.index("serve_started")
