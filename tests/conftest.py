"""Fixtures for every test: trio under virtual time."""

from __future__ import annotations

import pytest
import trio.testing


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Async tests run on trio; its clock jumps to the next deadline as soon as nothing else can run."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.01)})
