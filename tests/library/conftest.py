"""Fixtures of library tests: each test runs as its own program, without logging that a command has set up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import svc
from tests.export.conftest import MODELS
from tests.serving.artifacts import SIGNING_KEYS, header, write_artifact


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


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> svc.Recommender:
    """Return a recommender that no test changes."""
    path = tmp_path_factory.mktemp("books") / "a.svc"
    write_artifact(path, MODELS["neighbours"](), head=header(recipe_name="books"))
    return svc.load(path, keys=SIGNING_KEYS)
