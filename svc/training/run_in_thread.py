"""Long work beside the main thread, which stays free to hear signals."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


def run_in_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns, or raises, from a thread of its own. An interrupt leaves the thread behind."""
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((work(), None))
        except BaseException as error:
            ended.put((None, error))

    threading.Thread(target=run, name="training", daemon=True).start()
    found, error = ended.get()
    if error is not None:
        raise error
    return found
