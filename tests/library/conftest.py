"""Fixtures of library tests: each test runs as its own program, without logging that a command has set up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.export.conftest import MODELS
from tests.serving.artifacts import header, write_artifact


@pytest.fixture(autouse=True)
def no_logging_set_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reset logging before and after a test, because a command leaves its handler at the root logger."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "a.svc"
    write_artifact(path, MODELS["neighbours"](), head=header(recipe_name="books"))
    return path
