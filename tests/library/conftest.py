"""Each test is a program of its own: no command has set up logging before it."""

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
    """As in a fresh interpreter, before and after: a command leaves its handler at the root logger."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "a.svc"
    write_artifact(path, MODELS["neighbours"](), head=header(recipe_name="books"))
    return path
