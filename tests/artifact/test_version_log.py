"""The signed log of versions: invalid lines are ignored, and earlier live versions are found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc.artifact.keys import SigningKeys, load_signing_keys, parse_signing_keys, public_entry
from svc.artifact.version_log import (
    Line,
    VersionLog,
    append_line,
    parse,
)
from svc.settings import Settings

KEYS = SigningKeys({"a": bytes(range(32))})
OTHERS = SigningKeys({"b": bytes(range(1, 33))})


def line(sha8: str, before: str | None = None, action: str = "train", *, held: bool = False) -> Line:
    facts = {"best_class": "TopPop"} if action == "train" else {}
    return Line("2026-01-01T00:00:00+00:00", action, sha8, before, sha8, held, facts)  # type: ignore[arg-type]


LINES = [line("11111111"), line("22222222", "11111111"), line("11111111", "22222222", "rollback", held=True)]


def written(lines: list[Line], keys: SigningKeys = KEYS) -> bytes:
    data = b""
    for one in lines:
        data = append_line(data, parse(data, keys), one, keys, "hmac")
    return data


def test_written_lines_are_read_in_order() -> None:
    """The log also gives the facts of each version, and whether the pointer is held."""
    log = parse(written(LINES), KEYS)
    assert (log.lines, log.problems) == (tuple(LINES), ())
    assert log.held
    assert log.facts("11111111") == {"best_class": "TopPop"}
    assert log.facts("33333333") is None


@settings(max_examples=150)
@given(st.integers(0, 10_000), st.integers(1, 255))
@example(45, 41)
def test_a_changed_byte_is_detected_or_harmless(place: int, change: int) -> None:
    """A changed line is ignored or reported.

    Some changes are harmless: another blank between two fields, or a capital digit in the last signature.
    """
    data = bytearray(written(LINES))
    data[place % (len(data) - 1)] ^= change
    log = parse(bytes(data), KEYS)
    assert log.problems or (log.lines, log.held) == (tuple(LINES), True)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


NEVER_SIGNED = st.sampled_from(["NaN", "1e999", "-Infinity", "9" * 5000, nested(900), nested(990), nested(100_000)])
LIKE_LINES = st.builds(
    '{{"at": "2026-01-01T00:00:00+00:00", "action": "train", "sha8": "11111111", "held": {}, "version": {{"a": {}}}, '
    '"kid": "{}", "previous": "", "signature": "{}"}}'.format,
    st.sampled_from(["true", "false", "NaN"]),
    NEVER_SIGNED | st.text(st.characters(exclude_characters="\r\n")),
    st.sampled_from(["a", "b", "\x1b[31m", "\\ud800"]),
    st.sampled_from(["", "00" * 32, "00" * 64, "zz", "0" * 129]),
).map(lambda text: text.encode("utf-8", "replace"))


@settings(max_examples=120)
@given(st.lists(st.binary() | LIKE_LINES, min_size=1, max_size=3), st.booleans())
def test_every_invalid_line_is_named(damaged: list[bytes], behind: bool) -> None:
    """Valid lines among arbitrary bytes are read, and the next command can append its line."""
    good = written(LINES[:1])
    data = b"\n".join([good.rstrip(b"\n"), *damaged] if behind else [*damaged, good])
    log = parse(data, KEYS)
    assert log.lines == tuple(LINES[:1])
    bad = {number for number, raw in enumerate(data.splitlines(), start=1) if raw != good.rstrip(b"\n")}
    assert bad <= {int(problem.split()[1].rstrip(":")) for problem in log.problems}
    assert all(character.isprintable() for problem in log.problems for character in problem)
    assert parse(append_line(data, log, LINES[1], KEYS, "hmac"), KEYS).lines == tuple(LINES[:2])


def test_a_removed_line_is_detected() -> None:
    """The next line has the signature of the line before it. A removed last line is not detected here."""
    lines = written(LINES).splitlines(keepends=True)
    assert "does not follow" in parse(lines[0] + lines[2], KEYS).problems[0]
    assert parse(lines[1] + lines[0] + lines[2], KEYS).problems
    assert parse(lines[0] + lines[1], KEYS).problems == ()


def test_lines_of_unknown_keys_are_ignored_and_named() -> None:
    """Anyone can write a line with an unknown kid. The problems say if a hold ends with an ignored line."""
    log = parse(written(LINES), OTHERS)
    assert (log.held, log.lines) == (False, ())
    assert all("its key a is not here" in problem for problem in log.problems)
    assert log.ignored[2].endswith("the hold that it sets does not apply")


def test_a_truncated_last_line_is_terminated() -> None:
    """The next line is whole, and only the truncated line is unreadable."""
    cut = written(LINES[:1])[:-20]
    log = parse(append_line(cut, parse(cut, KEYS), LINES[1], KEYS, "hmac"), KEYS)
    assert log.lines == (LINES[1],)
    assert log.problems[0] == "line 1 cannot be read"


def test_versions_that_a_rollback_replaced_are_not_earlier_versions() -> None:
    """After a rollback from 2 to 1 and a training of 3, the version before 3 is 1."""
    log = VersionLog((*LINES, replace(line("33333333", "11111111"), held=False)))
    assert log.before("33333333") == ["11111111"]
    assert log.before("11111111") == []
    assert VersionLog().before("11111111") == []


SEED = bytes(range(32))
SECRET = SigningKeys({"k1": SEED})
PUBLIC = load_signing_keys(Settings(verify_keys=public_entry("k1", SEED)))
MOVE = Line(
    "2026-11-22T00:00:00+00:00", "rollback", "abababab", None, "abababab", False, sha256="ab" * 32, from_serial=7
)


def alone(move: Line, keys: SigningKeys = SECRET, signature: Any = "hmac") -> bytes:
    """Return a log with this line alone."""
    return append_line(b"", VersionLog(), move, keys, signature)


@pytest.mark.parametrize("signature", ["hmac", "ed25519"])
def test_only_log_lines_with_a_valid_signature_are_read(signature: Any) -> None:
    """Changed lines, lines of other keys and text that is no line are skipped."""
    line = alone(MOVE, signature=signature).decode().rstrip()
    assert "\n" not in line
    content = json.loads(line)
    others = [
        json.dumps(content | {"from_serial": 8}),
        json.dumps(content | {"sha256": "cd" * 32}),
        json.dumps(content | {"kid": "k2"}),
        json.dumps(content | {"more": 1}),
        json.dumps(content | {"more": float("nan")}),
        json.dumps({name: value for name, value in content.items() if name != "at"}),
        json.dumps(content | {"signature": "00" * (32 if signature == "hmac" else 64)}),
        json.dumps(content | {"signature": content["signature"][:-2]}),
        json.dumps(content | {"signature": 5}),
        alone(MOVE, SigningKeys({"k1": bytes(32)}), signature).decode(),
        *(
            "",
            "{",
            "[]",
            "null",
            "5",
            '{"signature": "00"}',
            "[" * 10_000,
            "\ud800".encode("utf-8", "replace").decode(),
        ),
    ]
    log = "\n".join([*others, line, *others]).encode()
    keys = SECRET if signature == "hmac" else PUBLIC
    assert [found.from_serial for found in parse(log, keys).lines] == [7]
    assert parse(log, parse_signing_keys(f"k2:{'11' * 32}")).lines == ()


def test_an_hmac_with_a_public_key_is_no_valid_signature() -> None:
    """Everyone knows the public key, so an HMAC by it proves nothing."""
    public = PUBLIC.public_of("k1")
    assert public is not None
    assert parse(alone(MOVE, SigningKeys({"k1": public})), PUBLIC).lines == ()
    assert parse(alone(MOVE), PUBLIC).lines == ()


@pytest.mark.parametrize(
    ("change", "highest", "allowed"),
    [
        ({}, 7, True),
        ({}, 6, True),
        ({}, 8, False),
        ({"sha256": "cd" * 32}, 7, False),
        ({"action": "promote"}, 7, True),
        ({"action": "train"}, 7, False),
        ({"from_serial": "7"}, 7, False),
        ({"from_serial": True}, 0, False),
        ({"from_serial": None}, 7, False),
        ({"serial_kid": "k1"}, 7, True),
        ({"serial_kid": "k2"}, 7, False),
        ({"recipe": "books"}, 7, True),
        ({"recipe": "films"}, 7, False),
    ],
)
def test_a_rollback_permits_one_artifact_until_a_higher_serial_is_served(
    change: dict[str, Any], highest: int, allowed: bool
) -> None:
    """An old rollback line cannot bypass the next training."""
    log = parse(alone(replace(MOVE, **change)), SECRET, "books")
    assert log.permits("ab" * 32, "k1", highest) is allowed


def test_serials_count_for_the_key_that_they_belong_to() -> None:
    """A line without `serial_kid` is about the kid that signed it. Only lines of the given signers count."""
    of_another = replace(MOVE, serial_kid="k0", from_serial=3, version={"serial": 5})
    lines = [replace(MOVE, kid="k1"), replace(of_another, kid="k1"), replace(of_another, from_serial=True, kid="k2")]
    log = VersionLog(tuple(lines))
    assert log.serials("k1", {"k1", "k2"}) == [7]
    assert log.serials("k0", {"k1"}) == [3, 5]
    assert log.serials("k0", {"k2"}) == [5]
    assert log.serials("k1", {"k2"}) == log.serials("k2", {"k1", "k2"}) == []
