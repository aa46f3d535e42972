"""With too little memory, commands name the reason, and a server keeps its model and loads the new one later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.failing_calls import STRIDE
from tests.faults.test_serving import write_two_versions

pytestmark = pytest.mark.system
LONGEST_S = 170
STEP_BYTES = (64 << 10) * max(STRIDE, 4)
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "16384",
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_TRIM_THRESHOLD_": "16384",
}
"""Without these, glibc takes memory for a small load from its own reserve, so no limit applies."""
TRAIN, EXPORT = "train recipes/books.yaml --run-id third", "recommend out/books.svc --output books.jsonl"
N_USERS = 300


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two versions of a model."""
    folder = tmp_path_factory.mktemp("large") / "base"
    folder.mkdir()
    write_two_versions(folder, N_USERS)
    return folder


@pytest.mark.parametrize("what", [TRAIN, EXPORT, "start", "swap"] if STRIDE == 1 else ["swap"])
def test_a_command_without_memory_leaves_no_damage(what: str, trained: Path) -> None:
    """Commands, starts and swaps run with more memory each time. Errors name memory or threads as the reason.

    After each attempt no temporary file is left, and a run without a limit succeeds.
    """
    command = [sys.executable, "-m", "tests.faults.limited_memory", str(trained), str(STEP_BYTES), what]
    child = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | ALLOCATOR,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    results = [json.loads(line) for line in child.stdout.splitlines()]
    failed = [result for result in results if not result["is_whole"]]
    print(f"{what[:5]}, memory: {len(failed)} limits")  # noqa: T201 - `-rP` shows how many
    assert failed
    for result in failed:
        error = str(result["told"]["error"])
        assert "memory" in error or "no more threads" in error, result  # a thread begins with memory for its stack
        assert result.get("exit_code") in (None, 5, 8), result
        assert "traceback" not in result["told"]
        assert not result.get("traceback")
        assert result.get("served") == result.get("before"), result
    for result in results:
        assert result["again"] == 0, result
        assert result.get("verified", 0) == 0, result
        assert result.get("left", []) == [], result
