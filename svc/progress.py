"""Progress of long work: the reports of trainings, exports and comparisons, and the displays that show them."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from svc.late_imports import if_imported

_IN_SECONDS = 100
"""Number of seconds, and of minutes, from which a time is shown in the next larger unit."""
EVERY_S = 10.0
"""Seconds between two lines in a log or a file. They are few because lines, unlike a bar, stay visible."""


@dataclass(frozen=True, slots=True)
class State:
    """The progress of one phase. Without a `total` the amount of work is unknown.

    `rows` counts the rows read or written since the phase began `seconds` ago. `note` is further text to show.
    """

    phase: str
    done: int = 0
    total: int | None = None
    rows: int = 0
    note: str = ""
    seconds: float = 0.0

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        if not self.done or self.total is None or self.done > self.total:
            return None
        return self.seconds * (self.total - self.done) / self.done

    @property
    def detail(self) -> str:
        """Return the text that stands beside the phase."""
        return self.note or (f"{self.rows:,} rows, {self.rows_per_s:,.0f} a second" if self.rows else "")

    def __str__(self) -> str:
        return " · ".join(filter(None, (self.phase, self.detail)))


class Display(Protocol):
    """A display of progress.

    `show` is called often and from several threads, so it must be cheap and never raise.
    """

    def show(self, state: State) -> None: ...
    def close(self) -> None: ...


class Progress:
    """A reporter of the progress of one piece of work. Without a display its reports are dropped."""

    def __init__(self, display: Display | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._clock = clock
        self._began = clock()
        self._state = State("starting")

    def phase(self, name: str) -> None:
        """Begin another phase, counted from 0."""
        self._began = self._clock()
        self._show(State(name))

    def rows(self, n: int) -> None:
        """Count `n` further rows as read."""
        self._show(replace(self._state, rows=self._state.rows + n))

    def advance(self, done: int, total: int, note: str = "", *, rows: int = 0) -> None:
        """Record that `done` of `total` steps of the phase are over.

        `rows` counts the further rows of the last step.
        """
        self._show(replace(self._state, done=done, total=total, note=note, rows=self._state.rows + rows))

    def close(self) -> None:
        if self._display is not None:
            self._display.close()

    def _show(self, state: State) -> None:
        self._state = replace(state, seconds=self._clock() - self._began)
        if self._display is not None:
            self._display.show(self._state)


def _times(seconds: float, left: float | None) -> str:
    """Return the time spent, and the time left if it is known: `25 s, 2 s left`."""
    return _format_duration(seconds) + ("" if left is None else f", {_format_duration(left)} left")


def _format_duration(seconds: float) -> str:
    if seconds < _IN_SECONDS:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < _IN_SECONDS else f"{minutes // 60} h {minutes % 60} min"


class TerminalBar:
    """A bar of rich on standard error, removed at the end of the work.

    Lines that are printed meanwhile appear above it.
    """

    def __init__(self) -> None:
        # rich takes 40 ms to import, and only terminals need it.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
        from rich.text import Text

        class TimesColumn(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(_times(task.elapsed or 0.0, None if task.finished else task.time_remaining))

        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimesColumn(),
            console=self._console,
            transient=True,
        )
        self._phase = ""

    def write_line(self, line: str) -> None:
        """Print one finished log line above the bar."""
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def show(self, state: State) -> None:
        self._bar.start()
        if state.phase != self._phase:
            self._phase = state.phase
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._bar.add_task(state.phase, total=None, detail="")
        # An estimated total can be too low, such as that of a file of ids.
        total = None if state.total is None else max(state.total, state.done)
        self._bar.update(self._bar.task_ids[0], completed=state.done, total=total, detail=state.detail)

    def close(self) -> None:
        self._bar.stop()


class NotebookBar:
    """A bar of tqdm in the output of the running cell.

    It stays there after the work. Raises ImportError without tqdm.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets tqdm warns, and draws its bar with letters
            from tqdm.auto import tqdm

        self._make: Callable[..., Any] = tqdm
        self._bar: Any = None

    def show(self, state: State) -> None:
        if self._bar is None:
            self._bar = self._make(file=sys.stdout, bar_format="{bar} {desc} [{elapsed}{postfix}]")
        if state.total is None:
            self._bar.set_description_str(str(state))
            return
        if state.total != self._bar.total:
            began = self._bar.start_t
            self._bar.reset(total=state.total)
            self._bar.start_t = began  # reset has restarted the clock
        self._bar.n = state.done
        self._bar.set_postfix_str(state.detail)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Lines:
    """A display of lines on standard error: when a phase begins, every EVERY_S, and at the end if `total` is known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._next = 0.0
        self._phase = ""

    def show(self, state: State) -> None:
        now = self._clock()
        if state.phase == self._phase and state.done != state.total and now < self._next:
            return
        self._phase, self._next = state.phase, now + EVERY_S
        left = None if state.done == state.total else state.seconds_left
        sys.stderr.write(f"{state} · {_times(now - self._began, left)}\n")
        sys.stderr.flush()

    def close(self) -> None: ...


def progress_here(wanted: bool | None) -> Progress:
    """Return progress with the display that fits the environment.

    A notebook or a terminal gets a bar, and a notebook without tqdm gets lines. Any other environment gets lines if
    `wanted` is True. If `wanted` is False, there is no display.
    """
    return Progress(None if wanted is False else _display_here(is_wanted=wanted is True))


def _display_here(*, is_wanted: bool) -> Display | None:
    ipython = if_imported("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and "IPKernelApp" in getattr(shell, "config", {}):
        try:
            return NotebookBar()
        except ImportError:
            return Lines()
    if sys.stderr.isatty():
        return TerminalBar()
    return Lines() if is_wanted else None
