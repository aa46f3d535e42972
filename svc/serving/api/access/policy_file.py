"""The file of `SVC_API_KEY_POLICIES`: read at the start, and again whenever it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import trio

from svc import events, logs
from svc.errors import ConfigError
from svc.recipe.yaml_reader import MAX_BYTES
from svc.serving.api.access.key_policies import KeyPolicies, KeyPolicy, parse_policies

Marker = tuple[int, ...] | None
Found = Mapping[str, KeyPolicy] | ConfigError


class PolicyFile:
    """Keeps `policies` in step with the file. `kids` are the existing keys; entries for others are logged."""

    def __init__(
        self, path: str, policies: KeyPolicies, *, kids: Callable[[], Collection[str]], interval_s: float
    ) -> None:
        self._path = Path(path)
        self._policies = policies
        self._kids = kids
        self._interval_s = interval_s
        self._marker: Marker = None

    def read(self) -> None:
        """Read it at the start. Raises ConfigError."""
        self._marker, found = self._look()
        if isinstance(found, ConfigError):
            raise found
        self._use(found)

    async def run(self) -> None:
        """Check for changes every `interval_s`, until cancelled.

        An unusable file changes nothing and is logged once for each change. A read that hangs is waited for.
        """
        while True:
            await trio.sleep(self._interval_s)
            changed = await trio.to_thread.run_sync(self._look_again, abandon_on_cancel=True)
            if changed is None:
                continue
            self._marker, found = changed
            if isinstance(found, ConfigError):
                logs.emit(events.KEY_POLICIES_FAILED, error=found.message)
            else:
                self._use(found)

    def _use(self, found: Mapping[str, KeyPolicy]) -> None:
        self._policies.replace(found)
        known = self._kids()
        unknown = sorted(kid for kid in found if kid not in known)
        logs.emit(events.KEY_POLICIES_LOADED, policies=len(found), unknown_kids=unknown)
        if unknown:
            logs.emit(events.KEY_POLICIES_WITHOUT_KEY, unknown_kids=unknown)

    def _look_again(self) -> tuple[Marker, Found] | None:
        return None if self._marker == self._mark() else self._look()

    def _look(self) -> tuple[Marker, Found]:
        """The marker is taken first, so that a write in between is seen by the next look."""
        marker = self._mark()
        try:
            with self._path.open("rb") as file:
                return marker, parse_policies(file.read(MAX_BYTES + 1), str(self._path))
        except OSError as error:
            return marker, ConfigError(f"SVC_API_KEY_POLICIES: {self._path} cannot be read: {error.strerror}")
        except ConfigError as error:
            return marker, error

    def _mark(self) -> Marker:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
