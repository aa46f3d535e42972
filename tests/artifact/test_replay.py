"""The server's loading of older, expired and forged artifacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from svc import logs
from svc.artifact import replay, version_log
from svc.artifact.keys import load_signing_keys, parse_signing_keys
from svc.artifact.replay import ReplayGuard, SerialState
from svc.artifact.store import open_store
from svc.errors import ArtifactError, ArtifactExpired, ArtifactReplayed, HeaderInvalid
from svc.recipe.load import LoadedRecipe
from svc.serving.models.loader import Loader
from svc.settings import Settings
from tests.privileges import permissions_hold
from tests.serving.artifacts import header, popularity_model, recipe, write_artifact

GOOD, LEAKED = f"k1:{'11' * 32}", f"k2:{'22' * 32}"
KEYS = parse_signing_keys(f"{GOOD},{LEAKED}")


class Server:
    """One server process with the artifact `folder/a.svc` and a state directory that others may share."""

    def __init__(self, folder: Path, state: Path | None) -> None:
        self.folder = folder
        self.settings = Settings(state_dir=None if state is None else str(state))
        self.loader = Loader(self.settings, KEYS, {}, ReplayGuard.of(self.settings))
        self.recipe: LoadedRecipe = recipe(folder)

    def poll(self) -> ArtifactError | None:
        """Return None if the artifact is served, else the reason for its refusal."""
        try:
            self.loader.load(self.recipe, open_store(str(self.folder / "a.svc"), self.settings))
        except ArtifactError as failure:
            return failure
        return None


def put(folder: Path, serial: Any = None, *, keys: str = GOOD, best: int = 0, **more: Any) -> bytes:
    """Publish an artifact with this serial and return its bytes."""
    head = header(recipe_name="a", **more) | ({} if serial is None else {"serial": serial})
    write_artifact(folder / "a.svc", popularity_model(best), keys=keys, head=head)
    return (folder / "a.svc").read_bytes()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_an_older_artifact_is_refused_also_after_a_restart(tmp_path: Path, state: Path) -> None:
    """Only the artifact with the highest serial is loaded, also by a server that has just started."""
    old, new = put(tmp_path, 5), put(tmp_path, 6)
    for content, refused in ((old, False), (new, False), (old, True), (new, False), (old, True)):
        (tmp_path / "a.svc").write_bytes(content)
        for server in (Server(tmp_path, state), Server(tmp_path, state)):
            error = server.poll()
            assert isinstance(error, ArtifactReplayed) if refused else error is None
            if error is not None:
                assert (error.reason, "5", "6") == (error.reason, *[n for n in ("5", "6") if n in error.message])


def test_without_a_state_directory_older_artifacts_are_loaded(tmp_path: Path) -> None:
    """The server ignores serials and writes no state."""
    old, new = put(tmp_path, 5), put(tmp_path, 6)
    for content in (new, old):
        (tmp_path / "a.svc").write_bytes(content)
        assert Server(tmp_path, None).poll() is None
    assert not (tmp_path / "state").exists()


def test_an_artifact_without_serial_is_refused_after_one_with_a_serial(tmp_path: Path, state: Path) -> None:
    """Artifacts from before serials could be replayed otherwise. Other kids are not affected."""
    plain = put(tmp_path)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 5)
    assert Server(tmp_path, state).poll() is None
    (tmp_path / "a.svc").write_bytes(plain)
    assert isinstance(Server(tmp_path, state).poll(), ArtifactReplayed)
    put(tmp_path, keys=LEAKED)
    assert Server(tmp_path, state).poll() is None


def test_a_leaked_key_cannot_raise_the_serials_of_another_key(tmp_path: Path, state: Path) -> None:
    """An artifact of the leaked key with the highest serial does not block the next one of the other key."""
    put(tmp_path, 5)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, replay.MAX_SERIAL, keys=LEAKED)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 6)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 4)
    assert isinstance(Server(tmp_path, state).poll(), ArtifactReplayed)


def damaged(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("fault", ["signature", "payload", "feature_version", "expired", "serial", "metadata"])
def test_a_refused_artifact_does_not_raise_the_serial(tmp_path: Path, state: Path, fault: str) -> None:
    """The serial is recorded after all other checks. Otherwise one broken file would shut out valid ones."""
    put(tmp_path, 5)
    assert Server(tmp_path, state).poll() is None
    high: dict[str, Any] = {"serial": 10**9}
    if fault == "signature":
        (tmp_path / "a.svc").write_bytes(damaged(put(tmp_path, **high), -1))
    elif fault == "payload":
        model = popularity_model()
        model.scorer = "a text"  # type: ignore[assignment]
        write_artifact(tmp_path / "a.svc", model, keys=GOOD, head=header(recipe_name="a", **high))
    elif fault == "feature_version":
        put(tmp_path, **high, features={"version": 99})
    elif fault == "expired":
        put(tmp_path, **high, expires_at="2020-01-01T00:00:00+00:00")
    elif fault == "serial":
        put(tmp_path, "1000000000")
    server = Server(tmp_path, state)
    if fault == "metadata":
        put(tmp_path, **high)
        table = {"type": "csv", "path": "none.csv"}
        server.recipe = recipe(tmp_path, item_metadata={"source": table, "id_column": "i", "fields": ["title"]})
    assert server.poll() is not None
    assert SerialState(state).highest("a", "k1") == 5
    put(tmp_path, 6)
    assert Server(tmp_path, state).poll() is None


def test_an_artifact_of_another_recipe_raises_only_its_own_serials(tmp_path: Path, state: Path) -> None:
    """An artifact of another recipe in this place is served with a warning.

    The recipe's own artifact is still accepted afterwards.
    """
    own = put(tmp_path, 5)
    assert Server(tmp_path, state).poll() is None
    write_artifact(
        tmp_path / "a.svc", popularity_model(), keys=GOOD, head=header(recipe_name="b", serial=replay.MAX_SERIAL)
    )
    assert Server(tmp_path, state).poll() is None
    (tmp_path / "a.svc").write_bytes(own)
    assert Server(tmp_path, state).poll() is None
    assert SerialState(state).highest("b", "k1") == replay.MAX_SERIAL


def rolled_back(folder: Path, content: bytes, from_serial: int, *, keys: str = GOOD, signature: Any = "hmac") -> None:
    """Write the result of `svc rollback`: the older artifact, and a signed line of the log beside it."""
    import hashlib

    signing, path, sha256 = parse_signing_keys(keys), folder / "a.svc.log.jsonl", hashlib.sha256(content).hexdigest()
    data = path.read_bytes() if path.exists() else b""
    log = version_log.parse(data, signing)
    line = version_log.Line(
        version_log.next_time(log),
        "rollback",
        sha256[:8],
        None,
        sha256[:8],
        False,
        sha256=sha256,
        from_serial=from_serial,
    )
    path.write_bytes(version_log.append_line(data, log, line, signing, signature))
    (folder / "a.svc").write_bytes(content)


def test_a_signed_rollback_is_followed_until_a_newer_artifact_is_served(tmp_path: Path, state: Path) -> None:
    """The rollback permits one artifact, and not after later trainings. An unsigned rollback has no effect."""
    older, old, new = put(tmp_path, 4), put(tmp_path, 5), put(tmp_path, 6)
    assert Server(tmp_path, state).poll() is None
    rolled_back(tmp_path, old, 6, keys=f"k1:{'99' * 32}")
    assert isinstance(Server(tmp_path, state).poll(), ArtifactReplayed)
    rolled_back(tmp_path, old, 6)
    assert Server(tmp_path, state).poll() is None
    assert Server(tmp_path, state).poll() is None, "also after a restart"
    (tmp_path / "a.svc").write_bytes(older)
    assert isinstance(Server(tmp_path, state).poll(), ArtifactReplayed), "another artifact than the one named"
    put(tmp_path, 7)
    assert Server(tmp_path, state).poll() is None
    for content in (old, new):
        (tmp_path / "a.svc").write_bytes(content)
        assert isinstance(Server(tmp_path, state).poll(), ArtifactReplayed), "the line is older than what was served"


def test_an_arm_follows_the_rollback_of_the_recipe_that_trained_its_artifact(tmp_path: Path, state: Path) -> None:
    """An arm may have the artifact of any recipe. A recipe follows only rollbacks of its own."""
    old, _ = put(tmp_path, 5), put(tmp_path, 6)
    arm = Server(tmp_path, state)
    arm.recipe = replace(arm.recipe, recipe=arm.recipe.recipe.model_copy(update={"name": "shop@next"}))
    other = Server(tmp_path, state)
    other.recipe = replace(other.recipe, recipe=other.recipe.recipe.model_copy(update={"name": "shop"}))
    assert arm.poll() is None
    (tmp_path / "a.svc").write_bytes(old)
    assert isinstance(arm.poll(), ArtifactReplayed)
    rolled_back(tmp_path, old, 6)
    assert arm.poll() is None
    assert isinstance(other.poll(), ArtifactReplayed)


@pytest.mark.parametrize("with_state", [False, True])
def test_an_expired_artifact_is_not_loaded(tmp_path: Path, state: Path, with_state: bool) -> None:
    """Expiry is checked with and without a state directory. An artifact before its expiry is loaded."""
    now = datetime.now(UTC)
    put(tmp_path, 5, expires_at=(now + timedelta(hours=1)).isoformat())
    server = Server(tmp_path, state if with_state else None)
    assert server.poll() is None
    put(tmp_path, 6, expires_at=(now - timedelta(seconds=1)).isoformat())
    assert isinstance(server.poll(), ArtifactExpired)
    put(tmp_path, 6, expires_at="later")
    assert isinstance(server.poll(), HeaderInvalid)


def test_the_refusal_is_logged_with_both_serials(tmp_path: Path, state: Path) -> None:
    """The event has the refused and the highest serial, so that an alert can use it."""
    records: list[dict[str, Any]] = []
    put(tmp_path, 6)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 5)
    logs.configure(Settings(log_format="json"), lambda line: records.append(json.loads(line)))
    Server(tmp_path, state).poll()
    logs.configure(Settings())
    (refusal,) = [record for record in records if record["event"] == "artifact_replayed"]
    assert (refusal["name"], refusal["kid"], refusal["serial"], refusal["highest"]) == ("a", "k1", 5, 6)


def test_concurrent_loads_keep_the_highest_serial(tmp_path: Path, state: Path) -> None:
    """Four threads load artifacts with different serials through one guard."""
    guard = ReplayGuard.of(Settings(state_dir=str(state)))
    folders = [tmp_path / str(n) for n in range(4)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        put(folder, 10 + number)
    errors: list[ArtifactError | None] = []

    def load(folder: Path) -> None:
        server = Server(folder, state)
        server.loader.guard = guard
        errors.append(server.poll())

    threads = [threading.Thread(target=load, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(error is None or isinstance(error, ArtifactReplayed) for error in errors)
    assert SerialState(state).highest("a", "k1") == 13


def test_a_server_with_public_keys_alone_refuses_replays_and_follows_rollbacks(tmp_path: Path, state: Path) -> None:
    """The server follows only rollbacks that are signed with Ed25519, because it cannot verify others."""
    from functools import partial

    from svc.artifact import layout
    from svc.artifact.keys import public_entry
    from svc.model.codec import encode

    kid, key = parse_signing_keys(GOOD).active
    settings = Settings(verify_keys=public_entry(kid, key), state_dir=str(state))

    def publish(serial: int) -> bytes:
        write = partial(
            layout.write,
            kid=kid,
            key=key,
            header=header(recipe_name="a", serial=serial),
            payload=encode(popularity_model()),
            signature="ed25519",
        )
        open_store(str(tmp_path / "a.svc"), settings).publish(write, "always_overwrite")
        return (tmp_path / "a.svc").read_bytes()

    server = Server(tmp_path, state)
    server.loader = Loader(settings, load_signing_keys(settings), {}, ReplayGuard.of(settings))
    old, _ = publish(5), publish(6)
    assert server.poll() is None
    rolled_back(tmp_path, old, 6)
    assert isinstance(server.poll(), ArtifactReplayed), "an HMAC of the same secret is nothing to it"
    rolled_back(tmp_path, old, 6, signature="ed25519")
    assert server.poll() is None


@pytest.fixture
def records() -> Iterator[list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), lambda line: lines.append(json.loads(line)))
    yield lines
    logs.configure(Settings())


def stored_serials(folder: Path, recipe: str = "a") -> dict[str, int]:
    return dict(json.loads((folder / f"{recipe}.serials.json").read_text())["serials"])


def test_the_highest_serial_is_kept_by_recipe_and_kid(tmp_path: Path) -> None:
    """A lower serial, another kid and another recipe do not change it, and a new process reads it from the file."""
    state = SerialState(tmp_path / "new" / "folder")
    for name, kid, serial in (("a", "k1", 5), ("a", "k1", 3), ("a", "k2", 9), ("b", "k1", 1)):
        state.remember(name, kid, serial)
    for known in (state, SerialState(tmp_path / "new" / "folder")):
        found = [known.highest(*which) for which in (("a", "k1"), ("a", "k2"), ("b", "k1"), ("b", "k2"))]
        assert found == [5, 9, 1, None]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").glob("*.json")) == [
        "a.serials.json",
        "b.serials.json",
    ]


def test_two_servers_share_one_state_folder(tmp_path: Path) -> None:
    """Each server sees the serials of the other without a restart, and neither overwrites the other's kids."""
    one, other = SerialState(tmp_path), SerialState(tmp_path)
    one.remember("a", "k1", 5)
    assert other.highest("a", "k1") == 5
    other.remember("a", "k2", 7)
    one.remember("a", "k1", 6)
    assert stored_serials(tmp_path) == {"k1": 6, "k2": 7}
    assert other.highest("a", "k1") == 6


@pytest.mark.system
def test_concurrent_processes_lose_no_serials(tmp_path: Path) -> None:
    """Four processes count up serials of their own kids. All highest serials are in the file afterwards."""
    script = (
        "import sys; from pathlib import Path; from svc.artifact.replay import SerialState\n"
        "state = SerialState(Path(sys.argv[1]))\n"
        "for serial in range(1, 31): state.remember('a', sys.argv[2], serial)\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), f"k{n}"]) for n in range(4)]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert stored_serials(tmp_path) == {f"k{n}": 30 for n in range(4)}
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_concurrent_threads_lose_no_serials(tmp_path: Path) -> None:
    """Four threads count up serials of their own kids. All highest serials are in the file afterwards."""
    state = SerialState(tmp_path)

    def count(kid: str) -> None:
        for serial in range(1, 21):
            state.remember("a", kid, serial)

    threads = [threading.Thread(target=count, args=(f"k{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored_serials(tmp_path) == {f"k{n}": 20 for n in range(4)}


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
def test_a_damaged_state_file_is_logged_and_replaced(
    tmp_path: Path, records: list[dict[str, Any]], content: bytes
) -> None:
    """A running process keeps its serials in memory. A new process starts without serials."""
    state = SerialState(tmp_path)
    state.remember("a", "k1", 5)
    records.clear()
    (tmp_path / "a.serials.json").write_bytes(content)
    assert SerialState(tmp_path).highest("a", "k1") is None
    assert state.highest("a", "k1") == 5
    assert {record["event"] for record in records} == {"replay_state_unusable"}
    assert all("damaged" in record["error"] and record["path"].endswith("a.serials.json") for record in records)
    state.remember("a", "k1", 6)
    assert stored_serials(tmp_path) == {"k1": 6}


def test_a_missing_state_file_is_logged_and_written_again(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """A file that never existed is logged, too. An older artifact would be accepted until one is served."""
    state = SerialState(tmp_path)
    assert state.highest("a", "k1") is None
    assert [record["event"] for record in records] == ["replay_state_unusable"]
    state.remember("a", "k1", 5)
    (tmp_path / "a.serials.json").unlink()
    assert state.highest("a", "k1") == 5
    assert "is missing" in records[-1]["error"]
    state.remember("a", "k1", 5)
    assert stored_serials(tmp_path) == {"k1": 5}


def test_an_unwritable_state_folder_is_logged_and_loading_goes_on(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    """The folder is read-only, or a file is in its place."""
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
    assert {record["event"] for record in records} == {"replay_state_unusable"}
    assert sum("cannot be written" in record["error"] for record in records) == 3


def test_a_full_disk_leaves_the_previous_state_file(
    tmp_path: Path, records: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is logged, no temporary file is left, and the process keeps its serial in memory."""
    state = SerialState(tmp_path)
    state.remember("a", "k1", 5)
    records.clear()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    state.remember("a", "k1", 6)
    monkeypatch.undo()
    assert "No space left" in records[-1]["error"]
    assert stored_serials(tmp_path) == {"k1": 5}
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    assert state.highest("a", "k1") == 6


def test_a_lock_that_is_never_released_is_logged_and_loading_goes_on(
    tmp_path: Path, records: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard stops waiting after a time limit."""
    monkeypatch.setattr(replay, "_LOCK_TIMEOUT_S", 0.0)
    state = SerialState(tmp_path)
    with FileLock(tmp_path / "a.serials.lock"):
        state.remember("a", "k1", 5)
    assert records[-1]["error"].startswith("a.serials.json cannot be written: The file lock")
    assert state.highest("a", "k1") == 5


NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize("serial", [-1, 1.0, "1", True, replay.MAX_SERIAL + 1, [1], {}])
def test_an_invalid_serial_is_an_invalid_header(serial: Any) -> None:
    """A value that is no serial is refused, and never compared as a low or a high serial."""
    with pytest.raises(HeaderInvalid, match="serial"):
        replay.serial_of({"serial": serial})


def test_serial_and_expiry_are_optional() -> None:
    """A header without them is valid, and the largest and smallest serials are accepted."""
    assert replay.serial_of({}) is None
    assert replay.expires_at({}) is None
    replay.require_unexpired({}, NOW)
    assert replay.serial_of({"serial": 0}) == 0
    assert replay.serial_of({"serial": replay.MAX_SERIAL}) == replay.MAX_SERIAL


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-11-22T00:00:00", 5, None.__class__, ["2026"], "2026-13-01T00:00:00Z"]
)
def test_an_invalid_expiry_is_an_invalid_header(text: Any) -> None:
    """A time without a zone is refused too, because it would be another moment on another host."""
    with pytest.raises(HeaderInvalid, match="expires_at"):
        replay.require_unexpired({"expires_at": text}, NOW)


@given(st.integers(-(10**6), 10**6), st.integers(-14, 14))
@settings(deadline=None)
def test_an_artifact_expires_at_its_moment_in_any_zone(seconds: int, zone: int) -> None:
    """An artifact expires exactly at the moment in its header, not before."""
    moment = datetime(2026, 11, 22, tzinfo=UTC) + timedelta(seconds=seconds)
    header = {"expires_at": moment.astimezone(datetime.strptime(f"{zone:+03d}00", "%z").tzinfo).isoformat()}
    if moment <= NOW:
        with pytest.raises(ArtifactExpired, match="expired at"):
            replay.require_unexpired(header, NOW)
    else:
        replay.require_unexpired(header, NOW)


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 65, 5, None, "a\n"])
def test_an_invalid_recipe_name_in_a_header_is_not_used(name: Any) -> None:
    """A name from a header becomes part of a file name, so an invalid one is ignored even if it is signed."""
    assert replay.recipe_of({"recipe_name": name}, "declared") == "declared"
    assert replay.recipe_of({"recipe_name": "movies"}, "declared") == "movies"
