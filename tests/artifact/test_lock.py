"""The lock of a training run."""

from __future__ import annotations

import pwd
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from svc.artifact.lock import lock_path, run_lock
from svc.errors import ConfigError, LockContestedError
from svc.settings import Settings


def test_the_lock_of_a_local_output_is_beside_it(tmp_path: Path) -> None:
    """The lock file is `<output.path>.lock`, with mode 0600, and it is removed afterwards."""
    output = tmp_path / "made" / "m.svc"
    with run_lock(str(output), timeout_s=0, settings=Settings()) as path:
        assert path == tmp_path / "made" / "m.svc.lock"
        assert path.stat().st_mode & 0o777 == 0o600
    assert list(output.parent.iterdir()) == []


def test_a_second_run_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    """During one run another gets LockContestedError at once. Afterwards the lock is free."""
    output = str(tmp_path / "m.svc")
    with (
        run_lock(output, timeout_s=0, settings=Settings()),
        pytest.raises(LockContestedError, match="another run or command holds the lock"),
        run_lock(output, timeout_s=0, settings=Settings()),
    ):
        pass
    with run_lock(output, timeout_s=0, settings=Settings()):
        pass


def test_a_waiting_run_gets_the_lock_when_the_first_ends(tmp_path: Path) -> None:
    """A waiting run gets the lock when the first run ends, and then excludes all others."""
    output = str(tmp_path / "m.svc")
    held, order = threading.Event(), []

    def second() -> None:
        held.wait()
        with run_lock(output, timeout_s=-1, settings=Settings()) as path:
            order.append("second")
            with pytest.raises(LockContestedError), run_lock(output, timeout_s=0, settings=Settings()):
                pass
            assert path.exists()

    thread = threading.Thread(target=second)
    thread.start()
    with run_lock(output, timeout_s=0, settings=Settings()):
        held.set()
        with pytest.raises(LockContestedError), run_lock(output, timeout_s=0.2, settings=Settings()):
            pass
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.system
def test_concurrent_runs_never_overlap(tmp_path: Path) -> None:
    """Processes that take and release the lock in a loop never have it at the same time."""
    script = (
        "import sys, os\n"
        "from svc.artifact.lock import run_lock\n"
        "from svc.settings import Settings\n"
        "for _ in range(40):\n"
        "    with run_lock(sys.argv[1], timeout_s=-1, settings=Settings()):\n"
        "        os.close(os.open(sys.argv[1] + '.alone', os.O_CREAT | os.O_EXCL))\n"
        "        os.unlink(sys.argv[1] + '.alone')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "m.svc")]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(run.communicate()[1], run.returncode) for run in runs] == [(b"", 0)] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    """The system releases the lock with the process. The file that remains does not block the next run."""
    script = (
        "import sys, os, signal\n"
        "from svc.artifact.lock import run_lock\n"
        "from svc.settings import Settings\n"
        "with run_lock(sys.argv[1], timeout_s=0, settings=Settings()):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    output = str(tmp_path / "m.svc")
    assert subprocess.run([sys.executable, "-c", script, output], check=False).returncode == -9
    with run_lock(output, timeout_s=0, settings=Settings()):
        pass


def test_a_failed_run_releases_the_lock(tmp_path: Path) -> None:
    """The lock file of a run that raises is removed."""
    output = str(tmp_path / "m.svc")
    with pytest.raises(RuntimeError), run_lock(output, timeout_s=0, settings=Settings()):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_remote_outputs_are_locked_on_this_host(tmp_path: Path) -> None:
    """Each remote URI has its own lock file in `SVC_LOCK_DIR`, without the query or user-info in its name."""
    settings = Settings(lock_dir=str(tmp_path / "locks"))
    uris = ["s3://bucket/a/m.svc", "s3://bucket/b/m.svc", "https://h/m.svc?sig=SECRET"]
    paths = [lock_path(uri, settings) for uri in uris]
    assert len(set(paths)) == 3
    assert all(path.parent == tmp_path / "locks" and path.name.startswith("m.svc-") for path in paths)
    assert not any("SECRET" in str(path) for path in paths)
    with run_lock(uris[0], timeout_s=0, settings=settings), run_lock(uris[1], timeout_s=0, settings=settings):
        pass


def test_locks_of_remote_outputs_are_in_the_users_cache_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The user can always write to this folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert lock_path("gs://b/m.svc", Settings()).parent == tmp_path / "svc" / "locks"


@pytest.mark.usefixtures("permissions")
def test_an_unwritable_folder_is_a_configuration_error(tmp_path: Path) -> None:
    """The error names the lock and the remedy, with exit code 8."""
    tmp_path.chmod(0o555)
    try:
        with (
            pytest.raises(ConfigError, match="lock cannot be taken: Permission denied; make") as caught,
            run_lock(str(tmp_path / "m.svc"), timeout_s=0, settings=Settings()),
        ):
            pass
    finally:
        tmp_path.chmod(0o755)
    assert caught.value.exit_code == 8


def test_a_folder_in_place_of_the_lock_is_a_configuration_error(tmp_path: Path) -> None:
    """The error comes at once, even with an endless wait for the lock."""
    (tmp_path / "m.svc.lock").mkdir()
    with (
        pytest.raises(ConfigError, match="lock cannot be taken: Is a directory; "),
        run_lock(str(tmp_path / "m.svc"), timeout_s=-1, settings=Settings()),
    ):
        pass


def test_a_symlink_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """A user who may write into the output folder cannot make a training empty another file."""
    (tmp_path / "precious").write_text("content", encoding="utf-8")
    (tmp_path / "m.svc.lock").symlink_to("precious")
    with (
        pytest.raises(ConfigError, match="lock cannot be taken: Too many levels of symbolic links; "),
        run_lock(str(tmp_path / "m.svc"), timeout_s=0, settings=Settings()),
    ):
        pass
    assert (tmp_path / "precious").read_text(encoding="utf-8") == "content"


def test_a_file_system_without_locks_is_a_configuration_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message includes the reason. A file system in which no file can be created does not look like a held lock."""
    with (
        pytest.raises(ConfigError, match="lock cannot be taken: "),
        run_lock("/proc/m.svc", timeout_s=0, settings=Settings()),
    ):
        pass
    monkeypatch.setattr("svc.artifact.lock.FileLock.acquire", Mock(side_effect=NotImplementedError("no flock here")))
    with (
        pytest.raises(ConfigError, match="lock cannot be taken: no flock here; "),
        run_lock(str(tmp_path / "m.svc"), timeout_s=0, settings=Settings()),
    ):
        pass


def test_a_user_without_a_home_is_told_of_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container may run as a number that the password file lacks. No folder of the name `~` is made."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    with pytest.raises(ConfigError, match="set SVC_LOCK_DIR"):
        lock_path("s3://models/m.svc", Settings())
    assert lock_path("s3://models/m.svc", Settings(lock_dir="locks")).parent == Path("locks")
    assert lock_path(str(tmp_path / "m.svc"), Settings()) == tmp_path / "m.svc.lock"
    monkeypatch.setenv("HOME", "/proc")
    with (
        pytest.raises(ConfigError, match="set SVC_LOCK_DIR to one that is"),
        run_lock("s3://models/m.svc", timeout_s=0, settings=Settings()),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
