"""An attacker who can write to the store but has no key: commands sign, and servers accept, only signed facts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc.artifact import layout, replay, version_log
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import parse
from svc.artifact.replay import ReplayGuard, SerialState
from svc.artifact.store import Blob, Store, verify_blob
from svc.artifact.versions import Versions
from svc.errors import ArtifactError, ArtifactMisplaced, NoSuchVersion
from svc.settings import Settings

KEYS = SigningKeys({"a": bytes(range(32))})
NEXT_KEYS = SigningKeys({"b": bytes(range(1, 33))})
MOST = replay.MAX_SERIAL


class Shop:
    """The store of the recipe `books`, a server that remembers serials, and everything that was ever signed."""

    def __init__(self, folder: Path, keys: SigningKeys = KEYS) -> None:
        self.folder, self.keys = folder, keys
        self.settings = Settings(state_dir=str(folder / "state"))
        self.uri = str(folder / "books.svc")
        self.guard = ReplayGuard.of(self.settings)
        self.serial = 0
        self.signed: dict[str, bytes] = {}
        self.lines: dict[bytes, None] = {}

    @property
    def log(self) -> Path:
        return self.folder / "books.svc.log.jsonl"

    @property
    def versions(self) -> Versions:
        return Versions(self.uri, self.keys, self.settings, recipe="books")

    def path(self, sha8: str) -> Path:
        return self.folder / f"books.{sha8}.svc"

    def point_to(self, sha8: str) -> None:
        (self.folder / "books.svc").write_text(f"books.{sha8}.svc\n")

    def header(self, recipe: str = "books") -> dict[str, Any]:
        self.serial += 1
        moment = f"2026-01-01T00:00:{self.serial % 60:02d}+00:00"
        return {"recipe_name": recipe, "serial": self.serial, "trained_at": moment}

    def train(self) -> str:
        """Train the recipe. The server loads the version if the pointer leads to it."""
        kid, key = self.keys.active
        header = self.header()
        training = self.versions.publish(
            lambda out: layout.write(out, kid=kid, key=key, header=header, payload=[b"x"]),
            header,
            move=True,
            keep=None,
        )
        self.signed[training.sha8] = self.path(training.sha8).read_bytes()
        self.note_lines()
        if training.promoted:
            self.serve(training.sha8)
        return training.sha8

    def train_another(self) -> str:
        """Write an artifact of the recipe `films`, signed with the same key. Returns its sha8."""
        kid, key = self.keys.active
        place = self.folder / "films.svc"
        with place.open("wb") as out:
            written = layout.write(out, kid=kid, key=key, header=self.header("films"), payload=[b"y"])
        sha8 = written.sha256_hex[:8]
        self.signed[sha8] = place.read_bytes()
        return sha8

    def note_lines(self) -> None:
        if self.log.exists():
            texts = self.log.read_bytes().splitlines()
            self.lines |= {line: None for line in texts if version_log.parse(line, self.keys).lines}

    def refusal(self, content: bytes) -> ArtifactError | None:
        """Return the server's error for these bytes, or None if it accepts them with some line that was ever signed."""
        sha256 = hashlib.sha256(content).hexdigest()
        blob = Blob(memoryview(content), sha256, "books.svc", sha256[:8])
        error: ArtifactError | None = None
        for line in (b"", *self.lines):
            try:
                parsed = verify_blob(blob, self.keys, self.settings)
                self.guard.check("books", parsed, blob, OneLine(line), self.keys)
            except ArtifactError as refusal:
                error = refusal
            else:
                return None
        return error

    def accepted(self) -> set[str]:
        return {sha8 for sha8, content in self.signed.items() if self.refusal(content) is None}

    def serve(self, sha8: str) -> None:
        content = self.signed[sha8]
        assert self.refusal(content) is None
        self.guard.record_serial("books", parse(memoryview(content), max_payload_bytes=1 << 20))


class OneLine(Store):
    """A store with a log of one line, because an attacker may show any line that was ever signed."""

    def __init__(self, line: bytes) -> None:
        self._line = line

    def read_log(self) -> bytes:
        return self._line


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def forged(shop: Shop, **fields: Any) -> str:
    """Return a line without a valid signature, with a kid that is not configured."""
    lines = shop.log.read_text().splitlines() if shop.log.exists() else []
    previous = json.loads(lines[-1])["signature"] if lines else ""
    line = {
        "at": "2999-01-01T00:00:00+00:00",
        "action": "train",
        "sha8": "00000000",
        "before": None,
        "live": shop.versions.live(),
        "held": False,
        "version": {},
        "kid": "gone",
        "previous": previous,
        "signature": "00" * 32,
        **fields,
    }
    return json.dumps(line)


def append(shop: Shop, *lines: str) -> None:
    with shop.log.open("a") as log:
        log.writelines(f"{line}\n" for line in lines)


def test_a_version_with_the_bytes_of_another_cannot_become_live(shop: Shop) -> None:
    """The file of v2 has the bytes of v1. Rollback and promote to v2 are refused, and nothing changes."""
    first, second, third = (shop.train() for _ in range(3))
    shop.path(second).write_bytes(shop.signed[first])
    before = shop.log.read_bytes()
    for go in (lambda: shop.versions.rollback(second, hold=False), lambda: shop.versions.promote(second)):
        with pytest.raises(ArtifactMisplaced, match=f"sha256 begins with {first}, the name says {second}"):
            go()
    assert shop.log.read_bytes() == before
    assert shop.versions.live() == third


def test_problems_name_a_version_with_the_bytes_of_another(shop: Shop) -> None:
    """The version is named even if every line of the log is valid."""
    first, second = shop.train(), shop.train()
    assert shop.versions.problems() == []
    shop.path(first).write_bytes(shop.signed[second])
    assert any(f"version {first}" in problem and second in problem for problem in shop.versions.problems())


def test_a_version_of_another_recipe_cannot_become_live(shop: Shop) -> None:
    """The version has a valid signature and a matching name, but it was trained for another recipe."""
    shop.train()
    other = shop.train_another()
    shop.path(other).write_bytes(shop.signed[other])
    with pytest.raises(ArtifactMisplaced, match="films"):
        shop.versions.promote(other)


def test_the_serial_of_an_unsigned_line_is_not_signed(shop: Shop) -> None:
    """One forged line cannot end the protection against replays for the key."""
    first, _ = shop.train(), shop.train()
    append(shop, forged(shop, action="rollback", sha256="ab" * 32, from_serial=MOST))
    shop.versions.rollback(first, hold=False)
    assert version_log.parse(shop.log.read_bytes(), KEYS).lines[-1].from_serial == 2


def test_serials_of_another_key_are_not_signed(tmp_path: Path) -> None:
    """The owner of another listed key cannot use up the serials of this one through an operator's command."""
    both = SigningKeys({**KEYS.entries, **NEXT_KEYS.entries})
    shop = Shop(tmp_path, both)
    first = shop.train()
    kid, key = NEXT_KEYS.active
    with (tmp_path / "leaked").open("wb") as out:
        head = {"recipe_name": "books", "serial": MOST, "trained_at": "2026-02-01T00:00:00+00:00"}
        leaked = layout.write(out, kid=kid, key=key, header=head, payload=[b"z"]).sha256_hex[:8]
    shop.path(leaked).write_bytes((tmp_path / "leaked").read_bytes())
    shop.point_to(leaked)
    shop.versions.rollback(first, hold=False)
    line = version_log.parse(shop.log.read_bytes(), both).lines[-1]
    assert (line.serial_kid, line.from_serial) == ("a", 1)


@pytest.mark.parametrize("held", [False, True])
def test_unsigned_lines_neither_set_nor_end_a_hold(shop: Shop, held: bool) -> None:
    """Signed lines that an attacker copies to the end of the log do not either."""
    for _ in range(3):
        shop.train()
    if held:
        shop.versions.promote(shop.train())
        shop.versions.rollback(None, hold=True)
    else:
        shop.versions.rollback(None, hold=True)
        shop.versions.promote(shop.train())
    lines = shop.log.read_text().splitlines()
    append(shop, forged(shop, held=not held))
    assert shop.versions.log().held is held
    assert any("does not count" in problem for problem in shop.versions.problems())
    append(shop, lines[-2])
    assert shop.versions.log().held is held
    copied = [
        *lines,
        json.dumps(json.loads(forged(shop)) | {"signature": json.loads(lines[-2])["previous"]}),
        lines[-2],
    ]
    shop.log.write_text("\n".join(copied) + "\n")
    assert shop.versions.log().held is held, "a forged line before it makes the copy follow nothing either"
    assert shop.versions.publish(
        lambda out: layout.write(out, kid="a", key=bytes(range(32)), header={}, payload=[b"x"]),
        {},
        move=True,
        keep=None,
    ).promoted is (not held)


def test_a_training_with_both_keys_carries_a_hold_to_the_next_key(shop: Shop) -> None:
    """Without such a training the hold ends with the old key, and the log's problems name it."""
    first, _ = shop.train(), shop.train()
    shop.versions.rollback(first, hold=True)
    shop.keys = NEXT_KEYS
    assert not shop.versions.log().held
    assert any("its key a is not here" in problem and "hold" in problem for problem in shop.versions.problems())
    shop.keys = SigningKeys({**NEXT_KEYS.entries, **KEYS.entries})
    shop.train()
    shop.keys = NEXT_KEYS
    assert shop.versions.log().held


def test_an_unlogged_move_of_the_pointer_is_not_signed_as_live(shop: Shop) -> None:
    """A rollback after the next training goes to the version that the log has as live."""
    first, _, third = (shop.train() for _ in range(3))
    shop.point_to(first)
    fourth = shop.train()
    assert shop.versions.rollback(None, hold=False) == (third, fourth)


def test_a_rollback_from_an_unlogged_pointer_needs_a_target(shop: Shop) -> None:
    """Without a target, the rollback would go to the predecessor of a version that an attacker chose."""
    _, second, *_ = (shop.train() for _ in range(4))
    shop.point_to(second)
    with pytest.raises(NoSuchVersion, match="--to"):
        shop.versions.rollback(None, hold=False)


def test_lines_of_another_recipe_are_ignored(shop: Shop) -> None:
    """The lines have a valid signature of the same key, but come from the log of another output."""
    shop.train()
    at = version_log.next_time(shop.versions.log())
    line = version_log.Line(
        at, "rollback", "11111111", None, "11111111", True, sha256="11" * 32, from_serial=MOST, recipe="films"
    )
    data = shop.log.read_bytes()
    shop.log.write_bytes(version_log.append_line(data, version_log.parse(data, KEYS), line, KEYS, "hmac"))
    log = shop.versions.log()
    assert not log.held
    assert any("recipe films" in problem for problem in log.problems)
    other = shop.train_another()
    shop.path(other).write_bytes(shop.signed[other])
    sha256 = hashlib.sha256(shop.signed[other]).hexdigest()
    move = replace(line, action="promote", sha256=sha256)
    shop.lines[version_log.append_line(b"", version_log.VersionLog(), move, KEYS, "hmac")] = None
    SerialState(shop.folder / "state").remember("films", "a", 10**6)
    assert shop.refusal(shop.signed[other]) is not None, "the line allows it only where films are served"


ATTACKS = ("swap", "forge", "cut", "repeat", "shuffle", "point", "delete log")
COMMANDS = ("promote", "rollback to", "rollback", "hold", "train")


def attack(shop: Shop, kind: str, number: int) -> None:
    """Change the store as somebody without a key can."""
    names = list(shop.signed)
    one, other = names[number % len(names)], names[(number // 7) % len(names)]
    lines = shop.log.read_text().splitlines() if shop.log.exists() else []
    if kind == "swap":
        shop.path(one).write_bytes(shop.signed[other])
    elif kind == "forge":
        numbers = {"action": "rollback", "sha256": "ab" * 32, "from_serial": MOST, "serial_kid": "a"}
        append(shop, forged(shop, sha8=one, live=one, before=other, held=bool(number % 2), **numbers))
    elif kind == "cut" and lines:
        del lines[number % len(lines)]
    elif kind == "repeat" and lines:
        lines.insert(number % len(lines), lines[(number // 3) % len(lines)])
    elif kind == "shuffle":
        lines.reverse()
    elif kind == "point":
        shop.point_to(one)
    elif kind == "delete log":
        lines = []
    if kind in ("cut", "repeat", "shuffle", "delete log"):
        shop.log.write_text("".join(f"{line}\n" for line in lines))


def command(shop: Shop, kind: str, number: int) -> str | None:
    """Run an operator's command. Returns the version that it names, or None if it was refused."""
    names = list(shop.signed)
    named = names[number % len(names)]
    try:
        if kind == "promote":
            shop.versions.promote(named)
        elif kind == "rollback":
            named = shop.versions.rollback(None, hold=False)[0]
        elif kind in ("rollback to", "hold"):
            shop.versions.rollback(named, hold=kind == "hold")
        else:
            return shop.train()
    except ArtifactError:
        return None
    finally:
        shop.note_lines()
    return named


NUMBERS = st.integers(0, 34)
ROUND = st.tuples(
    st.lists(st.tuples(st.sampled_from(ATTACKS), NUMBERS), max_size=3), st.tuples(st.sampled_from(COMMANDS), NUMBERS)
)


def in_order(rounds: list[tuple[list[tuple[str, int]], tuple[str, int]]]) -> list[tuple[str, int]]:
    return [step for attacks, last in rounds for step in (*attacks, last)]


@settings(max_examples=25, deadline=None)
@given(st.lists(ROUND, min_size=1, max_size=4).map(in_order))
@example([("swap", 1), ("promote", 1)])
@example([("forge", 2), ("rollback to", 1), ("train", 0)])
@example([("point", 0), ("train", 0), ("rollback", 0)])
@example([("hold", 0), ("promote", 2), ("swap", 1), ("rollback to", 1)])
def test_no_command_makes_a_server_accept_more_than_the_named_version(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """After random attacks, a command lets the server accept only the named version, and signs no higher serial."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    for _ in range(3):
        shop.train()
    shop.train_another()
    for kind, number in steps:
        if kind in ATTACKS:
            attack(shop, kind, number)
            continue
        before = shop.accepted()
        named = command(shop, kind, number)
        assert shop.accepted() <= before | {named}, (kind, named)
        signed = (json.loads(line) for line in shop.lines)
        assert max((line.get("from_serial", 0) or 0 for line in signed), default=0) <= shop.serial
