"""What a terminal shows while a command works: a bar with its phase, what is done, and the time left.

Log lines are printed above the bar. Where standard error is no terminal, nothing but the log is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from svc import logs
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.export.progress import State
    from svc.training.progress import Progress

AnyBar = TypeVar("AnyBar", bound="Bar")


@contextmanager
def progress_for(settings: Settings, *, quiet: bool = False) -> Iterator[Progress]:
    """Set up logging, and a live bar of a training if people watch and it is not to be `quiet`."""
    from svc.training.progress import NullProgress

    if quiet:
        logs.configure(settings, quiet=True)
        yield NullProgress()
        return
    with bar_for(settings, TerminalProgress) as bar:
        yield bar or NullProgress()


@contextmanager
def bar_for(settings: Settings, make: Callable[[], AnyBar]) -> Iterator[AnyBar | None]:
    """Set up logging, and a bar if people watch. The bar is gone and the last line written on leaving."""
    if not (logs.wants_console(settings) and sys.stderr.isatty()):
        logs.configure(settings)
        yield None
        return
    bar = make()
    logs.configure(settings, write=bar.write_line)
    try:
        yield bar
    finally:
        bar.close()
        logs.configure(settings)


class Bar:
    """A rich bar on standard error: what is being done, how far it is, some detail, time passed and time left."""

    def __init__(self, description: str) -> None:
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
        self._task = self._bar.add_task(description, total=None, detail="")

    def write_line(self, line: str) -> None:
        """Print one finished log line above the bar."""
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()


class TerminalProgress(Bar):
    """The bar of a training. Its calls come from the thread of the run and from trial threads."""

    def __init__(self) -> None:
        super().__init__("starting")
        self._rows = 0

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


class ExportBar(Bar):
    """The bar of an export, which calls it with its state."""

    def __init__(self) -> None:
        super().__init__("recommending")

    def __call__(self, state: State) -> None:
        self._bar.start()
        detail = f"{state.rows:,} rows, {state.rows_per_s:,.0f} a second"
        self._bar.update(self._task, completed=state.done, total=max(state.total, state.done), detail=detail)
