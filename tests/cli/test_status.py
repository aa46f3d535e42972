"""`svc status` and `svc bench` as people see them, against a small server of the tests' own."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from svc.cli.main import run

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


def test_status_is_a_row_for_each_recipe(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """State, algorithm, the digits of the artifact's name, and the error; degraded is exit code 5."""
    assert run(["status", url]) == 5
    shown = capsys.readouterr().out
    rows = {line.split()[1]: line for line in shown.splitlines() if line.startswith("│")}
    assert shown.startswith(f"{url}: degraded")
    assert all(word in rows["books"] for word in ("loaded", "IALSRecommender", "0f3a9c1e"))
    assert all(word in rows["films"] for word in ("loaded, last reload failed", "signature mismatch"))
    assert all(word in rows["news"] for word in ("not loaded", "[no] artifact"))
    assert all(word in rows["notes"] for word in ("skipped", "notes.yaml:3: unknown key"))
    assert "\x1b" not in shown


def test_status_for_programs_is_the_document(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is lost or added."""
    assert run(["status", url, "--json"]) == 5
    assert json.loads(capsys.readouterr().out) == DETAILS


def test_a_healthy_server_is_exit_code_0(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a deployment can wait for it."""
    monkeypatch.setitem(DETAILS, "status", "ok")
    assert run(["status", url]) == 0
    assert capsys.readouterr().out.startswith(f"{url}: ok")


def test_a_missing_key_is_told_with_the_way_to_give_it(
    url: str, answers: type[Answers], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with the key it works."""
    monkeypatch.setattr(answers, "key", "secret-of-the-client")
    assert run(["status", url]) == 1
    assert "SVC_CLIENT_KEY" in capsys.readouterr().err
    monkeypatch.setenv("SVC_CLIENT_KEY", "secret-of-the-client")
    assert run(["status", url]) == 5


@pytest.mark.parametrize("command", [["status"], ["bench", "--recipe", "books", "--users", "users.txt"]])
def test_nobody_there_is_told_with_what_to_start(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 1."""
    monkeypatch.chdir(tmp_path)
    Path("users.txt").write_text("u1\n")
    assert run([*command, "http://127.0.0.1:1"]) == 1
    assert "svc serve" in capsys.readouterr().err


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output; measured for longer where the machine is too busy for two answers in a moment."""
    for seconds in ("0.2", "3", "30"):
        code, shown = run(["bench", *arguments, "--seconds", seconds]), capsys.readouterr().out
        if not re.search(r'^requests +[01]$|"requests": [01],', shown, re.MULTILINE):
            break
    return code, shown


def test_bench_shows_throughput_latencies_and_errors(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known users only: exit code 0; the ids come from a column of a CSV."""
    users = tmp_path / "users.csv"
    users.write_text("viewer,item\nknown1,a\nknown2,b\n")
    code, shown = bench(capsys, url, "--recipe", "books", "--users", str(users), "--column", "viewer", "--json")
    figures = json.loads(shown)
    assert (code, figures["asked"]) == (0, "books:recommend")
    assert figures["errors"] == {}
    assert 0 < figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"] <= figures["p99.9_ms"] <= figures["max_ms"]
    assert figures["requests_per_s"] == pytest.approx(figures["requests"] / figures["seconds"], rel=0.01)


def test_bench_needs_nothing_but_the_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The only recipe is asked, for items like those that the server itself names."""
    code, shown = bench(capsys, url, "--json")
    figures = json.loads(shown)
    assert (code, figures["asked"], figures["errors"]) == (0, "books:recommend-related", {})


def test_bench_asks_which_of_several_recipes(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And names them."""
    both = [*RECIPES["recipes"], {"name": "films", "loaded": True}, {"name": "news", "loaded": False}]
    monkeypatch.setitem(RECIPES, "recipes", both)
    assert run(["bench", url]) == 2
    assert "books, films" in capsys.readouterr().err


def test_bench_repeats_why_a_recipe_cannot_be_asked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In the server's words."""
    assert run(["bench", url, "--recipe", "boks"]) == 2
    assert "boks: no recipe of this name is served here" in capsys.readouterr().err


def test_bench_says_what_may_be_wrong(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users whom training did not see are errors: exit code 1, and a hint."""
    users = tmp_path / "users.txt"
    users.write_text("known1\nstranger\n")
    code, shown = bench(capsys, url, "--recipe", "books", "--users", str(users))
    assert code == 1
    assert "requests_per_s" in shown
    assert "404: no such recipe (svc status lists them)" in shown


@pytest.mark.parametrize(("text", "message"), [("", "holds no user ids"), ("item\nb1\n", "has no column 'user_id'")])
def test_bench_refuses_users_that_it_cannot_read(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent."""
    users = tmp_path / ("users.csv" if text else "users.txt")
    users.write_text(text)
    assert run(["bench", "http://127.0.0.1:1", "--recipe", "a", "--users", str(users)]) == 2
    assert message in capsys.readouterr().err
