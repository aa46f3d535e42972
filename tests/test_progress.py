"""Progress of long work, and its display in terminals, notebooks and files."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest

from svc.progress import Display, Lines, NotebookBar, Progress, State, TerminalBar, progress_here
from tests.cli.test_common import make_terminal


def work(progress: Progress) -> None:
    """Report the progress of a training of two trials."""
    progress.phase("reading data")
    progress.rows(1_000_000)
    progress.rows(234_567)
    progress.phase("searching")
    progress.advance(1, 2, "1/2 trials, best 0.1250 (IALS)")
    progress.advance(2, 2, "2/2 trials, best 0.5000 (TopPop)")
    progress.close()


def test_rows_add_up_until_the_next_phase() -> None:
    """A phase shows its rows, their rate and, if the end is known, the remaining time."""

    class Shown:
        def __init__(self) -> None:
            self.states: list[State] = []

        def show(self, state: State) -> None:
            self.states.append(state)

        def close(self) -> None: ...

    shown, now = Shown(), [100.0]
    progress = Progress(shown, lambda: now[0])
    progress.phase("recommending")
    now[0] = 102.0
    progress.advance(256, 1024, rows=5000)
    assert str(shown.states[-1]) == "recommending · 5,000 rows, 2,500 a second"
    assert (shown.states[-1].rows_per_s, shown.states[-1].seconds_left) == (2500.0, 6.0)
    progress.advance(512, 1024, rows=5000)
    assert shown.states[-1].rows == 10_000
    progress.phase("writing")
    assert shown.states[-1] == State("writing")


@pytest.mark.parametrize("make", [TerminalBar, NotebookBar])
def test_bars_show_phases_rows_and_trials(
    make: Callable[[], Display], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Terminals and notebooks show a bar. A notebook without widgets gets it as text."""
    terminal = make_terminal(monkeypatch)
    display = make()
    progress = Progress(display)
    for begin in (lambda: progress.rows(1_234_567), lambda: progress.advance(2, 2, "2/2 trials, best 0.5000 (TopPop)")):
        progress.phase("searching")
        begin()
    progress.close()
    shown = terminal.getvalue() + capsys.readouterr().out
    assert "searching" in shown
    assert "2/2 trials, best 0.5000 (TopPop)" in shown
    assert make is NotebookBar or "0 s" in shown


def test_lines_say_how_a_phase_begins_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """A phase that lasts longer gets a line at most every ten seconds."""
    now = [100.0]
    progress = Progress(Lines(lambda: now[0]), lambda: now[0])
    progress.phase("reading data")
    for _ in range(240):
        now[0] += 0.0625
        progress.rows(10)
    progress.phase("searching")
    progress.advance(1, 2, "1/2 trials")
    now[0] += 10
    progress.advance(1, 4, "1/4 trials")
    now[0] += 110
    progress.advance(2, 2, "2/2 trials, best 0.5000 (TopPop)")
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "reading data · 0 s",
        "reading data · 1,600 rows, 160 a second · 10 s",
        "searching · 15 s",
        "searching · 1/4 trials · 25 s, 30 s left",
        "searching · 2/2 trials, best 0.5000 (TopPop) · 2 min 15 s",
    ]


def test_requested_progress_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Requested progress is shown as lines. Without the request nothing is written."""
    lines = ["reading data · 0 s", "searching · 0 s", "searching · 2/2 trials, best 0.5000 (TopPop) · 0 s"]
    for wanted, written in ((True, lines), (None, []), (False, [])):
        work(progress_here(wanted))
        assert capsys.readouterr().err.splitlines() == written


def test_notebooks_without_tqdm_get_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A notebook is no terminal, but its user sees the output."""
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    work(progress_here(None))
    assert capsys.readouterr().err.startswith("reading data · 0 s\n")
