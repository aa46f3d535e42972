"""The requests that the demo shows: each can be pasted, and asks for what the demo's own data hold."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from svc.cli.shop.demo_files import FILES
from svc.cli.shop.demo_requests import print_requests


def test_what_is_printed_is_what_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each curl line, run by a shell, sends the request whose answer stands below it; ids come from the data."""
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
            """Nothing."""

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
    told = [(words[2].removeprefix(url), words[4], json.loads(words[-1])) for words in lines]
    assert told == [(path, f"X-API-Key: {key}", body) for path, key, body in asked]
    assert {key for _, key, _ in asked} == {"the-key"}
    assert shown.count("b1     1.5000  Tides (Crime)") == len(asked) >= 5
    with (tmp_path / "data" / "purchases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    readers, books = {row["user_id"] for row in rows}, {row["item_id"] for row in rows}
    for _, _, body in asked:
        assert body.get("user_id", "nobody") in {*readers, "nobody"}
        assert {*body.get("seed_items", ()), *body.get("history", ())} <= books
