"""Fixtures of all tests of the server."""

from __future__ import annotations

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
