"""`svc demo`: its folder is safe to make twice, its port is checked first, and nothing is left running."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from svc.cli.main import run

ROOT = Path(__file__).parent.parent.parent


def test_the_files_make_a_folder_to_work_in(tmp_path: Path) -> None:
    """Data, recipes and keys that only their owner can read."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "data/books.csv",
        "data/readers.csv",
        "data/purchases.csv",
        "recipes/books.yaml",
        "recipes/books-cold-start.yaml",
        "keys.env",
    }
    assert (folder / "keys.env").stat().st_mode & 0o077 == 0


def test_a_second_demo_keeps_the_keys(tmp_path: Path) -> None:
    """Artifacts and clients of the first one stay valid."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    keys = (folder / "keys.env").read_text()
    (folder / "recipes" / "books.yaml").write_text("broken")
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    assert (folder / "keys.env").read_text() == keys
    assert "name: books" in (folder / "recipes" / "books.yaml").read_text()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file of the user is overwritten, not even with --remove."""
    (tmp_path / "thesis.tex").write_text("precious")
    assert run(["demo", "--folder", str(tmp_path), "--files-only", "--remove"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "usage_error"
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_taken_port_is_known_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for a minute to learn that."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["demo", "--folder", str(tmp_path / "shop"), "--port", port]) == 8
    assert port in json.loads(capsys.readouterr().err)["error"]
    assert not (tmp_path / "shop").exists()


@pytest.mark.integration
def test_the_whole_demo(tmp_path: Path) -> None:
    """It trains both recipes, serves them, shows answers with titles, and Ctrl-C ends all of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "svc", "demo", "--folder", str(tmp_path / "shop"), "--port", "0"],
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
    assert len(re.findall(r"^curl -s http://127.0.0.1:\d+/v1/recipes/books", text, re.MULTILINE)) == 7
    assert len(re.findall(r"^    b\d{4} ", text, re.MULTILINE)) == 35
    port = int(re.findall(r"Serving at http://127.0.0.1:(\d+)", text)[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
