"""Servers that know only public keys verify artifacts, and servers with a state directory refuse older ones."""

from __future__ import annotations

import os
from pathlib import Path

from svc.artifact.keys import public_entry
from tests.e2e.conftest import Ended, Shop
from tests.e2e.server import Server, put, write_recipe
from tests.serving.artifacts import header, popularity_model, write_artifact
from tests.serving.live import live

KEY = "11" * 32
SIGNING = f"k1:{KEY}"


def svc(*arguments: str, **env: str) -> Ended:
    return Shop(Path.cwd(), dict(os.environ)).svc(*arguments, **env)


ENV = {
    "SVC_SIGNING_KEYS": "",
    "SVC_VERIFY_KEYS": public_entry("k1", bytes.fromhex(KEY)),
}
TRAINER = {"SVC_SIGNING_KEYS": SIGNING, "SVC_ARTIFACT_SIGNATURE": "ed25519"}


def make_recipe(folder: Path, versioning: str) -> Path:
    home = folder / "recipes"
    home.mkdir()
    (home / "r.csv").write_text("u,i\n" + "".join(f"u{n % 20},i{n * n % 31}\n" for n in range(200)))
    recipe = write_recipe(
        home,
        "a",
        folder / "a.svc",
        source={"type": "csv", "path": "r.csv"},
        schema={"user_column": "u", "item_column": "i"},
        training={"algorithms": ["TopPop"], "n_trials": 1, "cutoff": 3, "split": {"scheme": "leave_one_out"}},
    )
    put(recipe, recipe.read_text().replace('"always_overwrite"', f'"{versioning}"'))
    return recipe


def run(*arguments: str, **env: str) -> None:
    done = svc(*arguments, **env)
    assert done.code == 0, done.err


def test_a_server_that_refuses_older_versions_follows_a_rollback(tmp_path: Path) -> None:
    """`svc rollback` signs a line of the version log with the trainer's key, so the older version is accepted."""
    recipe = make_recipe(tmp_path, "append_sha")
    run("train", str(recipe), "--quiet", **TRAINER)
    first = (tmp_path / "a.svc").read_text()
    run("train", str(recipe), "--quiet", **TRAINER)
    second = (tmp_path / "a.svc").read_text()
    env = {**ENV, "SVC_STATE_DIR": str(tmp_path / "state")}
    with live(recipe.parent, env) as server:
        run("rollback", str(recipe), **TRAINER)
        assert (tmp_path / "a.svc").read_text() == first
        server.wait_for("artifact_loaded", name="a", times=2)
        run("train", str(recipe), "--quiet", **TRAINER)
        server.wait_for("artifact_loaded", name="a", times=3)
        assert server.said("artifact_replayed") == []
        put(tmp_path / "a.svc", second)
        server.wait_for("artifact_replayed", name="a")
        put(tmp_path / "a.svc", first)
        server.wait_for("artifact_replayed", name="a", times=2)


def test_a_server_with_public_keys_refuses_older_versions(tmp_path: Path) -> None:
    """The first of two artifacts with Ed25519 signatures is refused if it returns, also after a restart."""
    recipe = make_recipe(tmp_path, "always_overwrite")
    home = recipe.parent
    versions = []
    for _ in range(2):
        run("train", str(recipe), "--quiet", **TRAINER)
        versions.append((tmp_path / "a.svc").read_bytes())
    old, new = versions
    env = {**ENV, "SVC_STATE_DIR": str(tmp_path / "state")}
    assert svc("train", str(recipe), **env).code == 8
    assert svc("inspect", str(tmp_path / "a.svc"), **env).code == 0
    with Server(home, env=env) as server:
        posture = server.said("security.posture")[0]
        assert (posture["signing_keys"], [key["kid"] for key in posture["verify_keys"]]) == ([], ["k1"])
        assert KEY not in server.log()
        put(tmp_path / "a.svc", old)
        server.wait_for("artifact_replayed", name="a")
        answer = server.recommend("a")
        assert answer.status_code == 200, answer.text
        write_artifact(tmp_path / "a.svc", popularity_model(), keys=SIGNING, head=header(recipe_name="a"))
        server.wait_for("artifact_load_failed", reason="unknown_kid")
        put(tmp_path / "a.svc", new)
        server.wait_for("artifact_load_error_cleared")
        assert server.health()[0] == 200
        assert server.stop() == 0
    put(tmp_path / "a.svc", old)
    with Server(home, env=env) as server:
        assert server.said("artifact_replayed")
        assert server.health()[0] == 503
        put(tmp_path / "a.svc", new)
        server.wait_for("artifact_loaded", name="a")
        answer = server.recommend("a")
        assert answer.status_code == 200, answer.text
