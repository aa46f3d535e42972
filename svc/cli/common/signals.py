"""SIGINT, SIGTERM and SIGHUP as an exception in the main thread, for commands that must clean up before they end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal that asks this command to end.

    As a `KeyboardInterrupt` it passes every `except Exception`.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """Return the exit code that a shell reports for a process that the signal ended: 130, 143 or 129."""
        return 128 + self.signum


def _raise(signum: int, _frame: FrameType | None) -> None:
    raise Interrupted(signum)


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise `Interrupted` in the main thread for these signals inside the block.

    The previous handlers are restored after the block. An ignored SIGHUP stays ignored: nohup started the command.
    """
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    previous = {signum: signal.signal(signum, _raise) for signum in SIGNALS if signum not in ignored}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
