"""The log of a recipe's versions, `<output.path>.log.jsonl`: one signed line for each training and each move.

Each line holds the signature of the line before it and is signed as a whole, so that lines which were changed, taken
out of the middle, or put in another order are found. Whoever can write to the store can write lines too: only those
count that a key which is here has signed for this recipe, in the order of their times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from svc.artifact import ed25519
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Signature
from svc.artifact.replay.freshness import holds, signed_line

Action = Literal["train", "promote", "rollback"]
_OPTIONAL: Final = ("sha256", "from_serial", "serial_kid", "recipe")
_SIGNED_IN: Final = ("kid", "previous", "signature")


@dataclass(frozen=True, slots=True)
class Line:
    """What one command did. `before` and `live` are the first 8 hex digits of what was live before and after it.

    `version` are the facts of `sha8`, the version that the command is about; `held` whether trainings may not move
    the pointer from now on. A rollback or promotion has the `sha256` of the version too, and `from_serial`, the
    highest serial of the kid `serial_kid` until then: servers that remember serials follow it (see freshness.py).
    `kid` names the key that signed the line; it is empty in a line that is still to be written.
    """

    at: str
    action: Action
    sha8: str
    before: str | None
    live: str | None
    held: bool
    version: Mapping[str, Any] = field(default_factory=dict)
    sha256: str | None = None
    from_serial: int | None = None
    serial_kid: str | None = None
    recipe: str | None = None
    kid: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class VersionLog:
    """`lines` are those that count, in order; `problems` say what is wrong with the file, by line.

    `ignored` are the problems of lines behind the last one that counts. `last_signature` begins the next line.
    """

    lines: tuple[Line, ...] = ()
    problems: tuple[str, ...] = ()
    last_signature: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return bool(self.lines) and self.lines[-1].held

    def facts(self, sha8: str) -> Mapping[str, Any] | None:
        """What the training of `sha8` wrote of it."""
        for line in reversed(self.lines):
            if line.sha8 == sha8 and line.version:
                return line.version
        return None

    def knows_as_live(self, sha8: str | None) -> bool:
        """Whether the newest line leaves this version live, or would have if its command had not been killed."""
        return bool(self.lines) and sha8 in (self.lines[-1].live, self.lines[-1].before)

    def before(self, live: str) -> list[str]:
        """What was live before `live`, the nearest first. What a rollback left behind is not gone back to.

        Only versions that a line made live are told: what a line found live was told to it by an unsigned pointer.
        """
        stack: list[str] = []
        for line in self.lines:
            if line.before in stack:  # what stands behind it was never live: its command was killed
                del stack[stack.index(line.before) + 1 :]
            if line.live != line.sha8:
                continue
            if line.action == "rollback":
                stack = stack[: stack.index(line.sha8)] if line.sha8 in stack else []
            stack = [*(kept for kept in stack if kept != line.sha8), line.sha8]
        if live in stack:
            del stack[stack.index(live) :]
        return stack[::-1]


def next_time(log: VersionLog) -> str:
    """Now, or the moment after the newest line: a clock that was set back must not make the next line look old."""
    moment = datetime.now(UTC)
    if log.lines:
        moment = max(moment, datetime.fromisoformat(log.lines[-1].at) + timedelta(microseconds=1))
    return moment.isoformat(timespec="microseconds")


def appended(data: bytes, log: VersionLog, line: Line, keys: SigningKeys, signature: Signature) -> bytes:
    """`data` and one more line, signed with the active key. A last line that was cut off is ended first."""
    kid, key = keys.active
    fields = {name: value for name, value in asdict(line).items() if value is not None or name not in _OPTIONAL}
    del fields["kid"]
    text = signed_line({**fields, "previous": log.last_signature}, kid=kid, key=key, signature=signature)
    separator = b"" if not data or data.endswith(b"\n") else b"\n"
    return data + separator + text.encode() + b"\n"


def parse(data: bytes, keys: SigningKeys, recipe: str | None = None) -> VersionLog:
    """The lines of the log of `recipe`; without one, lines of every recipe count."""
    lines: list[Line] = []
    problems: list[str] = []
    ignored: list[str] = []
    previous = ""
    for number, raw in enumerate(data.splitlines(), start=1):
        fields = _fields(raw)
        line = None if fields is None else _line(fields)
        if fields is None or line is None:
            ignored.append(f"line {number} cannot be read")
            problems.append(ignored[-1])
            continue
        follows = fields["previous"] == previous
        previous = fields["signature"]
        if not follows:
            problems.append(f"line {number} does not follow the line before it: lines were taken out or put in")
        problem = _problem(fields, keys) or _misplaced(line, lines, recipe, follows=follows)
        if problem:
            ignored.append(f"line {number}: {problem}{_said_of_hold(line, lines)}")
            problems.append(ignored[-1])
        else:
            lines.append(line)
            ignored.clear()
    return VersionLog(tuple(lines), tuple(problems), previous, tuple(ignored))


_CHANGED: Final = "it was changed after it was signed, and does not count"


def _misplaced(line: Line, lines: Sequence[Line], recipe: str | None, *, follows: bool) -> str:
    """Why a line whose signature holds does not count where it stands; empty for one that does."""
    if recipe is not None and line.recipe not in (None, recipe):
        return f"it is of the recipe {line.recipe}, and does not count"
    if not lines or line.at > lines[-1].at or (line.at == lines[-1].at and follows):
        return ""
    return "it is not later than a line before it: it was copied or moved here, and does not count"


def _said_of_hold(line: Line, lines: Sequence[Line]) -> str:
    held = bool(lines) and lines[-1].held
    if line.held == held:
        return ""
    return "; the hold that it sets does not stand" if line.held else "; the hold that it ends still stands"


def _fields(raw: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or any(not isinstance(fields.get(name), str) for name in _SIGNED_IN):
        return None
    return fields if len(fields["signature"]) <= 2 * ed25519.SIGNATURE_BYTES else None


def _line(fields: Mapping[str, Any]) -> Line | None:
    values: dict[str, Any] = {name: fields.get(name) for name in Line.__slots__}
    texts = ("at", "action", "sha8")
    if any(not isinstance(values[name], str) for name in texts) or not isinstance(values["held"], bool):
        return None
    if any(not isinstance(values[name], str | None) for name in ("before", "live", "sha256", "serial_kid", "recipe")):
        return None
    if not isinstance(values["version"], Mapping) or not isinstance(values["from_serial"], int | None):
        return None
    return Line(**values) if _is_time(values["at"]) else None


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() == timedelta(0)
    except ValueError:
        return False


def _problem(fields: Mapping[str, Any], keys: SigningKeys) -> str:
    content = {name: value for name, value in fields.items() if name != "signature"}
    kid = fields["kid"]
    try:
        code = bytes.fromhex(fields["signature"])
    except ValueError:
        return _CHANGED
    is_public = len(code) == ed25519.SIGNATURE_BYTES
    if (keys.public_of(kid) if is_public else keys.get(kid)) is None:
        return f"its key {kid} is not here, so it cannot be verified and does not count"
    return "" if holds(content, code, keys) else _CHANGED


def newest_first(versions: Sequence[tuple[str, str]]) -> list[str]:
    """The sha8 of (sha8, trained_at) pairs, the latest first; equal times as they stand, the last one first."""
    order = sorted(range(len(versions)), key=lambda place: (versions[place][1], place), reverse=True)
    return [versions[place][0] for place in order]
