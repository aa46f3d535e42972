"""What a terminal shows while an export works: users done, rows, rate, time left. Log lines stand above it."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from svc.export.progress import State


class ExportBar:
    """A rich bar on standard error."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("recommending"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, detail="")

    def write_line(self, line: str) -> None:
        """Print one finished log line above the bar."""
        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def __call__(self, state: State) -> None:
        self._bar.start()
        detail = f"{state.rows:,} rows, {state.rows_per_s:,.0f} a second"
        self._bar.update(self._task, completed=state.done, total=max(state.total, state.done), detail=detail)

    def close(self) -> None:
        self._bar.stop()
