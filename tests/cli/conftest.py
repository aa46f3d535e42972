"""Commands run in this process, without settings of the machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from svc.cli import main


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches these tests; standard error counts as a pipe."""
    for name in ("SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_ENV", "SVC_SIGNING_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def last_error(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return dict(json.loads(capsys.readouterr().err.splitlines()[-1]))


DETAILS = {
    "status": "degraded",
    "recipes": {
        "books": {"loaded": True, "best_class": "IALSRecommender"},
        "films": {"loaded": True, "best_class": "TopPopRecommender", "last_load_error": "signature mismatch"},
        "news": {"loaded": False, "error": "[no] artifact"},
        "notes": {"loaded": False, "skipped": True, "error": "notes.yaml:3: unknown key"},
    },
}


RECIPES = {"recipes": [{"name": "books", "loaded": True, "model_version": "sha256:" + "0f3a9c1e" * 8}]}


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status: dict[str, int]
    key = ""

    def do_GET(self) -> None:
        items = {"items": [{"item_id": "known1"}, {"item_id": "known2"}]}
        bodies: dict[str, Any] = {
            "/v1/health/details": DETAILS,
            "/v1/recipes": RECIPES,
            "/v1/recipes/books/items": items,
        }
        refusal = {"detail": "no recipe of this name is served here", "code": "RECIPE_NOT_FOUND"}
        self._answer(self.status.get(self.path, 200 if self.path in bodies else 404), bodies.get(self.path, refusal))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        related = self.path == "/v1/recipes/books:recommend-related"
        known = asked["seed_items"][0] if related else asked["user_id"]
        self._answer(200 if known.startswith("known") else 404, {"items": []})

    def _answer(self, status: int, body: Any) -> None:
        status = status if self.headers.get("X-API-Key", "") == self.key else 401
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Listening(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up at the end of a measurement is no news."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> type[Answers]:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(Answers, "status", {"/v1/health/details": 503}, raising=False)
    return Answers


@pytest.fixture
def url(answers: type[Answers]) -> Iterator[str]:
    with Listening(("127.0.0.1", 0), answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


KEY = "a:" + "11" * 32


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Books over a small table, in versions."""
    for name in ("SVC_ENV", "SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_VERIFY_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_SIGNING_KEYS", KEY)
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"u{user},i{item}" for user in range(30) for item in range(20) if (user + item) % 3]
    (tmp_path / "books.csv").write_text("user,item\n" + "\n".join(rows) + "\n", encoding="utf-8")
    path = tmp_path / "books.yaml"
    path.write_text(
        """
name: books
source: {type: csv, path: books.csv}
schema: {user_column: user, item_column: item}
training: {algorithms: [TopPop], n_trials: 1, cutoff: 5, split: {heldout_ratio: 0.3}}
output: {path: out/books.svc, versioning: append_sha, keep: 4}
""",
        encoding="utf-8",
    )
    return path


def history(recipe: Path, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    capsys.readouterr()
    assert main.run(["history", str(recipe), "--json"]) == 0
    return list(json.loads(capsys.readouterr().out)["versions"])


def train(recipe: Path, run_id: str) -> int:
    return main.run(["train", str(recipe), "--quiet", "--run-id", run_id])
