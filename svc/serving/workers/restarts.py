"""Pauses before a worker is restarted, and detection of silent workers. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

EARLY_S = 1.0
"""A worker that ends sooner than this after it became ready counts as an early death."""
EARLY_DEATHS_ALLOWED = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
BEAT_S = 0.25
"""Seconds between heartbeats of a worker, and between the parent's checks."""
SILENT_CHECKS = 20
"""Checks without a new heartbeat after which a worker counts as hanging.

Not seconds, because the workers of a suspended machine do not hang."""
DOUBTFUL_CHECKS = 3
"""After this many checks without a new heartbeat, other workers accept without waiting for the silent one."""


@dataclass(slots=True)
class Pauses:
    """Pauses before a slot's next worker starts: 0 at first, then longer with each early death in a row."""

    early_deaths: int = 0

    def after(self, served_s: float) -> float:
        """Return the pause in seconds after the death of a worker that was ready for `served_s`."""
        self.early_deaths = self.early_deaths + 1 if served_s < EARLY_S else 0
        if self.early_deaths <= EARLY_DEATHS_ALLOWED:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2 ** (self.early_deaths - EARLY_DEATHS_ALLOWED - 1), LONGEST_PAUSE_S))

    @property
    def is_failing(self) -> bool:
        """True while each pause is longer than the last."""
        return self.early_deaths > EARLY_DEATHS_ALLOWED


@dataclass(slots=True)
class Pulse:
    """The heartbeats of one worker. `quiet_checks` counts the last checks in a row without a new heartbeat."""

    beats: int = -1
    quiet_checks: int = field(default=0)

    def check(self, beats: int) -> None:
        self.quiet_checks = self.quiet_checks + 1 if beats == self.beats else 0
        self.beats = beats

    @property
    def is_doubtful(self) -> bool:
        return self.quiet_checks >= DOUBTFUL_CHECKS

    @property
    def is_silent(self) -> bool:
        return self.quiet_checks >= SILENT_CHECKS
