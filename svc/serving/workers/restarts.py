"""When a lost worker is started again, and which one is silent. Only arithmetic, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

EARLY_S = 1.0
"""A worker that ends sooner than so many seconds after it became ready has died at once."""
EARLY_DEATHS_ALLOWED = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
BEAT_S = 0.25
"""Seconds between two heartbeats of a worker, and between two checks of them."""
SILENT_CHECKS = 20
"""Checks without a new heartbeat after which a worker is taken to hang. Checks, not seconds: while the whole machine is
suspended, nothing is checked either."""
DOUBTFUL_CHECKS = 3
"""Checks without a new heartbeat after which no other worker lets it accept first."""


@dataclass(slots=True)
class Pauses:
    """How long the place of a worker stays empty after a death: not at all, unless it dies at once each time."""

    early_deaths: int = 0

    def after(self, served_s: float) -> float:
        """Return the seconds to wait after a death.

        `served_s` is the time for which the worker was ready, 0 if it never was.
        """
        self.early_deaths = self.early_deaths + 1 if served_s < EARLY_S else 0
        if self.early_deaths <= EARLY_DEATHS_ALLOWED:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2 ** (self.early_deaths - EARLY_DEATHS_ALLOWED - 1), LONGEST_PAUSE_S))

    @property
    def is_failing(self) -> bool:
        """True while the place waits longer and longer."""
        return self.early_deaths > EARLY_DEATHS_ALLOWED


@dataclass(slots=True)
class Pulse:
    """The heartbeats of one worker: `quiet_checks` counts the checks in a row that saw no new one."""

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
