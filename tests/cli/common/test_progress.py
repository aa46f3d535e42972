"""The progress bar of a command: drawn on terminals only."""

from __future__ import annotations

import io
import sys

import pytest

from svc import events, logs
from svc.cli.common.progress import progress_for
from svc.settings import Settings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace standard error by a terminal of 120 columns.

    A fixture would not do: pytest sets its own between phases.
    """
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_log_lines_are_printed_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log line stays on the terminal, and markup in it is not interpreted."""
    terminal = make_terminal(monkeypatch)
    with progress_for(Settings(log_format="console")) as progress:
        assert progress is not None
        progress.phase("searching")
        logs.emit(events.REPORT_WRITTEN, path="[bold]40[/bold]")
    shown = terminal.getvalue()
    assert "searching" in shown
    assert "[bold]40[/bold]" in shown


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """If standard error is no terminal, only log lines are written."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_for(Settings()) as progress:
        assert progress is None
    assert stream.getvalue() == ""


def test_json_logs_on_a_terminal_get_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """With JSON logs a terminal gets JSON lines only."""
    terminal = make_terminal(monkeypatch)
    with progress_for(Settings(log_format="json")) as progress:
        assert progress is None
    assert terminal.getvalue() == ""
