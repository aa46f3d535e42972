"""Artifacts in local folders: faults of file systems, links, and the root that bounds all paths."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from svc.artifact.keys import development_keys
from svc.artifact.layout import Written
from svc.artifact.store import Store, open_store, read_verified
from svc.artifact.store_local import private_buffer, spool_file
from svc.errors import ArtifactReadError, ArtifactWriteError, MagicMismatch
from svc.settings import Settings


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE, 3 * mmap.PAGESIZE + 7])
def test_a_buffer_has_writable_zeros(size: int) -> None:
    """The buffer has exactly the requested size, which may be 0."""
    buffer = private_buffer(size)
    assert bytes(buffer) == bytes(size)
    buffer[:] = b"x" * size
    assert bytes(buffer) == b"x" * size


def test_a_write_in_another_process_does_not_change_the_buffer() -> None:
    """Verified bytes cannot change under their reader."""
    buffer = private_buffer(10)
    buffer[:5] = b"first"
    child = os.fork()
    if not child:
        buffer[:5] = b"other"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(buffer[:5]) == b"first"


def write(out: BinaryIO) -> int:
    return out.write(b"SVCMODEL")


def test_a_spool_file_has_the_written_bytes_and_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves no temporary file behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with spool_file(write) as (file, written):
        assert written == 8
        file.seek(0)
        assert file.read() == b"SVCMODEL"
        assert list(tmp_path.iterdir()) == []
    assert file.closed


def test_a_missing_temporary_folder_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If temporary files cannot be written, the error names the variable TMPDIR."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ArtifactWriteError, match="see TMPDIR"), spool_file(write):
        raise AssertionError("nothing was written")


CAP = 1 << 20


def writer(content: bytes):  # type: ignore[no-untyped-def]
    def write(out: BinaryIO) -> Written:
        out.write(content)
        return Written(hashlib.sha256(content).hexdigest(), len(content), 0)

    return write


def store_at(path: Path) -> Store:
    return open_store(str(path), Settings())


def test_missing_folders_are_created(tmp_path: Path) -> None:
    """The folder of an output path need not exist."""
    store_at(tmp_path / "a" / "b" / "m.svc").publish(writer(b"x"), "always_overwrite")
    assert (tmp_path / "a" / "b" / "m.svc").read_bytes() == b"x"


def test_the_mode_of_artifacts_follows_the_umask(tmp_path: Path) -> None:
    """A server of another user can read an artifact, unless the umask forbids it."""
    before = os.umask(0o022)
    try:
        store_at(tmp_path / "m.svc").publish(writer(b"x"), "always_overwrite")
    finally:
        os.umask(before)
    assert (tmp_path / "m.svc").stat().st_mode & 0o777 == 0o644


@pytest.mark.system
def test_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    """The next run removes the temporary file of a killed writer, but not that of a running one."""
    script = (
        "import sys, os, signal\n"
        "from svc.artifact.store import open_store\n"
        "from svc.settings import Settings\n"
        "def write(out):\n"
        "    out.write(b'half'); out.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "open_store(sys.argv[1], Settings()).publish(write, 'always_overwrite')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m.svc")], check=False)
    assert done.returncode == -9
    [dead] = tmp_path.glob(".m.svc.*.tmp")

    def publishes_meanwhile(out: BinaryIO) -> Written:
        [unfinished] = [p for p in tmp_path.glob(".m.svc.*.tmp") if p != dead]
        store_at(tmp_path / "m.svc").publish(writer(b"second"), "always_overwrite")
        assert unfinished.exists()
        return writer(b"first")(out)  # type: ignore[no-any-return]

    store_at(tmp_path / "m.svc").publish(publishes_meanwhile, "always_overwrite")
    assert not dead.exists()
    assert (tmp_path / "m.svc").read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["m.svc"]


def test_other_files_are_not_removed(tmp_path: Path) -> None:
    """Only temporary files of writers of the same output are removed."""
    others = [
        ".m.svc.tmp",
        ".m.svc.0123456789abcdef.tmp.bak",
        ".other.svc.0123456789abcdef.tmp",
        "m.svc.0123456789abcdef.tmp",
    ]
    for name in others:
        (tmp_path / name).touch()
    store_at(tmp_path / "m.svc").publish(writer(b"x"), "always_overwrite")
    assert {p.name for p in tmp_path.iterdir()} == {*others, "m.svc"}


@pytest.mark.usefixtures("permissions")
def test_a_read_only_folder_is_a_clear_error(tmp_path: Path) -> None:
    """The message names the folder and the system's reason."""
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(ArtifactWriteError, match=f"{tmp_path}: Permission denied"):
            store_at(tmp_path / "m.svc").publish(writer(b"x"), "always_overwrite")
    finally:
        tmp_path.chmod(0o755)


def test_a_full_disk_leaves_the_old_artifact(tmp_path: Path) -> None:
    """The error gives the reason, and no part of the new file is left."""
    path = tmp_path / "m.svc"
    store_at(path).publish(writer(b"old"), "always_overwrite")

    def no_space(out: BinaryIO) -> Written:
        out.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ArtifactWriteError, match="No space left"):
        store_at(path).publish(no_space, "append_sha")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m.svc", b"old")]


def test_a_disk_that_fills_up_before_the_pointer_leaves_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new artifact exists, but readers still get the version before."""
    path = tmp_path / "m.svc"
    store_at(path).publish(writer(b"old"), "append_sha")
    fsync, calls = os.fsync, iter([None, None, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])

    def fsync_until_full(descriptor: int) -> None:
        if (error := next(calls)) is not None:
            raise error
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_until_full)
    with pytest.raises(ArtifactWriteError, match="No space left"):
        store_at(path).publish(writer(b"new"), "append_sha")
    assert bytes(store_at(path).read(CAP).view) == b"old"
    assert list(tmp_path.glob(".*.tmp")) == []


def test_a_folder_in_place_of_the_artifact_is_a_clear_error(tmp_path: Path) -> None:
    """The folder can be neither read nor replaced, and it stays."""
    path = tmp_path / "m.svc"
    path.mkdir()
    with pytest.raises(ArtifactReadError, match=r"directory|not a file"):
        store_at(path).read(CAP)
    with pytest.raises(ArtifactWriteError, match="directory"):
        store_at(path).publish(writer(b"x"), "always_overwrite")
    assert [p.name for p in tmp_path.iterdir()] == ["m.svc"]


def test_a_pipe_in_place_of_the_artifact_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a pipe without a writer would block."""
    os.mkfifo(tmp_path / "m.svc")
    with pytest.raises(ArtifactReadError, match="not a file"):
        store_at(tmp_path / "m.svc").read(CAP)


def test_a_symlink_is_followed_by_reads_and_replaced_by_writes(tmp_path: Path) -> None:
    """Publishing replaces the link by a file, and does not change its target."""
    (tmp_path / "real").write_bytes(b"linked")
    (tmp_path / "m.svc").symlink_to("real")
    assert bytes(store_at(tmp_path / "m.svc").read(CAP).view) == b"linked"
    store_at(tmp_path / "m.svc").publish(writer(b"new"), "always_overwrite")
    assert not (tmp_path / "m.svc").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"linked"


@pytest.mark.parametrize("broken", ["dangling", "loop", "file_as_folder"])
def test_broken_links_and_paths_are_missing_or_unreadable(tmp_path: Path, broken: str) -> None:
    """A dangling link, and a file in place of a folder, count as missing. A loop of links is a read error."""
    path = tmp_path / "m.svc"
    if broken == "dangling":
        path.symlink_to("nothing")
    elif broken == "loop":
        path.symlink_to("m.svc")
    else:
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "m.svc"
    with pytest.raises(ArtifactReadError if broken == "loop" else FileNotFoundError):
        store_at(path).marker()
    with pytest.raises(ArtifactReadError):
        store_at(path).read(CAP)


@pytest.mark.usefixtures("permissions")
def test_a_read_without_permission_is_refused(tmp_path: Path) -> None:
    """The error gives the reason. With the permission restored, reading works, and the marker has changed."""
    path = tmp_path / "m.svc"
    store_at(path).publish(writer(b"x"), "always_overwrite")
    before = store_at(path).marker()
    path.chmod(0)
    with pytest.raises(ArtifactReadError, match="Permission denied"):
        store_at(path).read(CAP)
    path.chmod(0o644)
    assert bytes(store_at(path).read(CAP).view) == b"x"
    assert store_at(path).marker() != before


def test_an_overwrite_with_restored_times_changes_the_marker(tmp_path: Path) -> None:
    """The marker changes even if size and modification time are the same, or if the clock goes backwards."""
    path = tmp_path / "m.svc"
    path.write_bytes(b"one")
    status = path.stat()
    before = store_at(path).marker()
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store_at(path).marker() != before
    os.utime(path, ns=(0, 0))
    assert store_at(path).marker().startswith("0:3:")


def test_readers_see_only_whole_versions(tmp_path: Path) -> None:
    """While two hundred versions are published, as files and with pointers, every read returns one whole version."""
    path = tmp_path / "m.svc"
    versions = {bytes([n]) * 50_000 for n in range(1, 201)}
    store_at(path).publish(writer(bytes([1]) * 50_000), "append_sha")
    done = threading.Event()
    torn: list[bytes] = []

    def read_on() -> None:
        while not done.is_set():
            content = bytes(store_at(path).read(CAP).view)
            if content not in versions:
                torn.append(content[:20])

    reader = threading.Thread(target=read_on)
    reader.start()
    for number, content in enumerate(sorted(versions)):
        store_at(path).publish(writer(content), "append_sha" if number % 3 else "always_overwrite")
    done.set()
    reader.join()
    assert torn == []


def rooted(path: Path, root: Path) -> Store:
    return open_store(str(path), Settings(artifact_root=str(root)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with an artifact, beside a folder with a secret."""
    folder = tmp_path / "root"
    (folder / "in").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.svc").write_bytes(b"secret")
    (folder / "in" / "m.svc").write_bytes(b"inside")
    return folder


LINKS = {
    "file out": ("m.svc", "../../out/m.svc"),
    "absolute file out": ("m.svc", "ROOT/../out/m.svc"),
    "folder out": ("way", "../../out"),
    "folder out and back": ("way", "../../out/../out"),
    "chain": ("way", "other"),
}


@pytest.mark.parametrize("kind", LINKS)
def test_links_out_of_the_root_are_refused(root: Path, kind: str) -> None:
    """No kind of link leads out of the root, for reads and for markers."""
    name, target = LINKS[kind]
    (root / "in" / "other").symlink_to("../../out")
    (root / "in" / name).unlink(missing_ok=True)
    (root / "in" / name).symlink_to(target.replace("ROOT", str(root)))
    path = root / "in" / name / ("" if name == "m.svc" else "m.svc")
    for ask in (lambda store: store.read(CAP), lambda store: store.marker()):
        with pytest.raises(ArtifactReadError, match="outside SVC_ARTIFACT_ROOT"):
            ask(rooted(path, root))


@pytest.mark.parametrize("sub", ["", "new/deep"])
def test_nothing_is_written_outside_the_root(root: Path, tmp_path: Path, sub: str) -> None:
    """A folder that became a link out of the root is not followed."""
    (root / "way").symlink_to("../out")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArtifactWriteError, match="outside SVC_ARTIFACT_ROOT"):
        rooted(root / "way" / sub / "m.svc", root).publish(writer(b"x"), "append_sha")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("target", ["in", "ROOT/in", "../root/in"])
def test_links_within_the_root_are_followed(root: Path, target: str) -> None:
    """Relative and absolute links work, as volumes of Kubernetes have them, and a root may itself be a link."""
    (root / "way").symlink_to(target.replace("ROOT", str(root)))
    alias = root.parent / "alias"
    alias.symlink_to(root)
    for path, bound in (
        (root / "way" / "m.svc", root),
        (alias / "way" / "m.svc", root),
        (root / "way" / "m.svc", alias),
    ):
        store = rooted(path, bound)
        assert bytes(store.read(CAP).view) == b"inside"
        assert store.marker() == rooted(root / "in" / "m.svc", root).marker()
    published = rooted(root / "way" / "m.svc", root).publish(writer(b"newer"), "append_sha")
    assert published.pointer == str(root / "way" / "m.svc")
    assert bytes(rooted(root / "in" / "m.svc", root).read(CAP).view) == b"newer"


def test_a_root_does_not_change_error_messages(root: Path) -> None:
    """Missing files, folders and pipes have the same messages as without a root."""
    os.mkfifo(root / "in" / "pipe.svc")
    for name in ("none.svc", "none/m.svc", "pipe.svc", ""):
        messages = []
        for store in (rooted(root / "in" / name, root), store_at(root / "in" / name)):
            with pytest.raises(ArtifactReadError) as caught:
                store.read(CAP)
            messages.append(caught.value.message)
        assert messages[0] == messages[1]


def test_a_link_that_changes_during_reads_never_leads_out_of_the_root(root: Path) -> None:
    """The location is checked on the open file, so there is no moment to exchange the link."""
    way, stop = root / "in" / "way.svc", threading.Event()

    def turn() -> None:
        while not stop.is_set():
            for target in ("m.svc", "../../out/m.svc"):
                (root / "in" / "next").symlink_to(target)
                (root / "in" / "next").replace(way)

    way.symlink_to("m.svc")
    turning = threading.Thread(target=turn)
    turning.start()
    found, refused = set(), 0
    try:
        while len(found) < 1 or refused < 100:
            try:
                found.add(bytes(rooted(way, root).read(CAP).view))
            except ArtifactReadError:
                refused += 1
    finally:
        stop.set()
        turning.join()
    assert found == {b"inside"}


def test_the_root_does_not_bound_files_that_a_user_names(root: Path) -> None:
    """SVC_ARTIFACT_ROOT bounds paths in recipes, not the argument of `svc inspect`."""
    with pytest.raises(MagicMismatch):
        read_verified(str(root.parent / "out" / "m.svc"), development_keys(), Settings(artifact_root=str(root)))
