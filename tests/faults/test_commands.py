"""Each system call of each writing command fails once. Files are old or new, and the next run succeeds."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.books import RECIPE, run, set_environment, write_interactions
from tests.faults.failing_calls import FAULTS, KINDS, STRIDE, FailingCalls, Failure
from tests.faults.jumping_clock import JUMPS, JumpingClock

COMMANDS = {
    "train": "train books.yaml --run-id third",
    "gate": "train gated.yaml --run-id third",
    "refit": "train books.yaml --refit --run-id third",
    "rollback": "rollback books.yaml",
    "promote": "promote books.yaml OLDER",
    "history": "history books.yaml --verify",
    "recommend": "recommend out/books.svc --output books.jsonl",
    "shard": "recommend out/books.svc --shard 1/2 --output halves.csv",
    "merge": "recommend --merge --output halves.csv",
    "keygen": "keygen --kid k9 --write keys.env",
    "report": "report out/books.svc --output books.html",
    "validate": "validate books.yaml",
}
AGAIN = {"rollback": COMMANDS["promote"], "keygen": "keygen --kid k10 --write keys.env"}
"""The command to run after a failure, if a repetition would act on the effect of the failed run."""
CLOCKS: list[tuple[str, Failure]] = [("clock", jump_s) for jump_s in (JUMPS if STRIDE == 1 else JUMPS[:1])]
SAMPLE = [("train", "open"), ("rollback", "fsync"), ("recommend", "rename"), ("keygen", "write")]


class Ended(NamedTuple):
    """A run in which a call failed: its folder, exit code and log records."""

    folder: Path
    exit_code: int
    records: list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two trained versions of a recipe, and with both halves of an export."""
    folder = tmp_path_factory.mktemp("trained")
    write_interactions(folder)
    (folder / "books.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "gated.yaml").write_text(f"{RECIPE}promotion: {{mode: enforce}}\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        set_environment(patch, folder)
        for command in (
            "train books.yaml --quiet --run-id first",
            "train books.yaml --quiet --run-id second",
            "recommend out/books.svc --shard 0/2 --output halves.csv",
        ):
            assert run(command, folder) == 0
        assert run("recommend out/books.svc --shard 1/2 --output halves.csv", folder) == 0
    return folder


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the versions, and check that artifacts and pointer agree with the log.

    If a failure left the pointer behind the log, `svc history --verify` must name the command that repairs it.
    """
    capsys.readouterr()
    code = run("history books.yaml --verify", folder)
    told = capsys.readouterr()
    assert code == 0 or "`svc promote` sets both anew" in told.out, told.out + told.err
    assert run("history books.yaml --json", folder) == 0
    return list(json.loads(capsys.readouterr().out)["versions"])


def runs(
    command: str, fault: tuple[str, Failure], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Ended]:
    """Run the command in copies of `trained`. In each run a later call fails, until the run makes fewer calls."""
    older = next(version["sha8"] for version in listed(trained, capsys) if not version["live"])
    for nth in itertools.count(1, STRIDE):
        folder = tmp_path / str(nth)
        shutil.copytree(trained, folder)
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            set_environment(patch, folder)
            kind, failure = fault
            with JumpingClock(failure, nth) if kind == "clock" else FailingCalls(folder, kind, failure, nth) as calls:
                exit_code = run(COMMANDS[command], folder, older)
            told = capsys.readouterr()
            if not calls.failed:
                assert exit_code == 0, told.err
                print(f"{command}, {fault[0]}: {calls.made} calls")  # noqa: T201 - `-rP` shows how many
                return
            yield Ended(folder, exit_code, [json.loads(line) for line in told.err.splitlines()])
            assert run(AGAIN.get(command, COMMANDS[command]), folder, older) == 0, capsys.readouterr().err
            assert run("promote books.yaml OLDER", folder, older) == 0, capsys.readouterr().err
            assert run("history books.yaml --verify", folder) == 0, capsys.readouterr().out
            assert list(folder.rglob("*.tmp")) == []
        shutil.rmtree(folder)


def check(
    command: str, fault: tuple[str, Failure], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that no version is lost, and that the last line of the log has a failed run's code and exit code."""
    before = {version["sha8"] for version in listed(trained, capsys)}
    for ended in runs(command, fault, trained, tmp_path, capsys):
        if ended.exit_code and command != "validate":  # which prints its findings
            last = ended.records[-1]
            assert last["exit_code"] == ended.exit_code
            assert last["code"] != "internal_error", last
            assert not any("traceback" in record for record in ended.records)
        assert before <= {version["sha8"] for version in listed(ended.folder, capsys)}


@pytest.fixture
def begun(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, Path, pytest.CaptureFixture[str]]:
    set_environment(monkeypatch, trained)
    return trained, tmp_path, capsys


@pytest.mark.system
@pytest.mark.parametrize("fault", [*FAULTS, *CLOCKS], ids=lambda fault: f"{fault[0]}-{fault[1]}")
@pytest.mark.parametrize("command", COMMANDS if STRIDE == 1 else ("train", "promote", "recommend", "merge"))
def test_a_command_survives_a_failure_of_any_system_call(
    command: str, fault: tuple[str, Failure], begun: tuple[Path, Path, pytest.CaptureFixture[str]]
) -> None:
    """Each system call fails with errors that the kernel may return for it."""
    check(command, fault, *begun)


@pytest.mark.parametrize(("command", "kind"), SAMPLE)
def test_a_command_survives_failures_of_sampled_system_calls(
    command: str, kind: str, begun: tuple[Path, Path, pytest.CaptureFixture[str]]
) -> None:
    """The test takes a sample of the pairs of a command and a kind of system call."""
    check(command, (kind, KINDS[kind][0]), *begun)


@pytest.mark.system
@pytest.mark.parametrize("command", ["train", "recommend", "merge"])
def test_interrupted_calls_are_repeated(command: str, begun: tuple[Path, Path, pytest.CaptureFixture[str]]) -> None:
    """A handled signal ends a system call with EINTR. A command succeeds although a signal comes each millisecond."""
    trained, tmp_path, capsys = begun
    folder = tmp_path / "interrupted"
    shutil.copytree(trained, folder)
    handled: list[int] = []
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(1e-3):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            set_environment(patch, folder)
            assert run(COMMANDS[command], folder) == 0, capsys.readouterr().err
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert handled
    listed(folder, capsys)
