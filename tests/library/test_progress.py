"""The line that shows a training in a notebook or on a terminal."""

from __future__ import annotations

import pytest

from svc.library.progress import LineProgress, progress_here


class Shown:
    """Remembers what was shown."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.closed = False

    def show(self, text: str) -> None:
        self.texts.append(text)

    def close(self) -> None:
        self.closed = True


def test_phases_rows_and_trials() -> None:
    """Each phase at once, rows added up, the last trial in any case; in between a few times a second."""
    line, now = Shown(), [100.0]
    progress = LineProgress(line, lambda: now[0])
    progress.phase("reading data")
    for _ in range(1000):
        now[0] += 0.01
        progress.rows(10)
    assert line.texts[0] == "reading data · 0 s"
    assert line.texts[-1] == "reading data · 10,000 rows · 10 s"
    assert 40 <= len(line.texts) <= 60
    progress.phase("searching")
    progress.trial(1, 2, 0.25, "IALS")
    progress.trial(2, 2, 0.5, "TopPop")
    assert line.texts[-1] == "searching · 2/2 trials, best 0.5000 (TopPop) · 10 s"
    assert not any("1/2" in text for text in line.texts)
    progress.close()
    assert line.closed


def test_progress_that_is_wanted_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """As lines; otherwise nothing is written where nobody watches."""
    for wanted, lines in ((True, ["reading data · 0 s", "searching · 0 s"]), (None, []), (False, [])):
        progress = progress_here(wanted)
        progress.phase("reading data")
        progress.rows(5)
        progress.phase("searching")
        progress.close()
        assert capsys.readouterr().err.splitlines() == lines
