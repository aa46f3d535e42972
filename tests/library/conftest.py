"""Each test is a program of its own: no command has set up logging before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def no_logging_set_up() -> Iterator[None]:
    """As in a fresh interpreter, before and after."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
