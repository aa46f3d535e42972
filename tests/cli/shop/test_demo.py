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

ROOT = Path(__file__).parents[3]


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
    assert len(re.findall(r"^curl -s http://127.0.0.1:\d+/v1/recipes/books", text, re.MULTILINE)) == 8
    assert len(re.findall(r"^    b\d{4} ", text, re.MULTILINE)) == 40
    assert len(re.findall(r"^    b100[12] .*, new$", text, re.MULTILINE)) == 2
    port = int(re.findall(r"Serving at http://127.0.0.1:(\d+)", text)[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
