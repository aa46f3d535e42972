"""The file of `SVC_API_KEY_POLICIES`, which is read at the start and after each change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import trio

from svc import events, logs
from svc.errors import ConfigError
from svc.recipe.yaml_reader import MAX_BYTES
from svc.serving.api.access.key_policies import KeyPolicy, parse_policies

Marker = tuple[int, ...] | None
PoliciesOrError = Mapping[str, KeyPolicy] | ConfigError


class PolicyFile:
    """Watches the file, and calls each of `uses` with its policies.

    `kids` returns the kids of all keys. Policies for other kids are logged.
    """

    def __init__(
        self,
        path: str,
        *uses: Callable[[Mapping[str, KeyPolicy]], None],
        kids: Callable[[], Collection[str]],
        interval_s: float,
    ) -> None:
        self._path = Path(path)
        self._uses = uses
        self._kids = kids
        self._interval_s = interval_s
        self._marker: Marker = None
        self._error: str | None = None

    def read(self) -> None:
        """Read the file at the start. Raises ConfigError."""
        self._marker, policies = self._read()
        if isinstance(policies, ConfigError):
            raise policies
        self._use(policies)

    async def run(self) -> None:
        """Check for changes every `interval_s`, until cancelled.

        An unusable file changes nothing, and is logged once for each change. Waits for a read that hangs. Repeats a
        read that fails.
        """
        while True:
            await trio.sleep(self._interval_s)
            await self._check()

    async def _check(self) -> None:
        try:
            changed = await trio.to_thread.run_sync(self._read_if_changed, abandon_on_cancel=True)
        except RuntimeError as error:  # the system cannot start another thread
            changed = None, ConfigError(f"SVC_API_KEY_POLICIES: {self._path} cannot be read: {error}")
        if changed is None:
            return
        self._marker, policies = changed
        if not isinstance(policies, ConfigError):
            self._error = None
            self._use(policies)
        elif self._marker is not None or policies.message != self._error:
            self._error = policies.message
            logs.emit(events.KEY_POLICIES_FAILED, error=policies.message)

    def _use(self, policies: Mapping[str, KeyPolicy]) -> None:
        for use in self._uses:
            use(policies)
        kids_of_keys = self._kids()
        unknown = sorted(kid for kid in policies if kid not in kids_of_keys)
        logs.emit(events.KEY_POLICIES_LOADED, policies=len(policies), unknown_kids=unknown)
        if unknown:
            logs.emit(events.KEY_POLICIES_WITHOUT_KEY, unknown_kids=unknown)

    def _read_if_changed(self) -> tuple[Marker, PoliciesOrError] | None:
        return None if self._marker == self._mark() else self._read()

    def _read(self) -> tuple[Marker, PoliciesOrError]:
        """Return the marker of the file, and its policies or the error."""
        marker = self._mark()  # before the read, so that the next check notices a write in between
        try:
            with self._path.open("rb") as file:
                return marker, parse_policies(file.read(MAX_BYTES + 1), str(self._path))
        except OSError as error:  # no marker, because the file may become readable without a change
            return None, ConfigError(f"SVC_API_KEY_POLICIES: {self._path} cannot be read: {error.strerror}")
        except ConfigError as error:
            return marker, error

    def _mark(self) -> Marker:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
