"""The log of a recipe's versions, `<output.path>.log.jsonl`: a signed line for each training, promotion and rollback.

Each line contains the signature of the line before it and is itself signed, so that changed, removed and reordered
lines are detected. Lines removed at the end are detected only if the pointer then differs from the last line, or if a
version then has no line (see `Versions.problems`).

Everyone who can write to the store can also write lines. So a line counts only if a configured key has signed it, it
names no other recipe, and it is later than the lines before it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from svc.artifact import ed25519
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Signature
from svc.names import KEY_ID

Action = Literal["train", "promote", "rollback", "forget"]
MAX_SERIAL: Final = (1 << 53) - 1
"""The largest integer that every JSON reader represents exactly."""
_OPTIONAL: Final = ("sha256", "from_serial", "serial_kid", "recipe")
_SIGNED_IN: Final = ("kid", "previous", "signature")
_KID: Final = re.compile(KEY_ID)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log, which records one command.

    `before` and `live` are the versions (8 hex digits) that were live before and after the command. `sha8` is the
    version that the command trained or made live, and `version` has the facts about it. If `held` is True, later
    trainings do not move the pointer.

    A rollback or promotion also has `sha256`, the whole digest of the version that it made live, and `from_serial`, the
    highest serial of the kid `serial_kid` before the command. Servers that remember serials read these two fields (see
    replay.py). A line without a `recipe` is for every recipe. `kid` names the key that signed the line, and is empty
    before the line is written.
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
    """A parsed log. `lines` are the valid lines in order, and `problems` the defects of the file, for messages.

    `ignored` are the problems that follow the last valid line. `last_signature` belongs to the last readable line. The
    next line repeats it.
    """

    lines: tuple[Line, ...] = ()
    problems: tuple[str, ...] = ()
    last_signature: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return bool(self.lines) and self.lines[-1].held

    def facts(self, sha8: str) -> Mapping[str, Any] | None:
        """Return the latest facts about the version `sha8` in the log, or None if no line has any."""
        for line in reversed(self.lines):
            if line.sha8 == sha8 and line.version:
                return line.version
        return None

    def knows_as_live(self, sha8: str | None) -> bool:
        """Return whether the newest line names this version as live after its command or before its command.

        The version live before counts too, because a command may be killed before it moves the pointer.
        """
        return bool(self.lines) and sha8 in (self.lines[-1].live, self.lines[-1].before)

    def serials(self, kid: str, signers: Collection[str]) -> list[int]:
        """Return the serials of `kid` in lines that one of the kids `signers` has signed.

        These are the highest serials before moves, and the serials of the versions.
        """
        own = [line for line in self.lines if line.kid in signers and (line.serial_kid or line.kid) == kid]
        serials = [serial for line in own for serial in (line.from_serial, line.version.get("serial"))]
        return [serial for serial in serials if type(serial) is int and 0 <= serial <= MAX_SERIAL]

    def permits(self, sha256: str, kid: str, highest: int) -> bool:
        """Return whether a rollback or promotion to this artifact allows servers to load it again.

        `kid` signed the artifact, and `highest` is the highest serial of this kid that was served. A move allows
        nothing once a higher serial than its `from_serial` was served.
        """
        return any(
            line.action in ("rollback", "promote", "forget")
            and line.sha256 == sha256
            and line.serial_kid in (None, kid)
            and line.from_serial is not None
            and line.from_serial >= highest
            for line in self.lines
        )

    def before(self, live: str) -> list[str]:
        """Return the versions that were live before `live`, the latest first.

        Versions that a rollback replaced are left out. So are versions that a line names only as live before it,
        because that name comes from the unsigned pointer. If `live` is left out, return all others.
        """
        stack: list[str] = []
        for line in self.lines:
            if line.before in stack:  # later versions in the stack never became live, as their commands were killed
                del stack[stack.index(line.before) + 1 :]
            if line.action == "forget":
                stack = [line.sha8 if kept == line.version.get("replaces") else kept for kept in stack]
                continue
            # A refused or held version was never live.
            if line.live != line.sha8:
                continue
            if line.action == "rollback":
                stack = stack[: stack.index(line.sha8)] if line.sha8 in stack else []
            stack = [*(kept for kept in stack if kept != line.sha8), line.sha8]
        if live in stack:
            del stack[stack.index(live) :]
        return stack[::-1]


def next_time(log: VersionLog) -> str:
    """Return the current time, but at least 1 µs after the newest line, so that a clock set back does no harm."""
    moment = datetime.now(UTC)
    if log.lines:
        moment = max(moment, datetime.fromisoformat(log.lines[-1].at) + timedelta(microseconds=1))
    return moment.isoformat(timespec="microseconds")


def append_line(data: bytes, log: VersionLog, line: Line, keys: SigningKeys, signature: Signature) -> bytes:
    """Return `data` and one more line, signed with the active key. A truncated last line is terminated first."""
    kid, key = keys.active
    fields = {name: value for name, value in asdict(line).items() if value is not None or name not in _OPTIONAL}
    content = {**fields, "previous": log.last_signature, "kid": kid}
    digest = _digest(content)
    if signature == "hmac":
        code = hmac.digest(key, ed25519.LOG_LINE + digest, "sha256")
    else:
        code = ed25519.sign(key, ed25519.LOG_LINE, digest)
    text = json.dumps({**content, "signature": code.hex()}, ensure_ascii=True, allow_nan=False)
    # A write that was cut off, such as one by another program, must not swallow this line.
    separator = b"" if not data or data.endswith(b"\n") else b"\n"
    return data + separator + text.encode() + b"\n"


def parse(data: bytes, keys: SigningKeys, recipe: str | None = None) -> VersionLog:
    """Parse and verify the log of `recipe`. None accepts lines of every recipe."""
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
        # Also of a line that will not count: svc repeated it in the next line, and a forged one must not break the
        # chain.
        previous = fields["signature"]
        if not follows:
            problems.append(f"line {number} does not follow the line before it: lines were removed or inserted")
        problem = _problem(fields, keys) or _position_problem(line, lines, recipe, follows=follows)
        if problem:
            ignored.append(f"line {number}: {problem}{_hold_hint(line, lines)}")
            problems.append(ignored[-1])
        else:
            lines.append(line)
            # A valid line repeats the state of the hold, so ignored lines before it no longer matter.
            ignored.clear()
    return VersionLog(tuple(lines), tuple(problems), previous, tuple(ignored))


_CHANGED: Final = "it was changed after it was signed, and does not count"


def _position_problem(line: Line, lines: Sequence[Line], recipe: str | None, *, follows: bool) -> str:
    """Return why a line with a valid signature must be ignored, or "" if it is accepted.

    A line of another recipe is ignored. So is a line that is not later than the last accepted line. An equal time is
    accepted if the line `follows`, that is, names the signature of the line before it.
    """
    if recipe is not None and line.recipe not in (None, recipe):
        return f"it is of the recipe {line.recipe}, and does not count"
    if not lines or line.at > lines[-1].at or (line.at == lines[-1].at and follows):
        return ""
    return "it is not later than a line before it: it was copied or moved here, and does not count"


def _hold_hint(line: Line, lines: Sequence[Line]) -> str:
    held = bool(lines) and lines[-1].held
    if line.held == held:
        return ""
    return "; the hold that it sets does not apply" if line.held else "; the hold that it ends still applies"


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
    if not isinstance(values["version"], Mapping) or type(values["from_serial"]) not in (int, type(None)):
        return None
    return Line(**values) if _is_time(values["at"]) else None


def _is_time(text: str) -> bool:
    try:
        # Only UTC, because times of lines are compared as texts.
        return datetime.fromisoformat(text).utcoffset() == timedelta(0)
    except ValueError:
        return False


def _problem(fields: Mapping[str, Any], keys: SigningKeys) -> str:
    content = {name: value for name, value in fields.items() if name != "signature"}
    kid = fields["kid"]
    try:
        code, digest = bytes.fromhex(fields["signature"]), _digest(content)
    except (ValueError, RecursionError):  # NaN, 1e999 and deep lists can be parsed, but never signed
        return _CHANGED
    if len(code) == ed25519.SIGNATURE_BYTES:
        key = keys.public_of(kid)
        is_valid = key is not None and ed25519.is_signed(key, code, ed25519.LOG_LINE, digest)
    else:
        key = keys.entries.get(kid)
        is_valid = key is not None and hmac.compare_digest(hmac.digest(key, ed25519.LOG_LINE + digest, "sha256"), code)
    if key is None:
        # Anyone can write a line, so only a valid kid reaches the terminal.
        shown_kid = f" {kid}" if _KID.fullmatch(kid) else ""
        return f"its key{shown_kid} is not here, so it cannot be verified and does not count"
    return "" if is_valid else _CHANGED


def _digest(content: Mapping[str, Any]) -> bytes:
    # One form of the JSON is signed, so another order of keys or other blanks in the file do no harm.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).digest()
