"""Files of the served log: rotation, files that others left, full disks, removed folders, and lines that are lost."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from svc.asking.experiment import unit_digest
from svc.metrics import SERVED_LOG_LINES, Metrics
from svc.recipe.serving_schema import ServedLog
from svc.serving import served_log
from svc.serving.served_log import Line, LogFile, ServedLogs, forget_units, is_among

NOON = datetime(2026, 12, 1, 12, 30, tzinfo=UTC).timestamp()


def settings(folder: Path, **more: Any) -> ServedLog:
    return ServedLog(path=str(folder), **more)


def line(unit: str | None = "u1", *, items: tuple[str, ...] = ("b1", "b2"), **more: Any) -> Line:
    about = {"time_s": NOON, "request_id": "r1", "recipe": "books", "verb": "recommend", "experiment": ("e", "salt")}
    return Line(**about | {"arm": "a", "model_version": "sha256:0", "unit": unit, "items": items} | more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_line_has_the_documented_fields() -> None:
    """The unit is a digest, and the time is UTC with milliseconds."""
    fields = json.loads(line(seed="s").encode(1.0))
    assert fields == {
        "time": "2026-12-01T12:30:00.000Z",
        "request_id": "r1",
        "recipe": "books",
        "verb": "recommend",
        "experiment": "e",
        "arm": "a",
        "model_version": "sha256:0",
        "unit": unit_digest("salt", "u1"),
        "items": ["b1", "b2"],
        "seed": "s",
    }
    assert json.loads(line(is_shadow=True).encode(1.0))["shadow"] is True
    plain = json.loads(line(experiment=None, arm=None).encode(1.0))
    assert (plain["experiment"], plain["arm"], plain["unit"]) == (None, None, None)


def test_a_unit_is_logged_whole_or_not_at_all() -> None:
    """The share counts units. Lines without a unit count by their request."""
    logged = {unit for unit in map(str, range(4000)) if line(unit).encode(0.25)}
    assert 900 < len(logged) < 1100
    assert all(bool(line(unit, request_id="r2").encode(0.25)) == (unit in logged) for unit in map(str, range(200)))
    without = sum(bool(line(None, request_id=str(number)).encode(0.25)) for number in range(4000))
    assert 900 < without < 1100
    assert all(line(unit).encode(1.0) and not line(unit).encode(0.0) for unit in map(str, range(100)))
    assert is_among(1.0, "any")


def test_a_file_rotates_by_the_minutes_of_the_day(tmp_path: Path) -> None:
    """The old file gets its final name, and at midnight each rotation ends, however long it is."""
    file, pid = LogFile(settings(tmp_path, rotate_minutes=700), "books"), os.getpid()
    file.write([b"1\n"], NOON)
    file.write([b"2\n"], NOON + 60)
    assert names(tmp_path) == [f"books.20261201T1230.{pid}.jsonl.open"]
    file.write([], NOON + 12 * 3600)
    assert names(tmp_path) == [f"books.20261201T1230.{pid}.jsonl"]
    file.write([b"3\n"], NOON + 12 * 3600)
    file.write([b"4\n"], NOON)  # the clock was set back
    file.close()
    file.write([b"5\n"], NOON)
    file.close()
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {
        f"books.20261201T1230.{pid}.jsonl": b"1\n2\n",
        f"books.20261202T0030.{pid}.jsonl": b"3\n",
        f"books.20261201T1230.{pid}-1.jsonl": b"4\n",
        f"books.20261201T1230.{pid}-2.jsonl": b"5\n",
    }


def test_files_of_killed_processes_are_finished_and_old_files_removed(tmp_path: Path) -> None:
    """A locked file belongs to a running process, and files of other recipes are left alone."""
    left, running = tmp_path / "books.20261130T0000.7.jsonl.open", tmp_path / "books.20261130T0000.8.jsonl.open"
    half, nothing = b"x" * 100_000, tmp_path / "books.20261130T0100.7.jsonl.open"
    left.write_bytes(b"whole\n" + half)
    nothing.write_bytes(half)
    running.write_bytes(b"whole\nhalf")
    (tmp_path / "books.20261031T0000.7.jsonl").write_bytes(b"old\n")
    (tmp_path / "books.20261101T1229.7.jsonl").write_bytes(b"old\n")
    (tmp_path / "books.20261101T1230.7.jsonl").write_bytes(b"young\n")
    (tmp_path / "films.20251031T0000.7.jsonl").write_bytes(b"other\n")
    with running.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        file = LogFile(settings(tmp_path), "books")
        file.write([b"new\n"], NOON)
    assert names(tmp_path) == [
        "books.20261101T1230.7.jsonl",
        "books.20261130T0000.7.jsonl",
        "books.20261130T0000.8.jsonl.open",
        "books.20261130T0100.7.jsonl",
        f"books.20261201T1230.{os.getpid()}.jsonl.open",
        "films.20251031T0000.7.jsonl",
    ]
    assert (tmp_path / "books.20261130T0000.7.jsonl").read_bytes() == b"whole\n"
    assert (tmp_path / "books.20261130T0100.7.jsonl").read_bytes() == b""
    assert running.read_bytes() == b"whole\nhalf"
    file.close()


def test_a_file_that_cannot_be_tidied_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may rename its file between the listing and the opening."""
    gone = tmp_path / "books.20261201T1229.7.jsonl.open"
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [gone, *glob(self, pattern)])
    (tmp_path / "books.20251201T1229.7.jsonl").mkdir()
    file = LogFile(settings(tmp_path), "books")
    file.write([b"1\n"], NOON)
    file.close()
    assert (tmp_path / f"books.20261201T1230.{os.getpid()}.jsonl").read_bytes() == b"1\n"


def test_two_processes_of_one_pid_have_two_files(tmp_path: Path) -> None:
    """Containers that share a folder may all have the PID 1."""
    first, second = LogFile(settings(tmp_path), "books"), LogFile(settings(tmp_path), "books")
    for number in range(3):
        first.write([b"a%d\n" % number], NOON)
        second.write([b"b%d\n" % number], NOON)
    first.close()
    second.close()
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"a0\na1\na2\n", b"b0\nb1\nb2\n"]


def test_an_error_of_closing_loses_no_later_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor is closed after the error too, and may not be used again."""
    file, close = LogFile(settings(tmp_path), "books"), os.close
    file.write([b"1\n"], NOON)

    def fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "close", fail)
        with pytest.raises(OSError, match="Input/output error"):
            file.write([b"2\n"], NOON + 3600)
    file.write([b"3\n"], NOON + 3600)
    file.close()
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"1\n", b"3\n"]


def test_a_file_that_is_closed_or_removed_meanwhile_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may rename or remove it between the search and the opening."""
    file, glob = LogFile(settings(tmp_path), "books"), Path.glob
    file.write([line().encode(1.0)], NOON)
    gone = tmp_path / "books.20261101T1230.7.jsonl"

    def found(self: Path, pattern: str) -> list[Path]:
        paths = [gone, *glob(self, pattern)]
        file.close()
        return paths

    monkeypatch.setattr(Path, "glob", found)
    assert forget_units(tmp_path, "books", [unit_digest("salt", "u1")]) == 1
    (closed,) = tmp_path.iterdir()
    assert not closed.read_bytes().strip()


def test_a_removed_file_or_folder_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "served"
    file = LogFile(settings(folder), "books")
    file.write([b"1\n"], NOON)
    next(folder.iterdir()).unlink()
    file.write([b"2\n"], NOON)
    assert next(folder.iterdir()).read_bytes() == b"2\n"
    next(folder.iterdir()).unlink()
    folder.rmdir()
    file.write([b"3\n"], NOON)
    assert next(folder.iterdir()).read_bytes() == b"3\n"
    file.close()


def test_a_link_is_not_followed_and_a_file_system_without_locks_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of files can be guessed, so somebody could have put links there."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"1")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / f"books.20261201T1230.{os.getpid()}.jsonl.open").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        LogFile(settings(folder), "books").write([b"1\n"], NOON)
    assert precious.read_bytes() == b"1"

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(OSError, match="No locks available"):
        LogFile(settings(tmp_path / "other"), "books").write([b"1\n"], NOON)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let writes fail beyond this size in a `with` block, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """What fitted before stays, and writing goes on once there is room."""
    file = LogFile(settings(tmp_path), "books")
    with files_of_at_most(10):
        file.write([b"12345\n"], NOON)
        with pytest.raises(OSError, match="large"):
            file.write([b"abc\n", b"defghijkl\n"], NOON)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"12345\n"
    file.write([b"more\n"], NOON)
    assert path.read_bytes() == b"12345\nmore\n"
    file.close()


def written(metrics: Metrics, result: str) -> float:
    return metrics.of(SERVED_LOG_LINES, result=result)._value.get()  # type: ignore[attr-defined]


@pytest.fixture
def anyio_backend() -> str:
    """Run on a real clock, because writing takes real time."""
    return "trio"


@pytest.mark.anyio
async def test_lost_lines_are_counted_and_said_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded. An error of the disk fails no caller."""
    monkeypatch.setattr(served_log, "WRITE_S", 0.01)
    monkeypatch.setattr(served_log, "SAY_S", 1.0)
    metrics = Metrics.create()
    log, blocked = ServedLogs(metrics), tmp_path / "file"
    blocked.write_bytes(b"")
    many = tuple(map(str, range(1000)))
    most = served_log.MAX_WAITING_IDS // (1000 + served_log.LINE_COST)
    for _ in range(600):
        log.put(settings(tmp_path / "served"), line(items=many))
    assert written(metrics, "lost") == 600 - most
    with capture_logs() as said:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            with trio.fail_after(30):
                while written(metrics, "written") < most:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            began = trio.current_time()
            for _ in range(50):
                log.put(settings(blocked), line())
                await trio.sleep(0.03)
            elapsed_s = trio.current_time() - began
            nursery.cancel_scope.cancel()
    assert written(metrics, "lost") == 600 - most + 50
    events = [record for record in said if record["event"] == "served_log_failed"]
    assert {record["name"] for record in events} == {"books"}
    slow = [record["lines"] for record in events if record["error"] == "the disk is slower than the answers"]
    assert slow == [600 - most]
    failed = [record["lines"] for record in events if record["error"] == f"{blocked}: File exists"]
    assert sum(failed) == 50
    assert len(failed) <= elapsed_s / 1.0 + 2
    (path,) = (tmp_path / "served").iterdir()
    assert path.suffix == ".jsonl"
    assert len(path.read_text("utf-8").splitlines()) == most


@pytest.mark.anyio
async def test_the_end_writes_what_waits(tmp_path: Path) -> None:
    log = ServedLogs(Metrics.disabled())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        await trio.sleep(0.05)
        log.put(settings(tmp_path), line())
        nursery.cancel_scope.cancel()
    (path,) = tmp_path.iterdir()  # noqa: ASYNC240 - takes no time
    assert path.suffix == ".jsonl"
    assert json.loads(path.read_bytes())["items"] == ["b1", "b2"]


@pytest.mark.anyio
async def test_lines_are_lost_without_a_thread_and_writing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error would end the whole server."""
    monkeypatch.setattr(served_log, "WRITE_S", 0.01)
    metrics = Metrics.create()
    log = ServedLogs(metrics)

    async def fail(*_: object, **_more: object) -> None:
        raise RuntimeError("can't start new thread")

    with capture_logs() as said, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            with monkeypatch.context() as without_threads:
                without_threads.setattr(trio.to_thread, "run_sync", fail)
                log.put(settings(tmp_path), line())
                while not written(metrics, "lost"):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            log.put(settings(tmp_path), line())
            while not written(metrics, "written"):  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    (event,) = said
    assert (event["name"], event["error"], event["lines"]) == ("books", "RuntimeError: can't start new thread", 1)
