"""Fixtures of all tests of the server."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from svc.serving.models import threads


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the ids of the threads that lower their priority, in order. Their priority does not change."""
    ids: list[int] = []
    monkeypatch.setattr(threads, "_thread", threading.local())
    monkeypatch.setattr(os, "setpriority", lambda _which, who, _niceness: ids.append(who))
    return ids


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list with an entry for each `gc.freeze()`. Nothing is frozen, so later tests can free their garbage."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    return calls
