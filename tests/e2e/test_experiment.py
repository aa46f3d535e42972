"""Arms of an experiment answer in a real server, with one process and with workers. The served log has each page."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.load import Load
from tests.e2e.server import Server, make_home, until, write_recipe
from tests.e2e.test_workers import children
from tests.serving.artifacts import popularity_model, write_artifact

pytestmark = pytest.mark.integration
SECONDS = float(os.environ.get("SVC_TEST_SOAK_SECONDS", "15"))
SALT, USERS, ITEMS = "2026-12", 40, 100
ARMS = [
    {"name": "control", "weight": 2},
    {"name": "next", "weight": 1, "path": "next.svc"},
    {"name": "varied", "weight": 1, "serving": {"pins": [{"item_id": "i99", "position": 0}]}},
]
FIRST = {"control": "i50", "next": "i60", "varied": "i99"}
SERVING = {
    "fallback": "popular",
    "experiment": {"name": "ranking-2", "salt": SALT, "arms": ARMS, "shadow": {"arm": "next", "share": 1}},
    "served_log": {"path": "served"},
}


def arm_of(unit: str) -> str:
    """Return the arm of a unit as a client would compute it."""
    number = int(hashlib.sha256(f"{SALT}:{unit}".encode()).hexdigest()[:16], 16) % 4
    return "control" if number < 2 else "next" if number == 2 else "varied"


def digest(unit: str) -> str:
    return hmac.new(SALT.encode(), unit.encode(), hashlib.sha256).hexdigest()[:32]


def home(folder: Path, **serving: Any) -> Path:
    found = make_home(folder, "films", popularity_model(50, USERS, ITEMS))
    write_artifact(folder / "next.svc", popularity_model(60, USERS, ITEMS))
    arms = [{**arm, **({"path": str(folder / "next.svc")} if "path" in arm else {})} for arm in ARMS]
    block = SERVING | {"experiment": SERVING["experiment"] | {"arms": arms}} | serving
    block["served_log"] = block["served_log"] | {"path": "../served"}
    write_recipe(found, "films", folder / "films.svc", serving=block)
    return found


def lines(folder: Path, *, shadow: bool = False) -> list[dict[str, Any]]:
    """Return the lines of all files of the served log."""
    files = sorted((folder / "served").glob("films.*"))
    found = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    return [line for line in found if line.get("shadow", False) is shadow]


def counted(server: Server, name: str, **labels: str) -> float:
    """Return the sum of the series of a metric with these labels."""
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    rows = (row.rpartition(" ") for row in server.get("/v1/metrics").text.splitlines() if row.startswith(name))
    return sum(float(value) for series, _, value in rows if all(label in series for label in wanted))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_each_unit_gets_its_arm_and_each_page_is_logged(tmp_path: Path, workers: str) -> None:
    """Every verb names the arm that a client computes, has its items, and leaves a line without the unit's id."""
    with Server(home(tmp_path), args=["--workers", workers]) as server:
        ask = server.client.post
        users = [f"u{number}" for number in range(USERS)]
        seen = Counter[str]()
        for user in [*users, *users[:10]]:  # the last ten answers come from the cache
            answer = ask("/v1/recipes/films:recommend", json={"user_id": user, "limit": 3})
            body, arm = answer.json(), arm_of(user)
            assert body["experiment"] == {"name": "ranking-2", "arm": arm}
            assert body["items"][0]["item_id"] == FIRST[arm]
            assert answer.headers["x-svc-model-version"] == body["model_version"]
            seen[body["model_version"]] += 1
        assert len(seen) == 2
        visitor = ask("/v1/recipes/films:recommend", json={"unit": "cookie 1", "seed": "monday"}).json()
        assert visitor["experiment"]["arm"] == arm_of("cookie 1")
        nobody = ask("/v1/recipes/films:recommend", json={}).json()
        assert nobody["experiment"]["arm"] == "control"
        batch = ask("/v1/recipes/films:batch-recommend", json={"requests": [{"user_id": user} for user in users]})
        results = batch.json()["results"]
        assert [result["experiment"]["arm"] for result in results] == [arm_of(user) for user in users]
        assert [result["items"][0]["item_id"] for result in results] == [FIRST[arm_of(user)] for user in users]
        assert len({result["model_version"] for result in results}) == 2
        rows = [{"id": "a", "recommend": {"limit": 2}}, {"id": "b", "popular": {"limit": 3}}]
        page = ask("/v1/recipes/films:page", json={"user_id": "u1", "rows": rows}).json()
        assert page["experiment"]["arm"] == arm_of("u1")
        listed = ask("/v1/recipes/films:rerank", json={"user_id": "u2", "items": ["i5", "i9"]}).json()
        assert listed["experiment"]["arm"] == arm_of("u2")
        related = ask("/v1/recipes/films:recommend-related", json={"seed_items": ["i1"], "unit": "u3"})
        assert related.status_code == 200, related.text
        assert related.json()["experiment"]["arm"] == arm_of("u3")
        failed = ask("/v1/recipes/films:recommend", json={"user_id": "who", "fallback": "none"})
        assert failed.status_code == 404
        assert counted(server, "svc_v1_experiment_requests_total", arm=arm_of("who"), status="unknown_user") == 1
        ok = counted(server, "svc_v1_experiment_requests_total", status="ok")
        assert ok == 50 + 1 + USERS + 3
        n_pages = 50 + 2 + USERS + 2 + 2
        until(lambda: counted(server, "svc_served_log_lines_total", result="written") >= n_pages, server.log)
        details = server.get("/v1/health/details").json()["recipes"]
        assert details["films@next"]["loaded"]
        assert server.get("/v1/recipes").json()["recipes"][0]["name"] == "films"
        assert len(server.get("/v1/recipes").json()["recipes"]) == 1
        assert server.client.post("/v1/recipes/films@next:recommend", json={"user_id": "u1"}).status_code == 404
        until(lambda: counted(server, "svc_shadow_total") >= 30, server.log)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
    logged = lines(tmp_path)
    assert len(logged) == n_pages
    assert not list((tmp_path / "served").glob("*.open"))
    by_unit: dict[str | None, set[str]] = {}
    for line in logged:
        by_unit.setdefault(line["unit"], set()).add(line["arm"])
    assert by_unit == {digest(unit): {arm_of(unit)} for unit in [*users, "cookie 1"]} | {None: {"control"}}
    known = [line for line in logged if line["verb"] == "recommend" and line["unit"] in map(digest, users)]
    assert {(line["arm"], line["items"][0]) for line in known} == set(FIRST.items())
    assert [line["items"] for line in logged if line["verb"] == "page"] == [
        [item["item_id"] for item in row["items"]] for row in page["rows"]
    ]
    (seeded,) = [line for line in logged if "seed" in line]
    assert (seeded["seed"], seeded["items"]) == ("monday", [item["item_id"] for item in visitor["items"]])
    text = "".join(file.read_text("utf-8") for file in (tmp_path / "served").iterdir())
    assert '"u1"' not in text
    assert "cookie 1" not in text
    sent = {line["request_id"]: line for line in logged}
    shadows = lines(tmp_path, shadow=True)
    assert shadows
    for line in shadows:
        assert line["arm"] == "next"
        if line["verb"] == "recommend" and line["unit"] in map(digest, users):
            assert line["items"][0] == "i60"
        assert sent[line["request_id"]]["arm"] != "next"
        assert sent[line["request_id"]]["unit"] == line["unit"]


def test_a_broken_arm_does_not_hurt_the_first(tmp_path: Path) -> None:
    """The first arm answers its units, counted, until the arm has a model again. The recipe stays healthy."""
    recipes = home(tmp_path)
    (tmp_path / "next.svc").write_bytes(b"no artifact")
    unit = next(f"u{number}" for number in range(USERS) if arm_of(f"u{number}") == "next")
    with Server(recipes) as server:
        body = server.recommend("films", unit).json()
        assert (body["experiment"]["arm"], body["items"][0]["item_id"]) == ("control", FIRST["control"])
        assert counted(server, "svc_v1_experiment_requests_total", arm="next", status="no_model") == 1
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1})
        assert server.get("/v1/health/ready").status_code == 200
        details = server.get("/v1/health/details").json()["recipes"]
        assert details["films"]["loaded"]
        assert not details["films@next"]["loaded"]
        write_artifact(tmp_path / "next.svc", popularity_model(60, USERS, ITEMS))
        server.wait_for("artifact_loaded", name="films@next")
        assert server.recommend("films", unit).json()["items"][0]["item_id"] == FIRST["next"]
        write_artifact(tmp_path / "next.svc", popularity_model(70, USERS, ITEMS))
        server.wait_for("artifact_loaded", name="films@next", times=2)
        assert server.recommend("films", unit).json()["items"][0]["item_id"] == "i70"


def test_a_changed_experiment_is_served_without_a_restart(tmp_path: Path) -> None:
    """Arms and rules are rules of the recipe: a change of the file changes answers that were cached before."""
    recipes = home(tmp_path)
    with Server(recipes) as server:
        assert "experiment" in server.recommend("films").json()
        write_recipe(recipes, "films", tmp_path / "films.svc", serving={"fallback": "popular"})
        server.wait_for("recipe_changed", name="films")
        body = server.recommend("films").json()
        assert "experiment" not in body
        assert body["items"][0]["item_id"] == FIRST["control"]
        assert "films@next" not in server.get("/v1/health/details").json()["recipes"]


def test_a_killed_server_leaves_whole_lines(tmp_path: Path) -> None:
    """At most the last second is lost. The next server gives the file its final name."""
    recipes = home(tmp_path)
    with Server(recipes) as server:
        for _ in range(20):
            assert server.recommend("films").status_code == 200
        until(lambda: counted(server, "svc_served_log_lines_total", result="written") >= 20, server.log)
        server.process.kill()
        server.process.wait()
    (left,) = (tmp_path / "served").glob("*.open")
    with left.open("ab") as file:
        file.write(b'{"time": "2026')  # what a machine that stops may leave
    with Server(recipes) as server:
        server.recommend("films")
        until(lambda: counted(server, "svc_served_log_lines_total", result="written") >= 1, server.log)
    assert len(list((tmp_path / "served").glob("*.jsonl"))) == 1
    assert len(lines(tmp_path)) == 21


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_every_answer_is_logged_beside_swaps_and_a_killed_worker(tmp_path: Path) -> None:
    """Only lines of the killed worker's last second may be lost. Each answer names the arm of its unit.

    SVC_TEST_SOAK_SECONDS is the duration.
    """
    asked = [("/v1/recipes/films:recommend", {"user_id": f"u{number}", "limit": 3}) for number in range(USERS)]
    answered_at = dict[str, float]()

    def judge(status: int, body: dict[str, Any]) -> str | None:
        return None if status == 200 and body["experiment"]["arm"] in FIRST else f"{status}: {body}"

    def note(_began_s: float, body: dict[str, Any]) -> None:
        answered_at[body["request_id"]] = time.time()

    with Server(home(tmp_path), args=["--workers", "2"], env={"SVC_CACHED_ANSWERS": "0"}) as server:
        with Load(server.url, asked, clients=8, judge=judge, note=note, pause_s=0.002) as load:
            until_s, killed_at, n_swaps = time.monotonic() + SECONDS, 0.0, 0
            while time.monotonic() < until_s:
                time.sleep(1)
                best = n_swaps % 40
                write_artifact(tmp_path / "films.svc", popularity_model(50 + best, USERS, ITEMS))
                write_artifact(tmp_path / "next.svc", popularity_model(60 + best % 30, USERS, ITEMS))
                n_swaps += 1
                if not killed_at and time.monotonic() > until_s - SECONDS / 2:
                    _, worker, _ = children(server)
                    killed_at = time.time()
                    os.kill(worker, signal.SIGKILL)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        assert server.said("artifact_loaded", name="films@next")
    assert not [failure for failure in load.tally.failures if "arm" in failure]
    logged = Counter(line["request_id"] for line in lines(tmp_path))
    assert max(logged.values()) == 1
    lost = answered_at.keys() - logged.keys()
    assert all(killed_at - 2 < answered_at[request_id] < killed_at + 1 for request_id in lost)
    assert len(logged) >= len(answered_at) - len(lost) > 100
    by_unit: dict[str, set[str]] = {}
    for line in lines(tmp_path):
        by_unit.setdefault(line["unit"], set()).add(line["arm"])
    assert by_unit == {digest(f"u{number}"): {arm_of(f"u{number}")} for number in range(8)}
    print(f"{len(answered_at)} answers, {len(logged)} lines, {len(lost)} lost, {n_swaps} swaps")  # noqa: T201
