"""What somebody who trains in a notebook or a Python session sees: one line that is written over and over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from svc.training.progress import NullProgress, Progress

EVERY_S = 0.2
EVERY_S_IN_FILES = 10.0
"""Lines of a file stay, so there are fewer of them."""


class Line(Protocol):
    """A place for one line of text. `close` leaves the last one standing."""

    def show(self, text: str) -> None: ...
    def close(self) -> None: ...


class NotebookLine:
    """The output of the running cell, updated in place. Needs IPython alone, no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        import IPython.display

        display: Any = IPython.display.display
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def close(self) -> None: ...


class TerminalLine:
    """The last line of a terminal."""

    def show(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{text[:120]}")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")


class FileLine:
    """Standard error that is no terminal: each text is a line of its own."""

    def show(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None: ...


def progress_here(wanted: bool | None) -> Progress:
    """The progress that the present environment can show; where it can show none: lines, if they are wanted."""
    line = None if wanted is False else line_for_here()
    if line is not None:
        return LineProgress(line)
    return LineProgress(FileLine(), every_s=EVERY_S_IN_FILES) if wanted else NullProgress()


def line_for_here() -> Line | None:
    """The line that the present environment can show; None where nobody watches."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and "IPKernelApp" in getattr(shell, "config", {}):
        return NotebookLine()
    return TerminalLine() if sys.stderr.isatty() else None


class LineProgress:
    """Progress of a training as a line: phase, rows or trials with the best score, seconds."""

    def __init__(self, line: Line, clock: Callable[[], float] = time.monotonic, *, every_s: float = EVERY_S) -> None:
        self._line = line
        self._every_s = every_s
        self._clock = clock
        self._began = clock()
        self._next = 0.0
        self._phase = "starting"
        self._rows = 0

    def phase(self, name: str) -> None:
        self._phase, self._rows = name, 0
        self._show("", always=True)

    def rows(self, n: int) -> None:
        self._rows += n
        self._show(f"{self._rows:,} rows")

    def trial(self, done: int, total: int, best_score: float | None, algorithm: str | None) -> None:
        best = "" if best_score is None else f", best {best_score:.4f}" + (f" ({algorithm})" if algorithm else "")
        self._show(f"{done}/{total} trials{best}", always=done == total)

    def close(self) -> None:
        self._line.close()

    def _show(self, detail: str, *, always: bool = False) -> None:
        now = self._clock()
        if not always and now < self._next:
            return
        self._next = now + self._every_s
        parts = [self._phase, detail, f"{now - self._began:.0f} s"]
        self._line.show(" · ".join(part for part in parts if part))
