"""Files are written whole or not at all, and only by `svc.atomic_write`."""

from __future__ import annotations

import ast
import fcntl
import os
from pathlib import Path
from typing import BinaryIO

import pytest

import svc
from svc.atomic_write import remove_leftovers, replace_file, write_file

SVC = Path(svc.__file__).parent


def test_the_new_file_replaces_the_old_one(tmp_path: Path) -> None:
    """A write leaves no temporary file behind."""
    path = tmp_path / "a.json"
    for content in (b"old", b"new"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o644, 0o644)])
def test_the_mode_is_the_given_one_or_that_of_the_umask(tmp_path: Path, mode: int | None, expected: int) -> None:
    """A file that programs of other users read needs a given mode."""
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "a", b"x", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == expected


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """The old file stays whatever the writer raises, such as KeyboardInterrupt."""
    (tmp_path / "a").write_bytes(b"old")

    def write(file: BinaryIO) -> str:
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path, "a", write, lambda name: name)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_the_file_name_may_depend_on_the_written_content(tmp_path: Path) -> None:
    """A file name may contain a digest of the content."""
    assert write_file(tmp_path, "a", lambda file: file.write(b"four"), lambda length: f"a-{length}") == 4
    assert (tmp_path / "a-4").read_bytes() == b"four"


def test_a_file_is_synced_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry in the folder must survive a crash too."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    replace_file(tmp_path / "a", b"x")
    assert len(synced) == 2


def test_only_leftovers_of_the_same_base_are_removed(tmp_path: Path) -> None:
    """A temporary file that is still being written is locked and stays."""
    mine, others = tmp_path / f".a.{'0' * 16}.tmp", tmp_path / f".b.{'0' * 16}.tmp"
    mine.touch()
    others.touch()

    def write(file: BinaryIO) -> str:
        remove_leftovers(tmp_path, "a")
        file.write(b"x")
        return "a"

    write_file(tmp_path, "a", write, lambda name: name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [others.name, "a"]


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_file_removed_before_it_is_locked_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer may remove the unlocked file as a leftover. The write succeeds, and no descriptor is left."""
    lock, opened = fcntl.flock, count_descriptors()

    def lock_late(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        for path in tmp_path.iterdir():
            path.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    replace_file(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    assert count_descriptors() == opened


def test_no_other_module_makes_atomic_writes_or_locks_of_its_own() -> None:
    """Other modules use `svc.atomic_write`, or a lock of the package `filelock`.

    The served log appends to a file that it keeps locked.
    """
    own = {"fsync", "flock", "mkstemp", "NamedTemporaryFile", "rename"}
    modules = {
        path.relative_to(SVC).as_posix()
        for path in SVC.rglob("*.py")
        if any(name in (text := path.read_text(encoding="utf-8")) for name in own)
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Attribute) and node.attr in own)
        or (isinstance(node, ast.ImportFrom) and own & {alias.name for alias in node.names})
    }
    assert modules == {"atomic_write.py", "serving/served_log.py"}
