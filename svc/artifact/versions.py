"""List, publish, promote and roll back the versions of a recipe's artifact.

A command writes its log line first and then moves the pointer, under a lock on this host. If it is killed between the
two, the earlier version stays live, because the pointer alone decides which version is live. But the last line alone
decides whether a hold is set, so its change of the hold takes effect nevertheless.

The pointer, the files and the log are untrusted, because everyone who can write to the store can change them. `promote`
and `rollback` move the pointer only to a version with a valid signature, a sha256 that matches its name, and a header
that names no other recipe (if the recipe's name is known). `publish` moves it to the version that it has just written.

A new line takes its facts from signed lines, from verified artifacts, and from the training that writes it. The pointer
is trusted only by the first line of a log, for the version that was live before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, BinaryIO

from svc import events, logs
from svc.artifact import version_log
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Parsed, Written
from svc.artifact.lock import run_lock
from svc.artifact.replay import recipe_of, serial_of
from svc.artifact.store import Blob, Published, Store, locate_error, open_store, verify_blob
from svc.artifact.version_log import Action, Line, VersionLog
from svc.errors import ArtifactError, ArtifactMisplaced, ArtifactWriteError, NoSuchVersion
from svc.settings import Settings

_LOCK_TIMEOUT_S = 60.0
_MOST_LISTED = 10
_FACTS = ("trained_at", "best_class", "best_score", "rank_ms")


@dataclass(frozen=True, slots=True)
class Version:
    """One trained version of a recipe. Facts are None when neither the log nor the artifact has them.

    `held` is True for the live version if a hold keeps trainings from replacing it. For a refit, `reused_from` has the
    `sha8` of the version whose parameters it reused, and `searched_at`, the time of their search. For a training with a
    search it is None.
    """

    sha8: str
    trained_at: str | None
    best_class: str | None
    best_score: float | None
    rank_ms: float | None
    decision: str | None
    live: bool
    held: bool
    reused_from: Mapping[str, str] | None = None
    score_with_order: float | None = None

    def as_fields(self) -> dict[str, Any]:
        """Return the fields for JSON. `reused_from` and `score_with_order` are left out if they are None."""
        optional = ("reused_from", "score_with_order")
        return {name: value for name, value in asdict(self).items() if name not in optional or value is not None}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A version that `old` names, its replacement, or None before it is written, and whether it is live."""

    old: str
    new: str | None
    live: bool


Rewrite = Callable[[Parsed], Callable[[BinaryIO], Written] | None]
"""Returns the writer of a version's replacement, or None for a version that stays."""


def facts_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a version that its log line records."""
    promotion = header.get("promotion")
    decision = promotion.get("decision") if isinstance(promotion, Mapping) else None
    serial = {"serial": header["serial"]} if "serial" in header else {}
    tuning = header.get("tuning")
    reused = tuning.get("reused_from") if isinstance(tuning, Mapping) else None
    refit = {"reused_from": reused} if isinstance(reused, Mapping) else {}
    ordered = {name: header[name] for name in ("score_with_order",) if name in header}
    return {**{name: header.get(name) for name in _FACTS}, **ordered, "decision": decision, **serial, **refit}


class Versions:
    """The versions of the recipe whose pointer is at `uri`. `keys` verify versions and sign the log.

    With a `recipe` name, versions and lines of other recipes are refused.
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
        return version_log.parse(self._store.read_log(), self._keys, self._recipe)

    def live(self) -> str | None:
        """Return the version that the pointer names, or None without a pointer."""
        return self._store.live()

    def history(self, headers: Mapping[str, Mapping[str, Any]] | None = None) -> list[Version]:
        """Return all existing versions, newest first.

        The facts of versions without a log line are read from the artifact, or taken from verified `headers` by sha8.
        """
        log, live = self.log(), self.live()
        names = self._names(log)
        facts = {sha8: self._facts(sha8, log, headers) for sha8 in names}
        # Of versions with equal times, the one that `_names` lists last is the newest.
        order = sorted(names, key=lambda sha8: str(facts[sha8]["trained_at"] or ""))[::-1]
        return [Version(sha8, **facts[sha8], live=sha8 == live, held=sha8 == live and log.held) for sha8 in order]

    def _names(self, log: VersionLog) -> list[str]:
        """Return the existing versions: first those without a log line, then the others in the order of the log.

        If the store cannot list its objects, versions without a line are missing.
        """
        logged = list(dict.fromkeys(line.sha8 for line in log.lines))
        listed = self._store.versions()
        if listed is None:  # a web server cannot list its objects
            return [sha8 for sha8 in logged if self._store.has_version(sha8)]
        live = self.live()  # trained_at has whole seconds. Among equal times the live version counts as the newest.
        unlogged = sorted(listed - set(logged), key=lambda sha8: (sha8 == live, sha8))
        return [*unlogged, *(sha8 for sha8 in logged if sha8 in listed)]

    def _facts(
        self, sha8: str, log: VersionLog, headers: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        facts = log.facts(sha8)
        if facts is None and headers is not None:
            facts = facts_of(headers.get(sha8, {}))
        elif facts is None:
            try:
                facts = facts_of(self._read_verified(sha8)[1].header)
            except ArtifactError:
                facts = {}  # a damaged version stays in the list, without facts
        return _as_facts(facts)

    def problems(self) -> list[str]:
        """Return a message for each problem of the log and the versions.

        Problems are changed, missing and misplaced lines, a pointer that differs from the last line, versions that were
        trained after the log began and have no line, and versions under a wrong name or of another recipe.
        """
        log, live = self.log(), self.live()
        problems = [*log.problems, *self._misplaced_versions(log)]
        if log.lines and log.lines[-1].live != live:
            problems.append(
                f"the last line says that {log.lines[-1].live} is live, the pointer says {live}: the last lines are "
                "missing, the pointer was moved by hand, or a command was killed; `svc promote` sets both anew"
            )
        logged = {line.sha8 for line in log.lines}
        for sha8 in self._names(log) if log.lines else ():
            began, written = log.lines[0].at, str(self._facts(sha8, log).get("trained_at") or "")
            # `trained_at` has whole seconds and sorts before fractions of them, so a version of the first second needs
            # no line.
            if sha8 not in logged and sha8 != log.lines[0].before and written > began:
                problems.append(
                    f"version {sha8} was trained after the log began, and has no line: lines are missing, or a "
                    f"training was killed before it wrote one; `svc promote` of {sha8} writes one"
                )
        return problems

    def _misplaced_versions(self, log: VersionLog) -> Iterator[str]:
        """Yield a problem for each version with content that does not match its name or recipe."""
        for sha8 in self._names(log):
            try:
                self._read_verified(sha8)
            except ArtifactMisplaced as error:
                yield f"version {sha8}: {error.message}"
            except ArtifactError:
                continue  # a damaged version, or one signed with a removed key, cannot become live

    def publish(
        self, write: Callable[[BinaryIO], Written], header: Mapping[str, Any], *, move: bool, keep: int | None
    ) -> Published:
        """Write a new version. If `move` is True and no hold is set, make the version live.

        If there is no pointer yet, a hold does not prevent this. With `keep`, older versions than the newest `keep` are
        removed (see `_tidy`).

        Raises LockContestedError if the version log stays locked, and ConfigError if its lock cannot be created or no
        key can sign. Also raises ArtifactWriteError and ArtifactError. After an error the new version is removed if
        possible, unless it is live or the log has a line about it.
        """
        # Written before the lock is taken, because writing a large artifact takes long and would delay a rollback.
        sha8, written = self._store.put_version(write)
        with self._withdrawn_on_error([sha8]), self._lock():
            log, live = self._log_to_continue(), self.live()
            # With a clock behind, this host writes a version that looks older than the log, and another host may tidy
            # it away.
            if not self._store.has_version(sha8):
                raise ArtifactWriteError(
                    f"another training removed the new version {sha8}: set the hosts' clocks right"
                )
            promoted = move and not (log.held and live is not None)
            before = _confirmed_live(log, live)
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
                # After the pointer moved: a server that followed the old one reads it again if its version is gone.
                self._tidy(keep)
        held = log.held and not promoted
        pointer = self.uri if promoted else None
        return Published(self._store.uri_of_version(sha8), pointer, written, promoted, held, line.live)

    @contextmanager
    def _withdrawn_on_error(self, written: Sequence[str]) -> Iterator[None]:
        """If the block fails, remove the `written` versions that are not live and have no line in the log.

        A version without a line would look as if somebody had deleted the line.
        """
        try:
            yield
        except BaseException:
            for sha8 in written:
                with suppress(ArtifactError):  # the caller raises the first error
                    if self.log().facts(sha8) is None and self.live() != sha8:
                        self._store.remove_version(sha8)
            raise

    def promote(self, sha8: str) -> str | None:
        """Make `sha8` live, end a hold and return the formerly live version, or None if there was no pointer.

        Raises NoSuchVersion, ArtifactError, ArtifactWriteError, LockContestedError, and ConfigError as `publish`.
        """
        return self._make_live("promote", lambda _log, _live: sha8, hold=False)[1]

    def find_version(self, prefix: str) -> str:
        """Return the only version that begins with `prefix`.

        If the store cannot list its versions, `prefix` is taken for the whole name. Raises NoSuchVersion, which lists
        the newest versions, if `prefix` is empty, or if no version or several versions begin with it.
        """
        listed = self._store.versions()
        if listed is None or prefix in listed:
            return prefix
        matches = sorted(sha8 for sha8 in listed if sha8.startswith(prefix.lower()))
        if prefix and len(matches) == 1:
            return matches[0]
        newest = ", ".join(version.sha8 for version in self.history()[:_MOST_LISTED]) or "none"
        why = f"{len(matches)} versions begin" if matches else "no version begins"
        raise NoSuchVersion(f"{why} with {prefix!r} beside {self.uri}; newest of all versions: {newest}")

    def rollback(self, to: str | None, *, hold: bool) -> tuple[str, str | None]:
        """Go back to `to`, else to the previously live version. If the log names none, go to the next older version.

        A version that was refused is not taken for the next older one. Returns the new and the former live version.

        With `hold`, later trainings do not move the pointer. An existing hold stays in any case. Raises NoSuchVersion,
        ArtifactError, ArtifactWriteError, LockContestedError, and ConfigError as `publish`.
        """
        return self._make_live("rollback", lambda log, live: to or self._rollback_target(log, live), hold=hold)

    def rewrite_all(self, rewrite: Rewrite, facts: Mapping[str, Any], *, dry_run: bool) -> list[Rewritten]:
        """Replace each version by what `rewrite` makes of it, move the pointer along, and remove the old files.

        `facts` go into the log line of each new version. The writer of `rewrite` must write the same bytes each time,
        so that a run after a killed one ends its work. New files are written first, then lines and pointer, then old
        files are removed.

        Raises ArtifactError if a version cannot be verified, and ArtifactWriteError. No line is written then.
        """
        with self._lock():
            log, live = self._log_to_continue(), self.live()
            done: list[Rewritten] = []
            written: list[str] = []
            with self._withdrawn_on_error(written):
                for sha8 in self._names(log):
                    write = rewrite(self._read_verified(sha8)[1])
                    if write is not None:
                        new = None if dry_run else self._store.put_version(write)[0]
                        written += [] if new is None else [new]
                        done.append(Rewritten(sha8, new, live=sha8 == live))
            if not dry_run:
                for version in done:  # in the order of the old lines, which orders versions of equal times
                    self._log_rewritten(version, facts)
                for version in done:
                    self._store.remove_version(version.old)
        return done

    def _log_rewritten(self, version: Rewritten, facts: Mapping[str, Any]) -> None:
        """Log a new version, and make it live if the version that it replaces is."""
        log, live = self.log(), self.live()
        assert version.new is not None, "it has been written"
        line = self._line_of(version.new, log, live, action="forget", held=log.held)
        becomes = line.live if version.live else line.before
        self._move(replace(line, live=becomes, version={**line.version, **facts, "replaces": version.old}), live)

    def rewrite_single(self, rewrite: Rewrite, *, dry_run: bool) -> list[Rewritten]:
        """Replace the only artifact of a recipe that overwrites it. As `rewrite_all`, without a log."""
        blob = self._store.read(self._settings.max_artifact_bytes)
        parsed = verify_blob(blob, self._keys, self._settings)
        self._require_own(parsed)
        write = rewrite(parsed)
        if write is None:
            return []
        new = None if dry_run else self._store.publish(write, "always_overwrite").sha8
        return [Rewritten(blob.sha256[:8], new, live=True)]

    def _make_live(
        self, action: Action, choose: Callable[[VersionLog, str | None], str], *, hold: bool
    ) -> tuple[str, str | None]:
        """Log the move to the version that `choose` returns, then move the pointer.

        Returns the new and the former live version.
        """
        with self._lock():
            log, live = self._log_to_continue(), self.live()
            sha8 = choose(log, live)
            held = hold or (action == "rollback" and log.held)
            self._move(self._line_of(sha8, log, live, action=action, held=held), live)
        return sha8, live

    def _line_of(self, sha8: str, log: VersionLog, live: str | None, *, action: Action, held: bool) -> Line:
        """Return the line by which a version becomes live. Raises ArtifactError unless the version is verified."""
        blob, parsed = self._read_verified(sha8)
        return Line(
            at=version_log.next_time(log),
            action=action,
            sha8=sha8,
            before=_confirmed_live(log, live),
            live=sha8,
            held=held,
            version=facts_of(parsed.header),
            sha256=blob.sha256,
            from_serial=self._highest_serial(log, live, parsed.kid),
            serial_kid=parsed.kid,
            recipe=self._recipe,
        )

    def _log_to_continue(self) -> VersionLog:
        """Return the log before the next line is written.

        Logs an event if invalid lines after the last valid line are ignored.
        """
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

    def _rollback_target(self, log: VersionLog, live: str | None) -> str:
        """Return the target of a rollback without `to`. Raises NoSuchVersion."""
        if live is None:
            raise NoSuchVersion(f"{self.uri} is not a pointer to a version, so there is nothing to go back to")
        if log.lines and not log.knows_as_live(live):
            raise NoSuchVersion(
                f"{self.uri} points to {live}, which the signed log does not know as live: somebody else moved it; "
                "name the version with --to"
            )
        earlier = self._live_before(log, live)
        if earlier is not None:
            return earlier
        raise NoSuchVersion(f"there is no version before {live} beside {self.uri}: nothing to go back to")

    def _live_before(self, log: VersionLog, live: str) -> str | None:
        """Return the existing version that was live before `live`, else the next older version, else None."""
        names = self._names(log)
        return next((sha8 for sha8 in log.before(live) if sha8 in names), None) or self._older_than(live)

    def _older_than(self, live: str) -> str | None:
        """Return the newest version that was trained before `live` and was not refused, or None."""
        trained = [version for version in self.history() if version.trained_at is not None]
        index = next((index for index, version in enumerate(trained) if version.sha8 == live), len(trained))
        return next((version.sha8 for version in trained[index + 1 :] if version.decision != "refused"), None)

    def _highest_serial(self, log: VersionLog, live: str | None, kid: str) -> int | None:
        """Return the highest serial of `kid` in the log and the live version, or None without serials.

        Only lines signed by `kid` or by the active key are read, because another key may have been stolen.
        """
        serials = log.serials(kid, {kid, self._keys.active[0]})
        try:
            parsed = self._read_verified(live)[1] if live else None
            live_serial = serial_of(parsed.header) if parsed is not None and parsed.kid == kid else None
        except ArtifactError:
            live_serial = None  # a damaged live version is a reason to roll back, so it must not prevent a rollback
        return max([*serials, *([] if live_serial is None else [live_serial])], default=None)

    def _read_verified(self, sha8: str) -> tuple[Blob, Parsed]:
        """Read and verify the version `sha8` of this recipe. Raises NoSuchVersion and ArtifactError."""
        blob = self._store.read_version(sha8, self._settings.max_artifact_bytes)
        try:
            parsed = verify_blob(blob, self._keys, self._settings)
            self._require_own(parsed)
        except ArtifactError as error:
            raise locate_error(error, blob.resolved) from None
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
        """Append the line to the log, then move the pointer from the version `live` to `line.live` if they differ."""
        # Parsed again, because a writer without the lock may have added a line, whose signature the next line repeats.
        data = self._store.read_log()
        log = version_log.parse(data, self._keys, self._recipe)
        signature = self._settings.artifact_signature
        # The whole log is written again, because object stores cannot append.
        self._store.write_log(version_log.append_line(data, log, line, self._keys, signature))
        if line.live is not None and line.live != live:
            self._store.point_to(line.live)

    def _tidy(self, keep: int) -> None:
        """Remove versions older than the newest `keep`, except the live version and the rollback target.

        Versions without a known `trained_at` are kept. So is a version without a line that was trained after the log
        began, because a concurrent training may be publishing it.
        """
        log, live = self.log(), self.live()
        trained = [version for version in self.history() if version.trained_at is not None]
        order = [version.sha8 for version in trained if self._is_settled(version, log)]
        kept = {*order[:keep], live, self._live_before(log, live) if live else None}
        for sha8 in order:
            if sha8 not in kept:
                self._store.remove_version(sha8)

    def _is_settled(self, version: Version, log: VersionLog) -> bool:
        return log.facts(version.sha8) is not None or str(version.trained_at) < log.lines[0].at

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the log.

        A training does not hold it before its version is written, so that a long training does not delay a rollback.
        """
        with run_lock(f"{self._uri}.log.jsonl", timeout_s=_LOCK_TIMEOUT_S, settings=self._settings):
            yield


def _confirmed_live(log: VersionLog, live: str | None) -> str | None:
    """Return `live` if the signed log confirms it or is empty, else None, because the pointer is unsigned."""
    return live if not log.lines or log.knows_as_live(live) else None


def _as_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    version_facts: dict[str, Any] = {name: facts.get(name) for name in (*_FACTS, "decision", "score_with_order")}
    reused = facts.get("reused_from")
    if isinstance(reused, Mapping) and {"sha8", "searched_at"} <= reused.keys():
        version_facts["reused_from"] = {name: str(reused[name]) for name in ("sha8", "searched_at")}
    return version_facts
