"""The log of a recipe's versions, `<output.path>.log.jsonl`: one signed line for each training and each move.

Each line holds the signature of the line before it and is signed as a whole, so that lines which were changed, taken
out of the middle, or put in another order are found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from svc.artifact import ed25519
from svc.artifact.freshness import holds, signed_line
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Signature

Action = Literal["train", "promote", "rollback"]
_OPTIONAL: Final = ("sha256", "from_serial")
_SIGNED_IN: Final = ("kid", "previous", "signature")


@dataclass(frozen=True, slots=True)
class Line:
    """What one command did. `before` and `live` are the first 8 hex digits of what was live before and after it.

    `version` are the facts of `sha8`, the version that the command is about; `held` whether trainings may not move
    the pointer from now on. A rollback or promotion has the `sha256` of the version too, and `from_serial`, the
    highest serial that was live before: servers that remember serials follow it (see freshness.py).
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


@dataclass(frozen=True, slots=True)
class VersionLog:
    """`lines` in order; `problems` say what is wrong with the file, by line; `last_signature` begins the next line."""

    lines: tuple[Line, ...] = ()
    problems: tuple[str, ...] = ()
    last_signature: str = ""

    @property
    def held(self) -> bool:
        return bool(self.lines) and self.lines[-1].held

    def facts(self, sha8: str) -> Mapping[str, Any] | None:
        """What the training of `sha8` wrote of it."""
        for line in reversed(self.lines):
            if line.sha8 == sha8 and line.version:
                return line.version
        return None

    def before(self, live: str) -> list[str]:
        """What was live before `live`, the nearest first. What a rollback left behind is not gone back to."""
        stack: list[str] = []
        for line in self.lines:
            for sha8 in (line.before, line.live):
                if sha8 is None or (stack and stack[-1] == sha8):
                    continue
                if sha8 in stack and (line.action == "rollback" or sha8 == line.before):
                    del stack[stack.index(sha8) + 1 :]
                elif line.action == "rollback" and sha8 == line.live:
                    stack = [sha8]
                else:
                    stack = [*(kept for kept in stack if kept != sha8), sha8]
        if live in stack:
            del stack[stack.index(live) :]
        return stack[::-1]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def appended(data: bytes, log: VersionLog, line: Line, keys: SigningKeys, signature: Signature) -> bytes:
    """`data` and one more line, signed with the active key. A last line that was cut off is ended first."""
    kid, key = keys.active
    fields = {name: value for name, value in asdict(line).items() if value is not None or name not in _OPTIONAL}
    text = signed_line({**fields, "previous": log.last_signature}, kid=kid, key=key, signature=signature)
    separator = b"" if not data or data.endswith(b"\n") else b"\n"
    return data + separator + text.encode() + b"\n"


def parse(data: bytes, keys: SigningKeys) -> VersionLog:
    """The lines of a log. What cannot be read or is proven false counts for nothing; `problems` name it.

    A line whose key is not here counts: a hold must not end because a key was changed.
    """
    lines: list[Line] = []
    problems: list[str] = []
    previous = ""
    for number, raw in enumerate(data.splitlines(), start=1):
        fields = _fields(raw)
        line = None if fields is None else _line(fields)
        if fields is None or line is None:
            problems.append(f"line {number} cannot be read")
            continue
        problem = _problem(fields, keys)
        if problem:
            problems.append(f"line {number}: {problem}")
        if fields["previous"] != previous:
            problems.append(f"line {number} does not follow the line before it: lines were taken out or put in")
        previous = fields["signature"]
        if problem != _CHANGED:
            lines.append(line)
    return VersionLog(tuple(lines), tuple(problems), previous)


_CHANGED: Final = "it was changed after it was signed"


def _fields(raw: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or any(not isinstance(fields.get(name), str) for name in _SIGNED_IN):
        return None
    return fields


def _line(fields: Mapping[str, Any]) -> Line | None:
    values: dict[str, Any] = {name: fields.get(name) for name in Line.__slots__}
    texts = ("at", "action", "sha8")
    if any(not isinstance(values[name], str) for name in texts) or not isinstance(values["held"], bool):
        return None
    if any(not isinstance(values[name], str | None) for name in ("before", "live", "sha256")):
        return None
    if not isinstance(values["version"], Mapping) or not isinstance(values["from_serial"], int | None):
        return None
    return Line(**values)


def _problem(fields: Mapping[str, Any], keys: SigningKeys) -> str:
    content = {name: value for name, value in fields.items() if name != "signature"}
    kid = fields["kid"]
    try:
        code = bytes.fromhex(fields["signature"])
    except ValueError:
        return _CHANGED
    is_public = len(code) == ed25519.SIGNATURE_BYTES
    if (keys.public_of(kid) if is_public else keys.get(kid)) is None:
        return f"its key {kid} is not here, so it cannot be verified"
    return "" if holds(content, code, keys) else _CHANGED


def newest_first(versions: Sequence[tuple[str, str]]) -> list[str]:
    """The sha8 of (sha8, trained_at) pairs, the latest first; equal times as they stand, the last one first."""
    order = sorted(range(len(versions)), key=lambda place: (versions[place][1], place), reverse=True)
    return [versions[place][0] for place in order]
