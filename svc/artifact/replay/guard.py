"""Refuses expired artifacts, and with SVC_STATE_DIR artifacts that are older than one served before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Parsed
from svc.artifact.replay import freshness
from svc.artifact.replay.serials import SerialState
from svc.artifact.store import Blob, Store
from svc.errors import ArtifactReplayed
from svc.settings import Settings


@dataclass(frozen=True, slots=True)
class ReplayGuard:
    """Thread-safe. Without a state, only expiry is checked."""

    state: SerialState | None = None

    @classmethod
    def of(cls, settings: Settings) -> ReplayGuard:
        return cls(SerialState(Path(settings.state_dir)) if settings.state_dir is not None else None)

    def check(self, name: str, parsed: Parsed, blob: Blob, store: Store, keys: SigningKeys) -> None:
        """Check that a verified artifact is new enough.

        Raises ArtifactExpired, and ArtifactReplayed for a serial below the highest of its recipe and kid, or for none
        where there was one, unless a signed rollback names the artifact.
        """
        freshness.require_unexpired(parsed.header, datetime.now(UTC))
        serial = freshness.serial_of(parsed.header)
        if self.state is None:
            return
        trained_for = freshness.recipe_of(parsed.header, name)
        highest = self.state.highest(trained_for, parsed.kid)
        if highest is None or (serial is not None and serial >= highest):
            return
        if trained_for == name:  # a log line permits versions of its own recipe only
            lines = freshness.verified_lines(store.read_log(freshness.MAX_LOG_BYTES), keys)
            lines = freshness.about(lines, recipe=name, kid=parsed.kid)
            if freshness.is_rolled_back_to(blob.sha256, highest, lines):
                return
        logs.emit(events.ARTIFACT_REPLAYED, name=name, kid=parsed.kid, serial=serial, highest=highest)
        raise ArtifactReplayed(
            f"an older artifact: its serial is {serial}, and {highest} was served before under the kid {parsed.kid}; "
            "train again, or go back with `svc rollback`"
        )

    def passed(self, name: str, parsed: Parsed) -> None:
        """Record the serial. Call this after all other checks of the artifact have passed."""
        serial = freshness.serial_of(parsed.header)
        if self.state is not None and serial is not None:
            self.state.remember(freshness.recipe_of(parsed.header, name), parsed.kid, serial)
