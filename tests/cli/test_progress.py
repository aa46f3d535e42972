"""What a terminal shows during a run, and what a pipe does not."""

from __future__ import annotations

import io
import sys

import pytest

from svc.cli.progress import ExportBar, TerminalProgress, bar_for, progress_for
from svc.export.progress import State
from svc.settings import Settings
from svc.training.progress import NullProgress


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


def test_phases_rows_and_trials_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar says what is done: rows read, trials with the best score so far."""
    terminal = make_terminal(monkeypatch)
    progress = TerminalProgress()
    progress.phase("reading")
    progress.rows(1_000_000)
    progress.rows(234_567)
    progress.close()
    assert "1,234,567 rows" in terminal.getvalue()

    progress = TerminalProgress()
    progress.phase("searching")
    progress.trial(3, 16, 0.12345, "IALSRecommender")
    progress.close()
    assert "3/16 trials, best 0.1235 (IALSRecommender)" in terminal.getvalue()


def test_an_export_shows_its_rows_and_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bar as that of a training; log lines go through it while it is shown, and it is gone at the end."""
    terminal = make_terminal(monkeypatch)
    with bar_for(Settings(log_format="console"), ExportBar) as bar:
        assert isinstance(bar, ExportBar)
        bar(State(done=250, total=1000, rows=5000, seconds=2.0))
    shown = terminal.getvalue()
    assert "recommending" in shown
    assert "5,000 rows, 2,500 a second" in shown


def test_log_lines_are_printed_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is whole and stays; markup in it is text."""
    terminal = make_terminal(monkeypatch)
    progress = TerminalProgress()
    progress.phase("searching")
    progress.write_line("found [bold]40[/bold] of /a/path")
    progress.close()
    assert "found [bold]40[/bold] of /a/path" in terminal.getvalue()


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only log lines go to standard error where nobody watches."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_for(Settings()) as progress:
        progress.phase("searching")
        progress.trial(1, 2, None, None)
    assert isinstance(progress, NullProgress)
    assert stream.getvalue() == ""


def test_json_on_a_terminal_means_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for JSON, a terminal gets JSON lines and nothing else."""
    terminal = make_terminal(monkeypatch)
    with progress_for(Settings(log_format="json")) as progress:
        progress.phase("searching")
    assert isinstance(progress, NullProgress)
    assert terminal.getvalue() == ""
