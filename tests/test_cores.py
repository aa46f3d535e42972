"""Counts the cores that the process may use, by affinity and by the quota of every control group around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from svc.cores import usable_cores


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def groups(root: Path, inner: str, **files: str) -> Path:
    """The file that names the own group; `files` by `<folder>__<file>`."""
    for name, text in files.items():
        folder, _, file = name.partition("__")
        path = root / folder.replace("_", "/") / file.replace("_us", "_us").replace("cpu_max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = root / "own"
    own.write_text(f"0::/{inner}\n")
    return own


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("own", "outer", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("250000 100000", "max 100000", 2),
        ("max 100000", "400000 100000", 4),
        ("50000 100000", "max 100000", 1),
        ("9900000 100000", "max 100000", 8),
        ("nonsense", "max 100000", 8),
    ],
)
def test_the_smallest_quota_counts(tmp_path: Path, own: str, outer: str, cores: int) -> None:
    """Part of a core counts as none, and there is always one."""
    named = groups(tmp_path, "a/b", a__cpu_max=outer, a_b__cpu_max=own)
    assert usable_cores(tmp_path, named) == cores


@pytest.mark.usefixtures("eight_cores")
def test_the_first_version_of_control_groups_counts_too(tmp_path: Path) -> None:
    """Its quota stands in microseconds in a folder of its own."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path, groups(tmp_path, "")) == 3


@pytest.mark.usefixtures("eight_cores")
def test_without_control_groups_affinity_counts(tmp_path: Path) -> None:
    """As on a machine that does not mount them."""
    assert usable_cores(tmp_path / "none", tmp_path / "none" / "own") == 8
