"""Swaps of models under load, and a hundred recipes in one real server."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.e2e.load import Load
from tests.e2e.server import Server, until, write_recipe
from tests.serving.artifacts import popularity_model, write_artifact

SWAPS = 8
RECIPES = 100


def test_swaps_under_load_fail_no_request_and_each_batch_has_one_model(tmp_path: Path) -> None:
    """Swaps under load fail no request, and all items of an answer come from the version that it names."""
    home = tmp_path / "recipes"
    home.mkdir()
    write_recipe(home, "a", tmp_path / "a.svc")
    best: dict[str, str] = {}

    def publish(number: int) -> str:
        version = f"sha256:{write_artifact(tmp_path / 'a.svc', popularity_model(number % 3, n_items=number + 6))}"
        best[version] = f"i{number % 3}"
        return version

    def judge(status: int, body: dict[str, Any]) -> str | None:
        if status != 200:
            return f"status {status}: {body}"
        lists = [one["items"] for one in body["results"]] if "results" in body else [body["items"]]
        wanted = {best[body["model_version"]]}
        return None if {items[0]["item_id"] for items in lists} == wanted else f"{body['model_version']}: {lists}"

    publish(0)
    one = {"user_id": "u3", "limit": 1}
    requests = [
        ("/v1/recipes/a:recommend", one),
        ("/v1/recipes/a:batch-recommend", {"requests": [one] * 64}),
    ]
    with Server(home) as server:
        with Load(server.url, requests, clients=8, judge=judge) as load:
            for number in range(1, SWAPS + 1):
                server.wait_for("artifact_loaded", model_version=publish(number))
        assert load.tally.failures == []
        assert load.tally.answered > SWAPS
        assert server.metric('svc_swap_total{result="ok"}') == SWAPS


def await_swaps(server: Server, count: int) -> None:
    until(lambda: server.metric('svc_swap_total{result="ok"}') >= count)


class SlowStore(BaseHTTPRequestHandler):
    """A web store that answers paths under /slow after half a second and paths under /hung never."""

    content = b""
    over = threading.Event()

    def do_HEAD(self) -> None:
        self.over.wait(3600 if self.path.startswith("/hung") else 0.5)
        found = self.path.endswith(".svc")
        self.send_response(200 if found else 404)
        self.send_header("etag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("content-length", str(len(self.content) if found else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        """Log nothing, to keep the output of the tests short."""


@contextmanager
def slow_store(content: bytes) -> Iterator[str]:
    SlowStore.content = content
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowStore) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        SlowStore.over.set()
        server.shutdown()


def test_hung_and_slow_stores_do_not_delay_other_recipes(tmp_path: Path) -> None:
    """Three hung stores and a slow one delay neither the swaps of 96 other recipes nor the end on SIGTERM."""
    home = tmp_path / "recipes"
    home.mkdir()
    swift = range(RECIPES - 4)
    for number in swift:
        write_recipe(home, f"r{number}", tmp_path / f"r{number}.svc")
        write_artifact(tmp_path / f"r{number}.svc", popularity_model(0))
    with slow_store((tmp_path / "r0.svc").read_bytes()) as web:
        for number in range(3):
            write_recipe(home, f"hung{number}", f"{web}/hung/{number}.svc")
        write_recipe(home, "slow", f"{web}/slow/m.svc")
        with Server(home, env={"SVC_HTTP_ALLOW_PRIVATE": "1"}) as server:
            for best in (1, 2):
                for number in swift:
                    write_artifact(tmp_path / f"r{number}.svc", popularity_model(best))
                await_swaps(server, best * len(swift))
            until(lambda: server.recipe("slow").get("loaded") is True)
            for number in range(3):
                assert "did not answer" in server.recipe(f"hung{number}")["error"]
                assert len(server.said("initial_artifact_read_failed", name=f"hung{number}")) == 1
            assert server.recommend("r0").json()["items"][0]["item_id"] == "i2"
            threads = len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))
            assert threads < 64
            assert server.stop() == 0
