"""Logging and the progress bar of long commands. The bar is drawn only if standard error is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from svc import logs
from svc.progress import Progress, TerminalBar
from svc.settings import Settings


@contextmanager
def progress_for(settings: Settings, *, quiet: bool = False) -> Iterator[Progress | None]:
    """Set up logging, and a bar if standard error is a terminal and `quiet` is False.

    The bar is removed at the end of the block.
    """
    if quiet or not (logs.wants_console(settings) and sys.stderr.isatty()):
        logs.configure(settings, quiet=quiet)
        yield None
        return
    bar = TerminalBar()
    logs.configure(settings, write=bar.write_line)
    try:
        yield Progress(bar)
    finally:
        bar.close()
        logs.configure(settings)
