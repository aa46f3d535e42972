"""Work beside the main thread: its result, its error, and signals that are heard meanwhile."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from svc.cli.common.signals import Interrupted, interrupts
from svc.training.fitting.run_in_thread import run_in_thread


def test_it_returns_and_raises_what_the_work_does() -> None:
    assert run_in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_in_thread(lambda: 1 // 0)


def test_a_signal_is_heard_while_the_work_goes_on() -> None:
    """The work never ends by itself, so only the signal can end the wait."""
    until_tested = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until_tested.wait()

    with pytest.raises(Interrupted), interrupts():
        run_in_thread(work)
    until_tested.set()
