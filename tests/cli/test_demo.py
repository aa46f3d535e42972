"""`svc demo`: its folder, its port, its data, and the end of its commands."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from svc.cli import demo
from svc.cli.common import Interrupted
from svc.cli.demo import FILES, RECIPES, print_requests
from svc.cli.main import run

ROOT = Path(__file__).parents[3]


def test_a_used_port_is_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before a minute of training, and no folder is created."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["demo", "--folder", str(tmp_path / "shop"), "--port", port]) == 8
    assert port in json.loads(capsys.readouterr().err)["error"]
    assert not (tmp_path / "shop").exists()


DEMO = """
import sys
from pathlib import Path
from svc.cli import demo, main

demo.FILES = Path(sys.argv.pop(1))
main.main()
"""


@pytest.mark.integration
def test_the_demo_trains_serves_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    """The demo trains its recipes, with two trials here, prints answers, and Ctrl-C ends all of its processes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    shutil.copytree(FILES, tmp_path / "files")
    for recipe in (tmp_path / "files" / "recipes").iterdir():
        recipe.write_text(re.sub(r"n_trials: \d+", "n_trials: 2", recipe.read_text()))
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            DEMO,
            str(tmp_path / "files"),
            "demo",
            "--folder",
            str(tmp_path / "shop"),
            "--port",
            "0",
        ],
        env=environment | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "with the API key" in line:
            with urllib.request.urlopen(line.split()[0], timeout=10) as page:
                assert b"svc console" in page.read()
        if "Ctrl-C ends it" in line:
            process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    text = "".join(lines)
    said = re.findall(r"^svc (?:train .*/(.*)\.yaml: searching|(serve) .*: loading the models)", text, re.MULTILINE)
    assert ["".join(found) for found in said] == [*RECIPES, "serve"]
    assert len(re.findall(r"^curl -s http://127.0.0.1:\d+/v1/recipes/books", text, re.MULTILINE)) == 9
    assert len(re.findall(r"^    b\d{4} ", text, re.MULTILINE)) == 45
    assert len(re.findall(r"^    b100[12] .*, new$", text, re.MULTILINE)) == 2
    port = int(re.findall(r"Serving at http://127.0.0.1:(\d+)", text)[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_files_only_writes_data_recipes_and_private_keys(tmp_path: Path) -> None:
    """The key file is readable by its owner only."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "data/books.csv",
        "data/new-books.csv",
        "data/readers.csv",
        "data/purchases.csv",
        "data/visits.csv",
        "recipes/books.yaml",
        "recipes/books-cold-start.yaml",
        "recipes/books-visits.yaml",
        "keys.env",
    }
    assert (folder / "keys.env").stat().st_mode & 0o077 == 0


def test_a_second_demo_keeps_the_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Artifacts and clients of the first demo stay valid. A key file that lacks one of the keys is an error."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    keys = (folder / "keys.env").read_text()
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    assert (folder / "keys.env").read_text() == keys
    (folder / "keys.env").write_text(keys.replace("DEMO_API_KEY=", "OTHER="))
    capsys.readouterr()
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 8
    assert "keys.env lacks DEMO_API_KEY: name another folder" in json.loads(capsys.readouterr().err)["error"]


class Child:
    """A fake process of a command, which records its calls.

    `ends` are the results of its calls of `wait`: exit codes, or errors to raise.
    """

    def __init__(self, *ends: Any, running: bool = True) -> None:
        self.ends, self.running, self.calls = list(ends), running, []
        self.returncode = None if running else 8

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, limit: float | None = None) -> int:
        end = self.ends.pop(0)
        self.calls.append(f"wait {limit or 'for ever'}")
        if isinstance(end, BaseException):
            raise end
        self.returncode = end
        return int(end)

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")


def trainings() -> list[Child]:
    """Return the children of three trainings that end well."""
    return [Child(0, 0) for _ in demo.RECIPES]


LATE = subprocess.TimeoutExpired("svc", demo.STOP_TIMEOUT_S)
STOPPED = ["wait for ever", "terminate", "wait 10.0"]


@pytest.mark.parametrize(
    ("children", "code", "calls", "words"),
    [
        ([Child(3, 3)], 3, [STOPPED], ""),
        (
            [*trainings(), Child(Interrupted(signal.SIGINT), LATE, -9)],
            0,
            [STOPPED, STOPPED, STOPPED, [*STOPPED, "kill", "wait for ever"]],
            "svc demo ended",
        ),
        (
            [Child(0, 0), Child(0, 0), Child(0, 0), Child(8, running=False)],
            1,
            [*[STOPPED] * 3, STOPPED[1:]],
            "exit code 8",
        ),
        (
            [Child(0, 0), Child(0, 0), Child(0, 0), Child(0)],
            1,
            [*[STOPPED] * 3, STOPPED[1:]],
            "not ready within 0 seconds",
        ),
    ],
)
def test_the_demo_ends_every_command_that_it_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    children: list[Child],
    code: int,
    calls: list[list[str]],
    words: str,
) -> None:
    """The demo ends with the exit code of a failed training, and with 0 after Ctrl-C.

    A command that does not terminate is killed.
    """
    started: list[tuple[list[str], dict[str, Any]]] = []
    waiting = iter(children)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: started.append((command, how)) or next(waiting))
    monkeypatch.setattr(demo, "READY_TIMEOUT_S", 0.0 if "ready" in words else 60.0)
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: nullcontext(asked.append((url, timeout))))
    monkeypatch.setattr(demo, "print_requests", lambda url, _folder, key: shown.append((url, len(key) > 20)))
    asked: list[tuple[str, float]] = []
    shown: list[tuple[str, bool]] = []
    folder = tmp_path / "shop"
    assert run(["demo", "--folder", str(folder), "--remove"]) == code
    written = capsys.readouterr()
    assert words in written.out + written.err
    assert [child.calls for child in children] == calls
    assert not folder.exists()
    commands = [command[3:] for command, _ in started]
    assert commands[:3] == [["train", f"{folder}/recipes/{name}.yaml"] for name in demo.RECIPES][: len(calls)]
    for _, how in started:
        assert how["process_group"] == 0
        assert how["env"].keys() >= {*os.environ, "SVC_SIGNING_KEYS", "SVC_API_KEYS"}
        assert how["env"]["SVC_CONSOLE"] == "1"
    if len(commands) == 4:
        port = commands[3][-1]
        assert commands[3] == ["serve", "--recipes", f"{folder}/recipes", "--host", "127.0.0.1", "--port", port]
        url = f"http://127.0.0.1:{port}"
        assert (asked, shown) == (([(f"{url}/v1/health/ready", 1)], [(url, True)]) if code == 0 else ([], []))


@pytest.mark.parametrize("name", ["recipes/books.yaml", "data/purchases.csv"])
def test_a_changed_file_is_overwritten_only_by_force(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the user's changed file, and no other file is written."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    shipped = (folder / name).read_bytes()
    (folder / name).write_text("my own")
    (folder / "data" / "readers.csv").unlink()
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 2
    assert name in json.loads(capsys.readouterr().err)["error"]
    assert (folder / name).read_text() == "my own"
    assert not (folder / "data" / "readers.csv").exists()
    assert run(["demo", "--files-only", "--folder", str(folder), "--force"]) == 0
    assert (folder / name).read_bytes() == shipped


@pytest.fixture(scope="module")
def purchases() -> pd.DataFrame:
    books = pd.read_csv(FILES / "data" / "books.csv")
    return pd.read_csv(FILES / "data" / "purchases.csv").merge(books, on="item_id", validate="many_to_one")


def test_the_data_resembles_a_shop(purchases: pd.DataFrame) -> None:
    """There are tens of thousands of purchases without repeats.

    A tenth of the books has more than a third of the sales.
    """
    assert 50_000 < len(purchases) < 200_000
    assert not purchases.duplicated(["user_id", "item_id"]).any()
    sales = purchases["item_id"].value_counts()
    assert sales.head(100).sum() > len(purchases) / 3
    assert sales.max() < purchases["user_id"].nunique() / 2


def test_readers_prefer_genres(purchases: pd.DataFrame) -> None:
    """Two purchases of one reader share a genre much more often than two purchases of any readers."""
    ordered = purchases.sort_values("user_id", kind="stable")
    genres = ordered["categories"].str.get_dummies("|").to_numpy(dtype=bool)
    shared = (genres[:-1] & genres[1:]).any(axis=1)
    same = ordered["user_id"].to_numpy()[:-1] == ordered["user_id"].to_numpy()[1:]
    strangers = (genres[: len(genres) // 2] & genres[-(len(genres) // 2) :]).any(axis=1)
    assert shared[same].mean() > 1.5 * strangers.mean()


def test_a_folder_with_other_files_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file of the user is overwritten or removed, not even with --remove."""
    (tmp_path / "thesis.tex").write_text("precious")
    assert run(["demo", "--folder", str(tmp_path / "thesis.tex"), "--files-only"]) == 2
    assert "thesis.tex is a file" in json.loads(capsys.readouterr().err)["error"]
    assert run(["demo", "--folder", str(tmp_path / "thesis.tex" / "shop"), "--files-only"]) == 8
    assert "cannot be made: Not a directory" in json.loads(capsys.readouterr().err)["error"]
    assert run(["demo", "--folder", str(tmp_path), "--files-only", "--remove"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "usage_error"
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_printed_curl_commands_send_the_answered_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each printed curl command sends the request of the answer below it, with ids from the data."""
    asked: list[tuple[str, str, Any]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, str(self.headers["X-API-Key"]), body))
            item = {"item_id": "b1", "score": 1.5, "title": "Tides", "categories": "Crime"}
            data = json.dumps({"items": [item]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing to standard error."""

    shutil.copytree(FILES / "data", tmp_path / "data")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        print_requests(url, tmp_path, "the-key")
        server.shutdown()
        thread.join()
    shown = capsys.readouterr().out
    lines = [shlex.split(line) for line in shown.splitlines() if line.startswith("curl ")]
    printed = [(words[2].removeprefix(url), words[4], json.loads(words[-1])) for words in lines]
    assert printed == [(path, f"X-API-Key: {key}", body) for path, key, body in asked]
    assert {key for _, key, _ in asked} == {"the-key"}
    assert shown.count("b1     1.5000  Tides (Crime)") == len(asked) >= 5
    with (tmp_path / "data" / "purchases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    readers, books = {row["user_id"] for row in rows}, {row["item_id"] for row in rows}
    for _, _, body in asked:
        assert body.get("user_id", "nobody") in {*readers, "nobody"}
        assert {*body.get("seed_items", ()), *body.get("history", ())} <= books


def test_books_in_the_cart_of_the_example_return(tmp_path: Path) -> None:
    """The reader of the last example has books in the cart that they have not bought."""
    visits = pd.read_csv(FILES / "data" / "visits.csv")
    own = visits[visits["user_id"] == "u0003"]
    carted, bought = (set(own.loc[own["event"] == kind, "item_id"]) for kind in ("cart", "purchase"))
    assert len(carted - bought) >= 3
    missed = visits[visits["event"] == "purchase"].merge(
        visits[visits["event"] == "view"], "left", ["user_id", "item_id"]
    )
    assert 0.2 < missed["event_y"].isna().mean() < 0.5
