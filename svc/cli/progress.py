"""What a terminal shows while a run works: the phase, rows read, trials done with the best score, time left.

Log lines are printed above the bar. Where standard error is no terminal, nothing but the log is written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svc import logs
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.training.progress import Progress


@contextmanager
def progress_for(settings: Settings) -> Iterator[Progress]:
    """Set up logging, and a live bar if people watch. The bar is gone and the last line written on leaving."""
    if not (logs.wants_console(settings) and sys.stderr.isatty()):
        from svc.training.progress import NullProgress

        logs.configure(settings)
        yield NullProgress()
        return
    progress = TerminalProgress()
    logs.configure(settings, write=progress.write_line)
    try:
        yield progress
    finally:
        progress.close()
        logs.configure(settings)


class TerminalProgress:
    """A rich bar on standard error. Its calls come from the thread of the run and from trial threads."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, detail="")
        self._rows = 0

    def write_line(self, line: str) -> None:
        """Print one finished log line above the bar."""
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def phase(self, name: str) -> None:
        self._bar.start()
        self._rows = 0
        self._bar.reset(self._task, description=name, total=None, detail="")

    def rows(self, n: int) -> None:
        self._rows += n
        self._bar.update(self._task, detail=f"{self._rows:,} rows")

    def trial(self, done: int, total: int, best_score: float | None, algorithm: str | None) -> None:
        best = "" if best_score is None else f", best {best_score:.4f}" + (f" ({algorithm})" if algorithm else "")
        self._bar.update(self._task, completed=done, total=total, detail=f"{done}/{total} trials{best}")

    def close(self) -> None:
        self._bar.stop()
