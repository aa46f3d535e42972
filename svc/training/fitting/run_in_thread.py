"""Run long work in a thread, so that the main thread stays free to handle signals."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


def run_in_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in a new thread, and return its result or raise its exception.

    When an interrupt arrives, the exception is raised at once and the daemon thread is abandoned.
    """
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((work(), None))
        except BaseException as error:
            ended.put((None, error))

    threading.Thread(target=run, name="training", daemon=True).start()
    result, error = ended.get()
    if error is not None:
        raise error
    return result
