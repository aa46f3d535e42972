"""The state of the highest serials: shared, atomic, and never in the way of serving."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svc import logs
from svc.artifact.replay import serials
from svc.artifact.replay.serials import SerialState
from svc.settings import Settings
from tests.privileges import permissions_hold


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), lambda line: lines.append(json.loads(line)))
    yield lines
    logs.configure(Settings())


def held(folder: Path, recipe: str = "a") -> dict[str, int]:
    return dict(json.loads((folder / f"{recipe}.serials.json").read_text())["serials"])


def test_the_highest_is_kept_by_recipe_and_kid(tmp_path: Path) -> None:
    """A lower one does not take it back, another kid's or recipe's does not move it, and a new process knows it."""
    state = SerialState(tmp_path / "new" / "folder")
    for recipe, kid, serial in (("a", "k1", 5), ("a", "k1", 3), ("a", "k2", 9), ("b", "k1", 1)):
        state.remember(recipe, kid, serial)
    for known in (state, SerialState(tmp_path / "new" / "folder")):
        found = [known.highest(*which) for which in (("a", "k1"), ("a", "k2"), ("b", "k1"), ("b", "k2"))]
        assert found == [5, 9, 1, None]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").glob("*.json")) == [
        "a.serials.json",
        "b.serials.json",
    ]


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    """What one has served the other refuses to go below, without a restart; neither loses the other's serials."""
    one, other = SerialState(tmp_path), SerialState(tmp_path)
    one.remember("a", "k1", 5)
    assert other.highest("a", "k1") == 5
    other.remember("a", "k2", 7)
    one.remember("a", "k1", 6)
    assert held(tmp_path) == {"k1": 6, "k2": 7}
    assert other.highest("a", "k1") == 6


@pytest.mark.system
def test_many_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each has its own kid, and counts up."""
    script = (
        "import sys; from pathlib import Path; from svc.artifact.replay.serials import SerialState\n"
        "state = SerialState(Path(sys.argv[1]))\n"
        "for serial in range(1, 31): state.remember('a', sys.argv[2], serial)\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), f"k{n}"]) for n in range(4)]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert held(tmp_path) == {f"k{n}": 30 for n in range(4)}
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_threads_of_one_server_lose_nothing(tmp_path: Path) -> None:
    """Loads run beside each other."""
    state = SerialState(tmp_path)

    def count(kid: str) -> None:
        for serial in range(1, 21):
            state.remember("a", kid, serial)

    threads = [threading.Thread(target=count, args=(f"k{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held(tmp_path) == {f"k{n}": 20 for n in range(4)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"format": 2, "serials": {"k1": 5}}',
        b'{"format": 1}',
        b'{"format": 1, "serials": {"k1": "5"}}',
        b'{"format": 1, "serials": {"k1": -5}}',
        b'{"format": 1, "serials": {"k1": true}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_told_and_made_anew(tmp_path: Path, told: list[dict[str, Any]], content: bytes) -> None:
    """A process that has served goes on with what it knows; a new one begins with nothing."""
    state = SerialState(tmp_path)
    state.remember("a", "k1", 5)
    told.clear()
    (tmp_path / "a.serials.json").write_bytes(content)
    assert SerialState(tmp_path).highest("a", "k1") is None
    assert state.highest("a", "k1") == 5
    assert {record["event"] for record in told} == {"replay_state_unusable"}
    assert all("damaged" in record["error"] and record["path"].endswith("a.serials.json") for record in told)
    state.remember("a", "k1", 6)
    assert held(tmp_path) == {"k1": 6}


def test_a_lost_file_is_told_and_made_anew(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    """Also one that never was: until something is served, an older artifact would be taken."""
    state = SerialState(tmp_path)
    assert state.highest("a", "k1") is None
    assert [record["event"] for record in told] == ["replay_state_unusable"]
    state.remember("a", "k1", 5)
    (tmp_path / "a.serials.json").unlink()
    assert state.highest("a", "k1") == 5
    assert "is not there" in told[-1]["error"]
    state.remember("a", "k1", 5)
    assert held(tmp_path) == {"k1": 5}


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    """Read-only, or a file in its place."""
    tmp_path.chmod(0o555)
    (file := tmp_path.parent / f"{tmp_path.name}-file").write_text("")
    try:
        with permissions_hold():
            for folder in (tmp_path, file, file / "below"):
                state = SerialState(folder)
                state.remember("a", "k1", 5)
                assert state.highest("a", "k1") == 5
    finally:
        tmp_path.chmod(0o755)
    assert {record["event"] for record in told} == {"replay_state_unusable"}
    assert sum("cannot be written" in record["error"] for record in told) == 3


def test_a_full_disk_leaves_the_file_before(
    tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told, nothing half written, and what this process served is not forgotten."""
    state = SerialState(tmp_path)
    state.remember("a", "k1", 5)
    told.clear()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    state.remember("a", "k1", 6)
    monkeypatch.undo()
    assert "No space left" in told[-1]["error"]
    assert held(tmp_path) == {"k1": 5}
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    assert state.highest("a", "k1") == 6


def test_a_lock_that_is_never_given_back_stops_nothing(
    tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up on after a while."""
    monkeypatch.setattr(serials, "_LOCK_TIMEOUT_S", 0.0)
    one, other = SerialState(tmp_path), SerialState(tmp_path)
    with one._locked("a"):
        other.remember("a", "k1", 5)
    assert told[-1]["error"] == "a.serials.json cannot be written: Resource temporarily unavailable"
    assert other.highest("a", "k1") == 5
