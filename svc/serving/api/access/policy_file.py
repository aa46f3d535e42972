"""The file of `SVC_API_KEY_POLICIES`, which is read at the start and after each change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import trio

from svc import events, logs
from svc.errors import ConfigError
from svc.recipe.yaml_reader import MAX_BYTES
from svc.serving.api.access.key_policies import KeyPolicy, parse_policies


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
        self._marker: tuple[int, ...] | None = None
        self._error: str | None = None

    def read(self) -> None:
        """Read the file at the start. Raises ConfigError."""
        self._use(self._read())

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
            policies = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        except ConfigError as error:
            message = error.message
        except RuntimeError as error:  # the system cannot start another thread
            self._marker, message = None, f"SVC_API_KEY_POLICIES: {self._path} cannot be read: {error}"
        else:
            self._use(policies)
            return
        if self._marker is not None or message != self._error:
            self._error = message
            logs.emit(events.KEY_POLICIES_FAILED, error=message)

    def _use(self, policies: Mapping[str, KeyPolicy] | None) -> None:
        """Pass the policies on, if the file has changed."""
        if policies is None:
            return
        self._error = None
        for use in self._uses:
            use(policies)
        kids_of_keys = self._kids()
        unknown = sorted(kid for kid in policies if kid not in kids_of_keys)
        logs.emit(events.KEY_POLICIES_LOADED, policies=len(policies), unknown_kids=unknown)
        if unknown:
            logs.emit(events.KEY_POLICIES_WITHOUT_KEY, unknown_kids=unknown)

    def _read(self) -> Mapping[str, KeyPolicy] | None:
        """Return the policies, or None if the file is unchanged. Raises ConfigError."""
        try:
            status = self._path.stat()  # before the read, so that the next check notices a write in between
            marker = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if marker == self._marker:
                return None
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._marker = None  # the file may become readable without a change
            raise ConfigError(f"SVC_API_KEY_POLICIES: {self._path} cannot be read: {error.strerror}") from None
        self._marker = marker
        return parse_policies(content, str(self._path))
