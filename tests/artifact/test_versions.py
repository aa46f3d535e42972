"""Versions beside a pointer: history, moves, holds, removal of old versions, and detection of changes to the log."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from svc import logs
from svc.artifact import layout, version_log
from svc.artifact.keys import SigningKeys
from svc.artifact.store import Published, Store, open_store
from svc.artifact.versions import Versions
from svc.errors import ArtifactError, ArtifactWriteError, NoSuchVersion
from svc.settings import Settings

KEYS = SigningKeys({"a": bytes(range(32))})
OTHERS = SigningKeys({"b": bytes(range(1, 33))})


class Shelf:
    """A folder of versions, each trained one minute after the last."""

    def __init__(self, folder: Path, settings: Settings = Settings(), uri: str = "") -> None:  # noqa: B008 - frozen
        self.folder = folder
        self.settings = settings
        self.uri = uri or str(folder / "books.svc")
        self.minute = 0

    @property
    def versions(self) -> Versions:
        return Versions(self.uri, KEYS, self.settings)

    def train(
        self, *, move: bool = True, keep: int | None = None, decision: str | None = None, trained_at: str = ""
    ) -> Published:
        self.minute += 1
        header: dict[str, Any] = {
            "trained_at": trained_at or f"2099-01-01T00:{self.minute:02d}:00+00:00",
            "best_class": "TopPopRecommender",
            "best_score": self.minute / 100,
            "serial": self.minute,
        }
        if decision:
            header["promotion"] = {"decision": decision}
        kid, key = KEYS.active
        return self.versions.publish(
            lambda out: layout.write(out, kid=kid, key=key, header=header, payload=[b"x"]),
            header,
            move=move,
            keep=keep,
        )

    @property
    def log(self) -> Path:
        return self.folder / "books.svc.log.jsonl"

    def files(self) -> set[str]:
        return {path.name.split(".")[1] for path in self.folder.glob("books.*.svc")}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_each_training_is_a_version_and_the_newest_is_live(shelf: Shelf) -> None:
    """The history has the facts of each version, newest first, and the pointer names the live one."""
    trained = [shelf.train().sha8 for _ in range(3)]
    history = shelf.versions.history()
    assert [version.sha8 for version in history] == trained[::-1]
    assert [version.live for version in history] == [True, False, False]
    assert history[0].best_score == 0.03
    assert (shelf.folder / "books.svc").read_text() == f"books.{trained[2]}.svc\n"
    assert shelf.versions.problems() == []


def test_of_versions_trained_at_the_same_time_the_last_written_is_the_newest(shelf: Shelf) -> None:
    """Times of training are whole seconds, so they alone do not order versions."""
    trained = []
    for decision in ("promoted", "refused", None):
        shelf.minute = 0
        trained.append(shelf.train(decision=decision).sha8)
    assert [version.sha8 for version in shelf.versions.history()] == trained[::-1]


def test_a_refused_version_is_written_and_the_pointer_stays(shelf: Shelf) -> None:
    """No server sees a refused version, and no rollback goes to it."""
    first = shelf.train().sha8
    refused = shelf.train(move=False, decision="refused")
    second = shelf.train().sha8
    assert (refused.promoted, refused.held) == (False, False)
    assert {first, refused.sha8, second} == shelf.files()
    assert [version.decision for version in shelf.versions.history()] == [None, "refused", None]
    assert shelf.versions.rollback(None, hold=False) == (first, second)


def test_rollbacks_go_back_and_never_forward(shelf: Shelf) -> None:
    """Each rollback goes to the version that was live before.

    Only promote returns to a version that a rollback left.
    """
    a, b, c = (shelf.train().sha8 for _ in range(3))
    assert shelf.versions.rollback(None, hold=False)[0] == b
    assert shelf.versions.rollback(None, hold=False)[0] == a
    with pytest.raises(NoSuchVersion, match="nothing to go back to"):
        shelf.versions.rollback(None, hold=False)
    assert shelf.versions.live() == a
    assert shelf.versions.promote(c) == a
    assert shelf.versions.rollback(None, hold=False)[0] == a
    assert shelf.versions.rollback(b, hold=False) == (b, a)


def test_a_hold_stays_through_trainings_until_promote(shelf: Shelf) -> None:
    """Trainings write versions but do not move the pointer. A second rollback keeps the hold, and promote ends it."""
    a, b, c = (shelf.train().sha8 for _ in range(3))
    assert shelf.versions.rollback(None, hold=True)[0] == b
    trained = [shelf.train() for _ in range(3)]
    assert [(one.promoted, one.held) for one in trained] == [(False, True)] * 3
    assert shelf.versions.live() == b
    assert [version.held for version in shelf.versions.history() if version.live] == [True]
    assert shelf.versions.rollback(None, hold=False)[0] == a
    assert shelf.train().held
    shelf.versions.promote(c)
    assert shelf.versions.live() == c
    assert not shelf.versions.log().held
    assert shelf.train().promoted


def test_a_training_restores_a_missing_pointer_in_spite_of_a_hold(shelf: Shelf) -> None:
    """If the pointer's file is gone, the next training writes it again."""
    shelf.train()
    shelf.train()
    shelf.versions.rollback(None, hold=True)
    (shelf.folder / "books.svc").unlink()
    made = shelf.train()
    assert (made.promoted, made.held) == (True, False)
    assert shelf.versions.live() == made.sha8


def test_keep_leaves_the_newest_the_live_and_the_previous_version(shelf: Shelf) -> None:
    """With `keep` 3, three of twenty versions are left.

    With a hold, the held version and its predecessor are left too.
    """
    trained = [shelf.train(keep=3).sha8 for _ in range(20)]
    assert shelf.files() == set(trained[-3:])
    shelf.versions.rollback(trained[-2], hold=True)
    later = [shelf.train(keep=3).sha8 for _ in range(5)]
    assert shelf.files() == {*later[-3:], trained[-2], trained[-3]}
    assert shelf.versions.problems() == []


def test_the_pointer_never_moves_to_a_removed_version(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a slow clock writes a version that seems older than the log, so another host's training removes it.

    The training of the slow host fails, and the other version stays live.
    """
    shelf.train()
    shelf.train()
    put, others = Store.put_version, Shelf(shelf.folder)
    others.minute = 10

    def put_before_another_training(store: Store, write: Any) -> Any:
        monkeypatch.undo()
        made = put(store, write)
        others.train(keep=1)
        return made

    monkeypatch.setattr(Store, "put_version", put_before_another_training)
    with pytest.raises(ArtifactWriteError, match="another training removed the new version"):
        shelf.train(trained_at="2020-01-01T00:00:00+00:00")
    assert shelf.versions.live() in shelf.files()
    assert shelf.versions.problems() == []


def test_versions_without_a_log_are_read_from_their_headers(shelf: Shelf) -> None:
    """A recipe without a log can roll back. Damaged files, and files of other recipes, are left alone."""
    kid, key = KEYS.active
    store = open_store(shelf.uri, shelf.settings)
    for minute in range(3):
        header = {"trained_at": f"2025-01-01T00:0{minute}:00+00:00", "best_class": "A", "best_score": 0.1}
        written = store.publish(
            lambda out, header=header: layout.write(out, kid=kid, key=key, header=header, payload=[b"y"]), "append_sha"
        )
    (shelf.folder / "books.00000000.svc").write_bytes(b"damaged")
    (shelf.folder / "other.11111111.svc").write_bytes(b"of somebody else")
    assert not shelf.versions.has_log()
    live = written.written.sha256_hex[:8]
    history = shelf.versions.history()
    assert [version.trained_at for version in history[:3]] == [
        f"2025-01-01T00:0{minute}:00+00:00" for minute in (2, 1, 0)
    ]
    assert history[3].trained_at is None
    assert shelf.versions.rollback(None, hold=False) == (history[1].sha8, live)
    assert shelf.versions.rollback(None, hold=False)[0] == history[2].sha8
    shelf.train(keep=1)
    assert "00000000" in shelf.files()
    assert shelf.versions.problems() == []


@pytest.mark.parametrize("wrong", ["deadbeef", "../../x", "", "DEADBEEF"])
def test_a_missing_version_cannot_be_promoted(shelf: Shelf, wrong: str) -> None:
    """The refused command does not change the log."""
    shelf.train()
    before = shelf.log.read_bytes()
    with pytest.raises(NoSuchVersion):
        shelf.versions.promote(wrong)
    assert shelf.log.read_bytes() == before


def test_a_damaged_version_cannot_become_live(shelf: Shelf) -> None:
    """The signature is checked before the pointer moves."""
    first, second = shelf.train().sha8, shelf.train().sha8
    path = shelf.folder / f"books.{first}.svc"
    damaged = bytearray(path.read_bytes())
    damaged[-40] ^= 1
    path.write_bytes(damaged)
    for go in (lambda: shelf.versions.promote(first), lambda: shelf.versions.rollback(None, hold=True)):
        with pytest.raises(ArtifactError):
            go()
    assert shelf.versions.live() == second
    assert not shelf.versions.log().held


def _changed(lines: list[str]) -> list[str]:
    return [lines[0], lines[1].replace('"held": false', '"held": true'), *lines[2:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_changed, "line 2: it was changed after it was signed"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow the line before it"),
        (lambda lines: lines[1:], "line 1 does not follow the line before it"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 does not follow"),
        (lambda lines: lines[:-1], "the last line says that"),
        (lambda lines: [*lines[:-1], lines[-1][:50]], "line 4 cannot be read"),
        (lambda lines: [*lines[:2], "{}", *lines[2:]], "line 3 cannot be read"),
        (lambda lines: [*lines, lines[-1]], "line 5 does not follow"),
    ],
)
def test_changes_to_the_log_are_detected(shelf: Shelf, change: Callable[[list[str]], list[str]], words: str) -> None:
    """Changed, removed, swapped, repeated and truncated lines are detected, and the log can still be extended."""
    for _ in range(4):
        shelf.train()
    lines = shelf.log.read_text().splitlines()
    assert len(lines) == 4
    shelf.log.write_text("\n".join(change(lines)) + "\n")
    assert any(words in problem for problem in shelf.versions.problems()), shelf.versions.problems()
    shelf.train()
    assert shelf.versions.live() == shelf.versions.history()[0].sha8


def test_a_version_without_its_line_is_detected(shelf: Shelf) -> None:
    """A version whose line is missing in the log is reported, even if the pointer matches the last line."""
    shelf.train()
    shelf.train(move=False, decision="refused")
    assert shelf.versions.problems() == []
    shelf.log.write_text(shelf.log.read_text().splitlines()[0] + "\n")
    assert any("has no line" in problem for problem in shelf.versions.problems())


def test_a_version_as_old_as_the_log_needs_no_line(shelf: Shelf) -> None:
    """A version that was trained when the log began may be older than the log."""
    shelf.train()
    kept = shelf.log.read_text()
    shelf.train(move=False, trained_at=shelf.versions.log().lines[0].at)
    shelf.log.write_text(kept)
    assert len(shelf.files()) == 2
    assert shelf.versions.problems() == []


def test_lines_of_a_removed_key_are_ignored(shelf: Shelf) -> None:
    """The problems of the log name such lines, and the next command logs an event."""
    shelf.train()
    shelf.train()
    shelf.versions.rollback(None, hold=True)
    without = Versions(shelf.uri, OTHERS, shelf.settings)
    assert not without.log().held
    assert any("its key a is not here" in problem for problem in without.problems())
    records: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), lambda line: records.append(json.loads(line)))
    kid, key = OTHERS.active
    header = {"trained_at": "2099-01-01T00:30:00+00:00"}
    without.publish(
        lambda out: layout.write(out, kid=kid, key=key, header=header, payload=[b"x"]), header, move=True, keep=None
    )
    logs.configure(Settings())
    (record,) = records
    assert (record["event"], record["count"], record["held"]) == ("version_log_lines_ignored", 3, False)
    assert "its key a is not here" in record["reason"]


def test_a_move_that_was_killed_before_the_pointer_has_no_effect(shelf: Shelf) -> None:
    """The pointer decides which version is live. The next moves ignore the killed one."""
    a, b = shelf.train().sha8, shelf.train().sha8
    pointer = (shelf.folder / "books.svc").read_bytes()
    lost = shelf.train().sha8
    (shelf.folder / "books.svc").write_bytes(pointer)
    assert shelf.versions.live() == b
    assert any(lost in problem for problem in shelf.versions.problems())
    d = shelf.train().sha8
    assert shelf.versions.problems() == []
    assert shelf.versions.rollback(None, hold=False) == (b, d)
    assert shelf.versions.rollback(None, hold=False)[0] == a


def test_a_line_of_a_writer_without_the_lock_stays_in_the_chain(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts may share a store but no lock. A training then writes its line while another command verifies a version."""
    a, _ = shelf.train().sha8, shelf.train()
    read_verified = Versions._read_verified

    def training_meanwhile(versions: Versions, sha8: str) -> Any:
        monkeypatch.setattr(Versions, "_read_verified", read_verified)
        shelf.train()
        return read_verified(versions, sha8)

    monkeypatch.setattr(Versions, "_lock", lambda _: nullcontext())
    monkeypatch.setattr(Versions, "_read_verified", training_meanwhile)
    shelf.versions.promote(a)
    log = shelf.versions.log()
    assert (len(log.lines), log.problems) == (4, ())


def test_servers_that_remember_serials_follow_every_move(shelf: Shelf) -> None:
    """Each line of a rollback or promotion names its artifact and the highest serial that was live."""
    trained = [shelf.train().sha8 for _ in range(3)]
    moves = [shelf.versions.rollback(None, hold=True)[0], shelf.versions.rollback(None, hold=False)[0]]
    shelf.versions.promote(trained[1])
    assert [*moves, trained[1]] == [trained[1], trained[0], trained[1]]
    for sha8 in trained[:2]:
        sha256 = hashlib.sha256((shelf.folder / f"books.{sha8}.svc").read_bytes()).hexdigest()
        log, (kid, _) = version_log.parse(shelf.log.read_bytes(), KEYS), KEYS.active
        assert log.permits(sha256, kid, 3)
        assert not log.permits(sha256, kid, 4)


def test_lines_can_be_signed_with_ed25519(tmp_path: Path) -> None:
    """The public key verifies such lines of the version log."""
    shelf = Shelf(tmp_path, Settings(artifact_signature="ed25519"))
    shelf.train()
    shelf.train()
    public = SigningKeys({}, {kid: KEYS.public_of(kid) or b"" for kid in KEYS.entries})
    assert Versions(shelf.uri, public, shelf.settings).log().problems == ()
    shelf.log.write_text(shelf.log.read_text().replace('"held": false', '"held": true', 1))
    assert any("changed" in problem for problem in Versions(shelf.uri, public, shelf.settings).log().problems)


@pytest.mark.integration
def test_versions_work_in_every_kind_of_storage(place: Any, tmp_path: Path) -> None:
    """Trainings, removal of old versions, a rollback with a hold, promote and the log work as on a disk."""
    settings = replace(place.settings, lock_dir=str(tmp_path))
    shelf = Shelf(tmp_path, settings, place.uri("books.svc"))
    trained = [shelf.train(keep=3).sha8 for _ in range(5)]
    assert [version.sha8 for version in shelf.versions.history()] == trained[:1:-1]
    assert shelf.versions.rollback(None, hold=True) == (trained[-2], trained[-1])
    assert not shelf.train(keep=3).promoted
    assert shelf.versions.live() == trained[-2]
    shelf.versions.promote(trained[-1])
    assert place.content("books.svc") == f"books.{trained[-1]}.svc\n".encode()
    assert shelf.versions.problems() == []
    with pytest.raises(NoSuchVersion):
        shelf.versions.promote(trained[0])


@pytest.mark.integration
def test_concurrent_trainings_leave_a_valid_log_and_pointer(tmp_path: Path) -> None:
    """Every read finds an artifact, and the log has a line for each training."""
    shelves = [Shelf(tmp_path), Shelf(tmp_path)]
    shelves[1].minute = 500
    done = threading.Event()
    errors: list[Exception] = []

    def read() -> None:
        while not done.is_set():
            try:
                open_store(shelves[0].uri, shelves[0].settings).read(1 << 20)
            except Exception as error:
                errors.append(error)

    shelves[0].train(keep=3)
    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=lambda one=one: [one.train(keep=3) for _ in range(20)]) for one in shelves]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert errors == []
    assert shelves[0].versions.problems() == []
    assert len(shelves[0].versions.log().lines) == 41
    live = shelves[0].versions.live()
    assert live in shelves[0].files()
    assert 3 <= len(shelves[0].files()) <= 5
