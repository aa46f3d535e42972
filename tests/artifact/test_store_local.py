"""What a file system can do to an artifact, and what must come of it."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from svc.artifact.keys import development_keys
from svc.artifact.layout import Written
from svc.artifact.store import Store, open_store, read_verified
from svc.errors import ArtifactReadError, ArtifactWriteError, MagicMismatch
from svc.settings import Settings

CAP = 1 << 20


def writer(content: bytes):  # type: ignore[no-untyped-def]
    def write(out: BinaryIO) -> Written:
        out.write(content)
        return Written(hashlib.sha256(content).hexdigest(), len(content), 0)

    return write


def store_at(path: Path) -> Store:
    return open_store(str(path), Settings())


def test_missing_folders_are_made(tmp_path: Path) -> None:
    """The folder of an output path need not exist."""
    store_at(tmp_path / "a" / "b" / "m.svc").publish(writer(b"x"), "always_overwrite")
    assert (tmp_path / "a" / "b" / "m.svc").read_bytes() == b"x"


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    """A server under another user can read what the trainer wrote, unless the umask says otherwise."""
    before = os.umask(0o022)
    try:
        store_at(tmp_path / "m.svc").publish(writer(b"x"), "always_overwrite")
    finally:
        os.umask(before)
    assert (tmp_path / "m.svc").stat().st_mode & 0o777 == 0o644


@pytest.mark.system
def test_leftovers_of_dead_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    """A temporary file whose writer was killed is removed by the next run; one that is being written is not."""
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
        [mine] = [p for p in tmp_path.glob(".m.svc.*.tmp") if p != dead]
        store_at(tmp_path / "m.svc").publish(writer(b"second"), "always_overwrite")
        assert mine.exists()
        return writer(b"first")(out)  # type: ignore[no-any-return]

    store_at(tmp_path / "m.svc").publish(publishes_meanwhile, "always_overwrite")
    assert not dead.exists()
    assert (tmp_path / "m.svc").read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["m.svc"]


def test_files_of_others_are_no_leftovers(tmp_path: Path) -> None:
    """Only names that this output's own writer makes are ever removed."""
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
    """When space runs out in the middle of a write, the error says so and nothing of the new file is left."""
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
    """The new artifact is there, but nothing points to it: readers go on with the version before."""
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


def test_a_folder_in_the_artifacts_place_is_a_clear_error(tmp_path: Path) -> None:
    """A folder can be neither read nor replaced; it stays as it is."""
    path = tmp_path / "m.svc"
    path.mkdir()
    with pytest.raises(ArtifactReadError, match=r"directory|not a file"):
        store_at(path).read(CAP)
    with pytest.raises(ArtifactWriteError, match="directory"):
        store_at(path).publish(writer(b"x"), "always_overwrite")
    assert [p.name for p in tmp_path.iterdir()] == ["m.svc"]


def test_a_pipe_in_the_artifacts_place_does_not_hang_the_reader(tmp_path: Path) -> None:
    """A pipe without a writer is refused at once."""
    os.mkfifo(tmp_path / "m.svc")
    with pytest.raises(ArtifactReadError, match="not a file"):
        store_at(tmp_path / "m.svc").read(CAP)


def test_a_link_is_read_through_and_replaced_itself(tmp_path: Path) -> None:
    """Reading follows a link; publishing puts a file in the link's place and leaves what it pointed to alone."""
    (tmp_path / "real").write_bytes(b"linked")
    (tmp_path / "m.svc").symlink_to("real")
    assert bytes(store_at(tmp_path / "m.svc").read(CAP).view) == b"linked"
    store_at(tmp_path / "m.svc").publish(writer(b"new"), "always_overwrite")
    assert not (tmp_path / "m.svc").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"linked"


@pytest.mark.parametrize("broken", ["dangling", "loop", "file_as_folder"])
def test_what_leads_nowhere_is_missing_or_unreadable(tmp_path: Path, broken: str) -> None:
    """A link to nothing and a file where a folder should be count as missing; a loop is an error of its own."""
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
def test_permission_taken_and_given_back(tmp_path: Path) -> None:
    """Without permission the read is refused with the reason; given back, it works, and the marker shows a change."""
    path = tmp_path / "m.svc"
    store_at(path).publish(writer(b"x"), "always_overwrite")
    before = store_at(path).marker()
    path.chmod(0)
    with pytest.raises(ArtifactReadError, match="Permission denied"):
        store_at(path).read(CAP)
    path.chmod(0o644)
    assert bytes(store_at(path).read(CAP).view) == b"x"
    assert store_at(path).marker() != before


def test_an_overwrite_in_place_with_the_old_times_is_noticed(tmp_path: Path) -> None:
    """A copy that restores size and modification time, and clocks that go backwards, still change the marker."""
    path = tmp_path / "m.svc"
    path.write_bytes(b"one")
    status = path.stat()
    before = store_at(path).marker()
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store_at(path).marker() != before
    os.utime(path, ns=(0, 0))
    assert store_at(path).marker().startswith("0:3:")


def test_readers_never_see_a_part(tmp_path: Path) -> None:
    """While two hundred versions are published, through files and pointers, every read is one whole version."""
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
    """A root with an artifact, and a secret beside the root."""
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
def test_no_link_leads_out_of_the_root(root: Path, kind: str) -> None:
    """Neither for reading nor for asking, however it is made, also where it was made after the path was checked."""
    name, target = LINKS[kind]
    (root / "in" / "other").symlink_to("../../out")
    (root / "in" / name).unlink(missing_ok=True)
    (root / "in" / name).symlink_to(target.replace("ROOT", str(root)))
    path = root / "in" / name / ("" if name == "m.svc" else "m.svc")
    for ask in (lambda store: store.read(CAP), lambda store: store.marker()):
        with pytest.raises(ArtifactReadError, match="outside SVC_ARTIFACT_ROOT"):
            ask(rooted(path, root))


@pytest.mark.parametrize("sub", ["", "new/deep"])
def test_nothing_is_written_or_made_out_of_the_root(root: Path, tmp_path: Path, sub: str) -> None:
    """A folder that became a link since it was checked is not followed out."""
    (root / "way").symlink_to("../out")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArtifactWriteError, match="outside SVC_ARTIFACT_ROOT"):
        rooted(root / "way" / sub / "m.svc", root).publish(writer(b"x"), "append_sha")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("target", ["in", "ROOT/in", "../root/in"])
def test_links_within_the_root_are_followed(root: Path, target: str) -> None:
    """As volumes of Kubernetes make them; relative and absolute ones, and a root that is a link itself."""
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


def test_a_root_changes_no_error(root: Path) -> None:
    """Missing files, folders and pipes are told as without one."""
    os.mkfifo(root / "in" / "pipe.svc")
    for name in ("none.svc", "none/m.svc", "pipe.svc", ""):
        told = []
        for store in (rooted(root / "in" / name, root), store_at(root / "in" / name)):
            with pytest.raises(ArtifactReadError) as caught:
                store.read(CAP)
            told.append(caught.value.message)
        assert told[0] == told[1]


def test_a_link_that_is_turned_around_while_it_is_read_never_gives_what_lies_outside(root: Path) -> None:
    """The file is looked up where it was opened; between the two there is no moment to exchange it."""
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


def test_whoever_names_a_file_may_read_it_wherever_it_lies(root: Path) -> None:
    """SVC_ARTIFACT_ROOT bounds what recipes name, not `svc inspect`."""
    with pytest.raises(MagicMismatch):
        read_verified(str(root.parent / "out" / "m.svc"), development_keys(), Settings(artifact_root=str(root)))
