"""Refuse artifacts that have expired, and with SVC_STATE_DIR also artifacts older than an artifact served before.

The signed header of an artifact can hold `expires_at`, the time from which on it is refused, and `serial`, a number
that rises with every training of a recipe. Training writes these fields only if it is configured to. An older artifact
is accepted if a signed line of the version log records a rollback or a promotion to it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from svc import events, logs
from svc.artifact import version_log
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Parsed
from svc.artifact.store import Blob, Store
from svc.artifact.version_log import MAX_SERIAL
from svc.atomic_write import replace_file
from svc.errors import ArtifactExpired, ArtifactReplayed, HeaderInvalid
from svc.names import ARM_MARK, RECIPE_NAME
from svc.settings import Settings

_NAME: Final = re.compile(RECIPE_NAME)
_FORMAT: Final = 1
# Short, because a load waits for it, and another process may hang with the lock. The serial then stays in memory.
_LOCK_TIMEOUT_S: Final = 2.0
_MAX_BYTES: Final = 1 << 20

Serials = dict[str, int]


def serial_of(header: Mapping[str, Any]) -> int | None:
    """Return the serial, or None if the header has none. Raises HeaderInvalid for an invalid serial."""
    serial = header.get("serial")
    # `type` and not `isinstance`, for which True is a whole number.
    if serial is None or (type(serial) is int and 0 <= serial <= MAX_SERIAL):
        return serial
    raise HeaderInvalid("header: serial is not a whole number of 0 to 2**53 - 1")


def expires_at(header: Mapping[str, Any]) -> datetime | None:
    """Return the time of expiry, or None if the header has none. Raises HeaderInvalid for an invalid time."""
    text = header.get("expires_at")
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text) if type(text) is str else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise HeaderInvalid("header: expires_at is not a time with a zone")
    return moment


def require_unexpired(header: Mapping[str, Any], now: datetime) -> None:
    """Raise ArtifactExpired if `now` is the time of expiry or later."""
    moment = expires_at(header)
    if moment is not None and moment <= now:
        raise ArtifactExpired(f"the artifact expired at {moment.isoformat()}: train the recipe again")


def recipe_of(header: Mapping[str, Any], declared: str) -> str:
    """Return the recipe that the artifact was trained for, or `declared` if the header has no valid name.

    Serials are recorded under the returned name. Therefore an artifact copied to the output of another recipe cannot
    raise that recipe's serials.
    """
    name = header.get("recipe_name")
    # The name becomes part of a file name, so even a signed one is checked.
    return name if isinstance(name, str) and _NAME.fullmatch(name) else declared


class SerialState:
    """The highest served serials of each recipe, in memory and in one file per recipe. Thread-safe.

    Each kid has its own serials, so that a stolen key cannot raise the serials of another key.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._served: dict[str, Serials] = {}
        self._lock = threading.Lock()

    def highest(self, recipe: str, kid: str) -> int | None:
        """Return the highest served serial of this recipe and kid, or None if none is known.

        Logs an event if the file is missing or cannot be used. Only serials in memory are then known.
        """
        with self._lock:
            served = self._served.setdefault(recipe, {})
            _keep_highest(served, self._read(recipe))  # read each time, because other servers may share the folder
            return served.get(kid)

    def remember(self, recipe: str, kid: str, serial: int) -> None:
        """Record the serial of an artifact that has passed every check and is about to be served.

        If the file cannot be written, logs an event and keeps the serial in memory alone.
        """
        with self._lock:
            served = self._served.setdefault(recipe, {})
            _keep_highest(served, {kid: serial})
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                # Processes may share the folder, and `self._lock` excludes only threads of this one.
                lock = self._path(recipe, ".serials.lock")
                with FileLock(lock, _LOCK_TIMEOUT_S, mode=0o600, fallback_to_soft=False):
                    stored = self._read(recipe, quiet=True)  # `highest` has already reported an unusable file
                    _keep_highest(served, stored)
                    # No write if nothing rose: each load of the same artifact would replace the file again.
                    if stored != served:
                        content = json.dumps({"format": _FORMAT, "serials": served}, sort_keys=True)
                        replace_file(self._path(recipe), content.encode())
            except (OSError, NotImplementedError) as error:  # not implemented: the file system has no locks
                self._emit_unusable(recipe, f"cannot be written: {getattr(error, 'strerror', None) or error}")

    def _path(self, recipe: str, suffix: str = ".serials.json") -> Path:
        return self._folder / f"{recipe}{suffix}"

    def _read(self, recipe: str, *, quiet: bool = False) -> Serials:
        try:
            with self._path(recipe).open("rb") as file:
                return _parse_state(file.read(_MAX_BYTES))
        except FileNotFoundError:
            problem = "is missing: an older artifact would be accepted until the next one is served"
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
        except ValueError as error:
            problem = f"is damaged: {error}"
        if not quiet:
            self._emit_unusable(recipe, problem)
        return {}

    def _emit_unusable(self, recipe: str, problem: str) -> None:
        path = self._path(recipe)
        logs.emit(events.REPLAY_STATE_UNUSABLE, name=recipe, path=str(path), error=f"{path.name} {problem}")


def _keep_highest(serials: Serials, others: Serials) -> None:
    for kid, serial in others.items():
        serials[kid] = max(serial, serials.get(kid, 0))


def _parse_state(content: bytes) -> Serials:
    """Return the serials by kid in a state file.

    Raises ValueError if the content is not JSON, or not an object with this format and with serials in their range.
    """
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    serials = document.get("serials") if isinstance(document, dict) and document.get("format") == _FORMAT else None
    if not isinstance(serials, dict) or not all(type(n) is int and 0 <= n <= MAX_SERIAL for n in serials.values()):
        raise ValueError("it does not hold serials")
    return serials


@dataclass(frozen=True, slots=True)
class ReplayGuard:
    """Checks artifacts for expiry and replay. Without a `state`, it checks only expiry. Thread-safe."""

    state: SerialState | None = None

    @classmethod
    def of(cls, settings: Settings) -> ReplayGuard:
        return cls(SerialState(Path(settings.state_dir)) if settings.state_dir is not None else None)

    def check(self, name: str, parsed: Parsed, blob: Blob, store: Store, keys: SigningKeys) -> None:
        """Check that a verified artifact has not expired and is not older than an artifact served before.

        A higher served serial of the same recipe and kid means that the artifact is older. So does any served serial if
        the artifact has no serial. An older artifact of the recipe `name` passes if a signed rollback or promotion
        names it, and no higher serial was served since that move.

        Raises ArtifactExpired, ArtifactReplayed, HeaderInvalid for an invalid time or serial, and the errors of reading
        the log.
        """
        # Before the return below: expiry is checked without SVC_STATE_DIR, too.
        require_unexpired(parsed.header, datetime.now(UTC))
        serial = serial_of(parsed.header)
        if self.state is None:
            return
        trained_for = recipe_of(parsed.header, name)
        highest = self.state.highest(trained_for, parsed.kid)
        # An equal serial passes, so that a restarted server loads what it served before.
        if highest is None or (serial is not None and serial >= highest):
            return
        # The log of recipe `name` must not permit artifacts of another recipe. An arm has the artifact of any recipe,
        # and each line of a log is signed for the recipe that wrote it.
        if trained_for == name or ARM_MARK in name:
            log = version_log.parse(store.read_log(), keys, trained_for)
            if log.permits(blob.sha256, parsed.kid, highest):
                return
        logs.emit(events.ARTIFACT_REPLAYED, name=name, kid=parsed.kid, serial=serial, highest=highest)
        own = "it has no serial" if serial is None else f"its serial is {serial}"
        raise ArtifactReplayed(
            f"an older artifact: {own}, and {highest} was served before under the kid {parsed.kid}; train again, or go "
            "back with `svc rollback`"
        )

    def record_serial(self, name: str, parsed: Parsed) -> None:
        """Record the serial if there is one and a `state`. Call this after all other checks have passed."""
        serial = serial_of(parsed.header)
        if self.state is not None and serial is not None:
            self.state.remember(recipe_of(parsed.header, name), parsed.kid, serial)
