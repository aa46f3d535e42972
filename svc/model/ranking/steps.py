"""Work in steps, between which a server lets other questions go first."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps that take at most a few milliseconds each."""


def result_of(steps: Steps[T]) -> T:
    """Take all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
