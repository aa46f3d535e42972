"""Older, expired and forged artifacts through the server's own way of loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from svc import logs
from svc.artifact.keys import load_signing_keys, parse_signing_keys
from svc.artifact.replay import freshness, guard
from svc.artifact.replay.guard import ReplayGuard, SerialState
from svc.artifact.store import open_store
from svc.errors import ArtifactError, ArtifactExpired, ArtifactReplayed, HeaderInvalid
from svc.recipe.load import LoadedRecipe
from svc.serving.models.loader import Loader, LoadFailed
from svc.settings import Settings
from tests.privileges import permissions_hold
from tests.serving.artifacts import header, popularity_model, write_artifact
from tests.serving.models.test_loader import recipe

GOOD, LEAKED = f"k1:{'11' * 32}", f"k2:{'22' * 32}"
KEYS = parse_signing_keys(f"{GOOD},{LEAKED}")


class Server:
    """One server process: what it serves of `folder/a.svc`, under a state directory that others may share."""

    def __init__(self, folder: Path, state: Path | None) -> None:
        self.folder = folder
        self.settings = Settings(state_dir=None if state is None else str(state))
        self.loader = Loader(self.settings, KEYS, {}, ReplayGuard.of(self.settings))
        self.recipe: LoadedRecipe = recipe(folder)

    def poll(self) -> ArtifactError | None:
        """None when the artifact is served, else why it is not."""
        try:
            self.loader.load(self.recipe, open_store(str(self.folder / "a.svc"), self.settings))
        except LoadFailed as failure:
            return failure.error
        return None


def put(folder: Path, serial: Any = None, *, keys: str = GOOD, best: int = 0, **more: Any) -> bytes:
    """Publish an artifact with this serial and give its bytes."""
    head = header(recipe_name="a", **more) | ({} if serial is None else {"serial": serial})
    write_artifact(folder / "a.svc", popularity_model(best), keys=keys, head=head)
    return (folder / "a.svc").read_bytes()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_an_older_artifact_is_refused_also_after_a_restart(tmp_path: Path, state: Path) -> None:
    """The newest goes on being served, and is taken again by whoever starts anew."""
    old, new = put(tmp_path, 5), put(tmp_path, 6)
    for content, refused in ((old, False), (new, False), (old, True), (new, False), (old, True)):
        (tmp_path / "a.svc").write_bytes(content)
        for server in (Server(tmp_path, state), Server(tmp_path, state)):
            error = server.poll()
            assert isinstance(error, ArtifactReplayed) if refused else error is None
            if error is not None:
                assert (error.reason, "5", "6") == (error.reason, *[n for n in ("5", "6") if n in error.message])


def test_without_a_state_directory_nothing_is_remembered(tmp_path: Path) -> None:
    """As ever: serials are read by nobody."""
    old, new = put(tmp_path, 5), put(tmp_path, 6)
    for content in (new, old):
        (tmp_path / "a.svc").write_bytes(content)
        assert Server(tmp_path, None).poll() is None
    assert not (tmp_path / "state").exists()


def test_an_artifact_without_serial_is_refused_once_there_was_one(tmp_path: Path, state: Path) -> None:
    """Else every artifact from before would be a way back; of a kid without serials it is as ever."""
    plain = put(tmp_path)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 5)
    assert Server(tmp_path, state).poll() is None
    (tmp_path / "a.svc").write_bytes(plain)
    assert isinstance(Server(tmp_path, state).poll(), ArtifactReplayed)
    put(tmp_path, keys=LEAKED)
    assert Server(tmp_path, state).poll() is None


def test_two_servers_on_one_state_directory_agree(tmp_path: Path, state: Path) -> None:
    """What one has served, the other does not go below, without a restart."""
    one, other = Server(tmp_path, state), Server(tmp_path, state)
    old = put(tmp_path, 5)
    assert (one.poll(), other.poll()) == (None, None)
    put(tmp_path, 6)
    assert one.poll() is None
    (tmp_path / "a.svc").write_bytes(old)
    assert isinstance(other.poll(), ArtifactReplayed)


def test_a_leaked_key_does_not_move_the_good_one_forward(tmp_path: Path, state: Path) -> None:
    """Its owner signs the highest serial there is; the next artifact of the good key is served all the same."""
    put(tmp_path, 5)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, freshness.MAX_SERIAL, keys=LEAKED)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 6)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 4)
    assert isinstance(Server(tmp_path, state).poll(), ArtifactReplayed)


def damaged(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("fault", ["signature", "payload", "feature_version", "expired", "serial", "metadata"])
def test_an_artifact_that_is_refused_moves_nothing(tmp_path: Path, state: Path, fault: str) -> None:
    """The serial is kept after every check; else one broken file would shut out the good ones."""
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


def test_an_artifact_of_another_recipe_moves_only_its_own(tmp_path: Path, state: Path) -> None:
    """Put in this one's place it is served, as ever, with a warning; the good one comes back afterwards."""
    own = put(tmp_path, 5)
    assert Server(tmp_path, state).poll() is None
    write_artifact(
        tmp_path / "a.svc", popularity_model(), keys=GOOD, head=header(recipe_name="b", serial=freshness.MAX_SERIAL)
    )
    assert Server(tmp_path, state).poll() is None
    (tmp_path / "a.svc").write_bytes(own)
    assert Server(tmp_path, state).poll() is None
    assert SerialState(state).highest("b", "k1") == freshness.MAX_SERIAL


def rolled_back(folder: Path, content: bytes, from_serial: int, *, keys: str = GOOD) -> None:
    """What `svc rollback` leaves: the older artifact in place, and a signed line of the log beside it."""
    import hashlib

    kid, key = parse_signing_keys(keys).active
    move = {"action": "rollback", "sha256": hashlib.sha256(content).hexdigest(), "from_serial": from_serial}
    line = freshness.signed_line(move, kid=kid, key=key, signature="hmac")
    with (folder / "a.svc.log.jsonl").open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")
    (folder / "a.svc").write_bytes(content)


def test_a_signed_rollback_is_followed_until_something_newer_was_served(tmp_path: Path, state: Path) -> None:
    """It names one artifact, and is no way back behind later trainings; an unsigned one says nothing."""
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


def test_a_lost_damaged_or_read_only_state_never_stops_what_is_good(tmp_path: Path, state: Path) -> None:
    """Nor does a folder that is a file."""
    put(tmp_path, 5)
    server = Server(tmp_path, state)
    assert server.poll() is None
    (state / "a.serials.json").write_bytes(b"{")
    assert server.poll() is None
    (state / "a.serials.json").unlink()
    assert server.poll() is None
    (file := tmp_path / "file").write_text("")
    put(tmp_path, 6)
    assert Server(tmp_path, file).poll() is None
    assert server.poll() is None
    put(tmp_path, 5)
    assert isinstance(server.poll(), ArtifactReplayed), "what it served itself it has not forgotten"


@pytest.mark.parametrize("with_state", [False, True])
def test_an_expired_artifact_is_not_loaded_anew(tmp_path: Path, state: Path, with_state: bool) -> None:
    """With or without a state directory; one whose time has not come is."""
    now = datetime.now(UTC)
    put(tmp_path, 5, expires_at=(now + timedelta(hours=1)).isoformat())
    server = Server(tmp_path, state if with_state else None)
    assert server.poll() is None
    put(tmp_path, 6, expires_at=(now - timedelta(seconds=1)).isoformat())
    assert isinstance(server.poll(), ArtifactExpired)
    put(tmp_path, 6, expires_at="later")
    assert isinstance(server.poll(), HeaderInvalid)


def test_the_refusal_is_logged_with_both_serials(tmp_path: Path, state: Path) -> None:
    """So that an alert can be put on it."""
    records: list[dict[str, Any]] = []
    put(tmp_path, 6)
    assert Server(tmp_path, state).poll() is None
    put(tmp_path, 5)
    logs.configure(Settings(log_format="json"), lambda line: records.append(json.loads(line)))
    Server(tmp_path, state).poll()
    logs.configure(Settings())
    (told,) = [record for record in records if record["event"] == "artifact_replayed"]
    assert (told["name"], told["kid"], told["serial"], told["highest"]) == ("a", "k1", 5, 6)


def test_loads_beside_each_other_keep_the_highest(tmp_path: Path, state: Path) -> None:
    """One guard serves all recipes and threads of a process."""
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
    """Its rollbacks are signed with Ed25519: it could not check others."""
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
    import hashlib

    move = {"action": "rollback", "sha256": hashlib.sha256(old).hexdigest(), "from_serial": 6}
    line = freshness.signed_line(move, kid=kid, key=key, signature="ed25519")
    (tmp_path / "a.svc.log.jsonl").write_text(f"{line}\n")
    assert server.poll() is None


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
    for name, kid, serial in (("a", "k1", 5), ("a", "k1", 3), ("a", "k2", 9), ("b", "k1", 1)):
        state.remember(name, kid, serial)
    for known in (state, SerialState(tmp_path / "new" / "folder")):
        found = [known.highest(*which) for which in (("a", "k1"), ("a", "k2"), ("b", "k1"), ("b", "k2"))]
        assert found == [5, 9, 1, None]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").glob("*.json")) == [
        "a.serials.json",
        "b.serials.json",
    ]


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    """What one has served the other refuses to go below, without a restart; neither loses the other's guard."""
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
        "import sys; from pathlib import Path; from svc.artifact.replay.guard import SerialState\n"
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
    monkeypatch.setattr(guard, "_LOCK_TIMEOUT_S", 0.0)
    one, other = SerialState(tmp_path), SerialState(tmp_path)
    with one._locked("a"):
        other.remember("a", "k1", 5)
    assert told[-1]["error"] == "a.serials.json cannot be written: Resource temporarily unavailable"
    assert other.highest("a", "k1") == 5
