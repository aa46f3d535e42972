"""The versions of a recipe's artifact beside its pointer: which there are, which is live, and how that changes.

A move of the pointer is written to the log first and then done, under a short lock on this host. Whoever is killed
between the two leaves a log whose last line did not happen: what is live is always what the pointer says.

Whoever can write to the store may have put the pointer, the files and lines of the log there. The pointer moves only to
a version whose signature holds and which is the one that its name and recipe promise; what is signed comes from
signed lines and artifacts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from svc import events, logs
from svc.artifact import version_log
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Parsed, Written
from svc.artifact.lock import run_lock
from svc.artifact.replay.freshness import MAX_LOG_BYTES, MAX_SERIAL, recipe_of, serial_of
from svc.artifact.store import Blob, Store, located, open_store, verified
from svc.artifact.version_log import Action, Line, VersionLog
from svc.errors import ArtifactError, ArtifactMisplaced, NoSuchVersion
from svc.settings import Settings

_LOCK_TIMEOUT_S = 60.0
_FACTS = ("trained_at", "best_class", "best_score", "rank_ms")


@dataclass(frozen=True, slots=True)
class Version:
    """One version. Facts are None where neither the log nor the artifact tells them; `held` is of the live one."""

    sha8: str
    trained_at: str | None
    best_class: str | None
    best_score: float | None
    rank_ms: float | None
    decision: str | None
    live: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """A version that a training wrote. `promoted` is False when the pointer stayed; `held` says why.

    `live` is the version that the pointer names from now on, if any.
    """

    sha8: str
    artifact: str
    written: Written
    promoted: bool
    held: bool
    live: str | None


def facts_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the log keeps of a version."""
    promotion = header.get("promotion")
    decision = promotion.get("decision") if isinstance(promotion, Mapping) else None
    serial = {"serial": header["serial"]} if "serial" in header else {}
    return {**{name: header.get(name) for name in _FACTS}, "decision": decision, **serial}


class Versions:
    """The versions of the recipe whose pointer is at `uri`. `keys` verify what is pointed at and sign the log.

    With the name of the `recipe`, versions and lines of another one are refused.
    """

    def __init__(self, uri: str, keys: SigningKeys, settings: Settings, *, recipe: str | None = None) -> None:
        self._uri = uri
        self._keys = keys
        self._settings = settings
        self._recipe = recipe
        self._store: Store = open_store(uri, settings)

    @property
    def uri(self) -> str:
        return self._store.uri

    def has_log(self) -> bool:
        return self._store.has_log()

    def log(self) -> VersionLog:
        return version_log.parse(bytes(self._store.read_log(MAX_LOG_BYTES)), self._keys, self._recipe)

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
        found = [*log.problems, *self._misplaced(log)]
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

    def _misplaced(self, log: VersionLog) -> Iterator[str]:
        """The versions whose content is not the one that their name or recipe promises."""
        for sha8 in self._names(log):
            try:
                self._verified(sha8)
            except ArtifactMisplaced as error:
                yield f"version {sha8}: {error.message}"
            except ArtifactError:
                continue  # damaged, or of a key that is gone: no command goes to it

    def publish(
        self, write: Callable[[BinaryIO], Written], header: Mapping[str, Any], *, move: bool, keep: int | None
    ) -> Training:
        """Put a new version in place; the pointer moves to it if `move`, and unless a hold stands.

        A hold keeps a pointer where it is; it keeps nobody from making one that is gone.
        """
        sha8, written = self._store.put_version(write)
        with self._withdrawn_on_error(sha8), self._lock():
            log, live = self._log_to_go_on(), self.live()
            promoted = move and not (log.held and live is not None)
            before = _believed(log, live)
            line = Line(
                at=version_log.next_time(log),
                action="train",
                sha8=sha8,
                before=before,
                live=sha8 if promoted else before,
                held=log.held,
                version=facts_of(header),
                recipe=self._recipe,
            )
            self._move(line, live)
            if keep is not None:
                self._tidy(keep)
        return Training(sha8, self._store.uri_of_version(sha8), written, promoted, log.held and not promoted, line.live)

    @contextmanager
    def _withdrawn_on_error(self, sha8: str) -> Iterator[None]:
        """Remove a version that no line names: it would look like one whose line somebody has taken away."""
        try:
            yield
        except BaseException:
            with suppress(ArtifactError):
                if self.log().facts(sha8) is None and self.live() != sha8:
                    self._store.remove_version(sha8)
            raise

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
            log, live = self._log_to_go_on(), self.live()
            sha8 = choose(log, live)
            blob, parsed = self._verified(sha8)
            line = Line(
                at=version_log.next_time(log),
                action=action,
                sha8=sha8,
                before=_believed(log, live),
                live=sha8,
                held=hold or (action == "rollback" and log.held),
                version=facts_of(parsed.header),
                sha256=blob.sha256,
                from_serial=self._highest_serial(log, live, parsed.kid),
                serial_kid=parsed.kid,
                recipe=self._recipe,
            )
            self._move(line, live)
        return live

    def _log_to_go_on(self) -> VersionLog:
        """The log that the next line is added to. Lines that could have changed what is done now are told."""
        log = self.log()
        if log.ignored:
            logs.emit(
                events.VERSION_LOG_LINES_IGNORED,
                path=f"{self.uri}.log.jsonl",
                count=len(log.ignored),
                held=log.held,
                reason=log.ignored[0],
            )
        return log

    def _before(self, log: VersionLog, live: str | None) -> str:
        """What a rollback without a target goes to. Raises NoSuchVersion."""
        if live is None:
            raise NoSuchVersion(f"{self.uri} is no pointer to a version, so there is nothing to go back to")
        if log.lines and not log.knows_as_live(live):
            raise NoSuchVersion(
                f"{self.uri} points to {live}, which the signed log does not know as live: somebody else moved it; "
                "name the version with --to"
            )
        found = self._live_before(log, live)
        if found is not None:
            return found
        raise NoSuchVersion(f"there is no version before {live} beside {self.uri}: nothing to go back to")

    def _live_before(self, log: VersionLog, live: str) -> str | None:
        """The last version that was live before `live` and is there, else the next older one."""
        names = self._names(log)
        return next((sha8 for sha8 in log.before(live) if sha8 in names), None) or self._older_than(live)

    def _older_than(self, live: str) -> str | None:
        """The newest version that was trained before `live`, and was not refused."""
        known = [version for version in self.history() if version.trained_at is not None]
        place = next((place for place, version in enumerate(known) if version.sha8 == live), len(known))
        return next((version.sha8 for version in known[place + 1 :] if version.decision != "refused"), None)

    def _highest_serial(self, log: VersionLog, live: str | None, kid: str) -> int | None:
        """The highest serial of `kid` so far, as the log and the live version tell; None without serials.

        Of another key's serials no line tells but those of the key that signs now: another one may have got out.
        """
        told = [line for line in log.lines if line.kid in (kid, self._keys.active[0])]
        serials = [serial for line in told for serial in _serials(line, kid)]
        try:
            parsed = self._verified(live)[1] if live else None
            now = serial_of(parsed.header) if parsed is not None and parsed.kid == kid else None
        except ArtifactError:
            now = None  # a damaged version is what one goes back from
        return max([*serials, *([] if now is None else [now])], default=None)

    def _verified(self, sha8: str) -> tuple[Blob, Parsed]:
        """The version `sha8` of this recipe, which its signature proves. Raises NoSuchVersion and ArtifactError."""
        blob = self._store.read_version(sha8, self._settings.max_artifact_bytes)
        try:
            parsed = verified(blob, self._keys, self._settings)
            self._require_own(parsed)
        except ArtifactError as error:
            raise located(error, blob.resolved) from None
        return blob, parsed

    def _require_own(self, parsed: Parsed) -> None:
        if self._recipe is None:
            return
        trained_for = recipe_of(parsed.header, self._recipe)
        if trained_for != self._recipe:
            raise ArtifactMisplaced(
                f"the version was trained for the recipe {trained_for}, not for {self._recipe}: train this recipe, or "
                f"go to a version of its own"
            )

    def _move(self, line: Line, live: str | None) -> None:
        """Write the line, and point to what it makes live unless `live`, which the pointer names, is that already."""
        data = bytes(self._store.read_log(MAX_LOG_BYTES))
        log = version_log.parse(data, self._keys, self._recipe)
        signature = self._settings.artifact_signature
        self._store.write_log(version_log.appended(data, log, line, self._keys, signature))
        if line.live is not None and line.live != live:
            self._store.point_to(line.live)

    def _tidy(self, keep: int) -> None:
        """Remove what is older than the newest `keep`; never the live version nor the one before it.

        A version without a line that was trained since the log began may be another training's, about to become live.
        """
        log, live = self.log(), self.live()
        known = [version for version in self.history() if version.trained_at is not None]
        order = [version.sha8 for version in known if self._is_settled(version, log)]
        kept = {*order[:keep], live, self._live_before(log, live) if live else None}
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


def _believed(log: VersionLog, live: str | None) -> str | None:
    """`live`, which an unsigned pointer names, as far as the log knows it; all of it while there is no log."""
    return live if not log.lines or log.knows_as_live(live) else None


def _serials(line: Line, kid: str) -> Iterator[int]:
    """The serials of `kid` that a line tells: the highest before a move, and that of its version."""
    if (line.serial_kid or line.kid) == kid:
        for serial in (line.from_serial, line.version.get("serial")):
            if type(serial) is int and 0 <= serial <= MAX_SERIAL:
                yield serial


def _told(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: (facts or {}).get(name) for name in (*_FACTS, "decision")}
