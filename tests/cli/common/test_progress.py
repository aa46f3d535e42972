"""What a terminal shows during a run, and what a pipe does not."""

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
    """Standard error as a terminal of 120 columns, from within a test: pytest sets its own between phases."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_log_lines_are_printed_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is whole and stays; markup in it is text. The bar is gone at the end."""
    terminal = make_terminal(monkeypatch)
    with progress_for(Settings(log_format="console")) as progress:
        assert progress is not None
        progress.phase("searching")
        logs.emit(events.REPORT_WRITTEN, path="[bold]40[/bold]")
    shown = terminal.getvalue()
    assert "searching" in shown
    assert "[bold]40[/bold]" in shown


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only log lines go to standard error where nobody watches."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_for(Settings()) as progress:
        assert progress is None
    assert stream.getvalue() == ""


def test_json_on_a_terminal_means_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for JSON, a terminal gets JSON lines and nothing else."""
    terminal = make_terminal(monkeypatch)
    with progress_for(Settings(log_format="json")) as progress:
        assert progress is None
    assert terminal.getvalue() == ""
