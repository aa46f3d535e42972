"""Work in a thread: its result, its error, and signals in the meantime."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from svc.cli.common import Interrupted, interrupts
from svc.training.fitting.run_in_thread import run_in_thread


def test_the_result_and_the_error_of_the_work_are_passed_on() -> None:
    assert run_in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_in_thread(lambda: 1 // 0)


def test_a_signal_ends_the_wait_while_the_work_continues() -> None:
    """The work never ends by itself, so only the signal can end the wait."""
    until_tested = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until_tested.wait()

    with pytest.raises(Interrupted), interrupts():
        run_in_thread(work)
    until_tested.set()
