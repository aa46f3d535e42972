"""The versions of a recipe's artifact beside its pointer: which there are, which is live, and how that changes.

A move of the pointer is written to the log first and then done, under a short lock on this host. Whoever is killed
between the two leaves a log whose last line did not happen: what is live is always what the pointer says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from svc.artifact import keys as signing
from svc.artifact import layout, version_log
from svc.artifact.freshness import MAX_LOG_BYTES, serial_of
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Parsed, Written
from svc.artifact.lock import run_lock
from svc.artifact.store import Blob, Store, located, open_store
from svc.artifact.version_log import Action, Line, VersionLog
from svc.errors import ArtifactError, NoSuchVersion
from svc.settings import Settings

_LOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Version:
    """One version. Facts are None where neither the log nor the artifact tells them; `held` is of the live one."""

    sha8: str
    trained_at: str | None
    best_class: str | None
    best_score: float | None
    decision: str | None
    live: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """A version that a training wrote. `promoted` is False when the pointer stayed; `held` says why."""

    sha8: str
    artifact: str
    written: Written
    promoted: bool
    held: bool


def facts_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the log keeps of a version."""
    promotion = header.get("promotion")
    decision = promotion.get("decision") if isinstance(promotion, Mapping) else None
    return {**{name: header.get(name) for name in ("trained_at", "best_class", "best_score")}, "decision": decision}


class Versions:
    """The versions of the recipe whose pointer is at `uri`. `keys` verify what is pointed at and sign the log."""

    def __init__(self, uri: str, keys: SigningKeys, settings: Settings) -> None:
        self._uri = uri
        self._keys = keys
        self._settings = settings
        self._store: Store = open_store(uri, settings)

    @property
    def uri(self) -> str:
        return self._store.uri

    def has_log(self) -> bool:
        return self._store.has_log()

    def log(self) -> VersionLog:
        return version_log.parse(bytes(self._store.read_log(MAX_LOG_BYTES)), self._keys)

    def live(self) -> str | None:
        """The version that the pointer names; None where there is no pointer."""
        return self._store.live()

    def history(self, *, by_log_alone: bool = False) -> list[Version]:
        """Every version that is there, the newest first.

        Versions without a line in the log are read for their facts, unless `by_log_alone`: then these stay None.
        """
        log, live = self.log(), self.live()
        names = self._names(log)
        known = {sha8: _told(log.facts(sha8)) if by_log_alone else self._facts(sha8, log) for sha8 in names}
        order = version_log.newest_first([(sha8, str(known[sha8].get("trained_at") or "")) for sha8 in names])
        return [Version(sha8, **known[sha8], live=sha8 == live, held=sha8 == live and log.held) for sha8 in order]

    def _names(self, log: VersionLog) -> list[str]:
        """The versions that are there, in the order of the log; those that it does not name come first."""
        logged = list(dict.fromkeys(line.sha8 for line in log.lines))
        listed = self._store.versions()
        if listed is None:  # a web server lists nothing
            return [sha8 for sha8 in logged if self._store.has_version(sha8)]
        live = self.live()  # times have whole seconds: of versions trained in one, the live one was written last
        unlogged = sorted(listed - set(logged), key=lambda sha8: (sha8 == live, sha8))
        return [*unlogged, *(sha8 for sha8 in logged if sha8 in listed)]

    def _facts(self, sha8: str, log: VersionLog) -> dict[str, Any]:
        found = log.facts(sha8)
        if found is None:
            try:
                found = facts_of(self._verified(sha8)[1].header)
            except ArtifactError:
                found = {}
        return _told(found)

    def problems(self) -> list[str]:
        """What `svc history --verify` has to say: changed, missing and misplaced lines, and files without one."""
        log, live = self.log(), self.live()
        found = list(log.problems)
        if log.lines and log.lines[-1].live != live:
            found.append(
                f"the last line says that {log.lines[-1].live} is live, the pointer says {live}: the last lines are "
                "missing, the pointer was moved by hand, or a command was killed; `svc promote` sets both anew"
            )
        logged = {line.sha8 for line in log.lines}
        for sha8 in self._names(log) if log.lines else ():
            began, written = log.lines[0].at, str(self._facts(sha8, log).get("trained_at") or "")
            if sha8 not in logged and sha8 != log.lines[0].before and written > began:
                found.append(
                    f"version {sha8} was trained after the log began, and has no line: lines are missing, or a "
                    "training was killed before it wrote one"
                )
        return found

    def publish(
        self, write: Callable[[BinaryIO], Written], header: Mapping[str, Any], *, move: bool, keep: int | None
    ) -> Training:
        """Put a new version in place; the pointer moves to it if `move`, and unless a hold stands.

        A hold keeps a pointer where it is; it keeps nobody from making one that is gone.
        """
        sha8, written = self._store.put_version(write)
        with self._lock():
            log, live = self.log(), self.live()
            promoted = move and not (log.held and live is not None)
            line = Line(
                at=version_log.now(),
                action="train",
                sha8=sha8,
                before=live,
                live=sha8 if promoted else live,
                held=log.held,
                version=facts_of(header),
            )
            self._move(line)
            if keep is not None:
                self._tidy(keep)
        return Training(sha8, self._store.uri_of_version(sha8), written, promoted, log.held and not promoted)

    def promote(self, sha8: str) -> str | None:
        """Make `sha8` live and end a hold; returns what was live before. Raises NoSuchVersion, ArtifactError."""
        return self._go("promote", lambda _log, _live: sha8, hold=False)

    def rollback(self, to: str | None, *, hold: bool) -> tuple[str, str | None]:
        """Go back to `to`, or to what was live before, and hold it there: (what is live, what was live before).

        A hold that stands already stays. Raises NoSuchVersion, ArtifactError.
        """
        chosen: list[str] = []

        def choose(log: VersionLog, live: str | None) -> str:
            chosen.append(to or self._before(log, live))
            return chosen[0]

        before = self._go("rollback", choose, hold=hold)
        return chosen[0], before

    def _go(self, action: Action, choose: Callable[[VersionLog, str | None], str], *, hold: bool) -> str | None:
        with self._lock():
            log, live = self.log(), self.live()
            sha8 = choose(log, live)
            blob, parsed = self._verified(sha8)
            held = hold or (action == "rollback" and log.held)
            facts, highest = facts_of(parsed.header), self._highest_serial(log, live)
            self._move(Line(version_log.now(), action, sha8, live, sha8, held, facts, blob.sha256, highest))
        return live

    def _before(self, log: VersionLog, live: str | None) -> str:
        """What a rollback without a target goes to: the last that was live and is there, else the next older one."""
        if live is None:
            raise NoSuchVersion(f"{self.uri} is no pointer to a version, so there is nothing to go back to")
        names = self._names(log)
        found = next((sha8 for sha8 in log.before(live) if sha8 in names), None) or self._older_than(live)
        if found is not None:
            return found
        raise NoSuchVersion(f"there is no version before {live} beside {self.uri}: nothing to go back to")

    def _older_than(self, live: str) -> str | None:
        """The newest version that was trained before `live`, and was not refused."""
        known = [version for version in self.history() if version.trained_at is not None]
        place = next((place for place, version in enumerate(known) if version.sha8 == live), len(known))
        return next((version.sha8 for version in known[place + 1 :] if version.decision != "refused"), None)

    def _highest_serial(self, log: VersionLog, live: str | None) -> int | None:
        """The highest serial that was live so far, as the log and the live version tell; None without serials."""
        serials = [line.from_serial for line in log.lines if line.from_serial is not None]
        try:
            now = serial_of(self._verified(live)[1].header) if live else None
        except ArtifactError:
            now = None  # a damaged version is what one goes back from
        return max([*serials, *([] if now is None else [now])], default=None)

    def _verified(self, sha8: str) -> tuple[Blob, Parsed]:
        """The version `sha8`, its signature checked. Raises NoSuchVersion and the forms of ArtifactError."""
        blob = self._store.read_version(sha8, self._settings.max_artifact_bytes)
        try:
            parsed = layout.parse(blob.view, max_payload_bytes=self._settings.max_payload_bytes)
            signing.verify(parsed, self._keys)
        except ArtifactError as error:
            raise located(error, blob.resolved) from None
        return blob, parsed

    def _move(self, line: Line) -> None:
        data = bytes(self._store.read_log(MAX_LOG_BYTES))
        log = version_log.parse(data, self._keys)
        signature = self._settings.artifact_signature
        self._store.write_log(version_log.appended(data, log, line, self._keys, signature))
        if line.live is not None and line.live != line.before:
            self._store.point_to(line.live)

    def _tidy(self, keep: int) -> None:
        """Remove what is older than the newest `keep`; never the live version nor the one before it.

        A version without a line that was trained since the log began may be another training's, about to become live.
        """
        log, live = self.log(), self.live()
        known = [version for version in self.history() if version.trained_at is not None]
        order = [version.sha8 for version in known if self._is_settled(version, log)]
        kept = {*order[:keep], live, *(log.before(live)[:1] if live else ())}
        for sha8 in order:
            if sha8 not in kept:
                self._store.remove_version(sha8)

    def _is_settled(self, version: Version, log: VersionLog) -> bool:
        return log.facts(version.sha8) is not None or str(version.trained_at) < log.lines[0].at

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Held only while the pointer moves: a training of hours does not keep a rollback waiting."""
        with run_lock(f"{self._uri}.log.jsonl", timeout_s=_LOCK_TIMEOUT_S, settings=self._settings):
            yield


def _told(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: (facts or {}).get(name) for name in ("trained_at", "best_class", "best_score", "decision")}
