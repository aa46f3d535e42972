"""The clock of the tests of workers."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Use the clock of the machine, because sockets and threads take part."""
    return "trio"
