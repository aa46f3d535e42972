"""The pages on security and reliability name only existing tests, events and metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from svc import events, metrics

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/security.md", "tests/RELIABILITY.md"])
def test_named_programs_exist(page: str) -> None:
    """Every test or benchmark that a page names exists."""
    named = set(re.findall(r"(?:tests|benchmarks)/[\w/]*\w+\.py", (ROOT / page).read_text(encoding="utf-8")))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_metrics_and_events_of_the_threat_model_exist() -> None:
    """docs/security.md names only existing metrics. Two events that it relies on exist."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    known = {event.name for event in vars(events).values() if isinstance(event, events.Event)}
    assert {"artifact_of_another_recipe", "artifact_disappeared"} <= known
    named = set(re.findall(r"`(svc_[a-z_]+)`", text))
    assert named
    assert named <= metrics.METRICS.keys()
