"""Signals as an exception with the exit code that shells expect."""

from __future__ import annotations

import os
import signal

import pytest

from svc.cli.common.signals import Interrupted, interrupts


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_is_raised_in_the_main_thread(number: signal.Signals, code: int) -> None:
    """The signal becomes an exception, so cleanup runs as after any exception. The handlers are restored afterwards."""
    before = signal.signal(number, signal.default_int_handler)  # the tests themselves may run under nohup
    try:
        with pytest.raises(Interrupted) as caught, interrupts():
            os.kill(os.getpid(), number)
            signal.pause()
        assert caught.value.exit_code == code
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_nohup_is_respected() -> None:
    """An ignored hang-up does not end the command."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
