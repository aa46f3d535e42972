"""Servers and trainings while the wall clock is set years forward and decades back.

Only timestamps may change. No decision and no duration may depend on the wall clock.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Shop
from tests.e2e.load import Load, only_200
from tests.e2e.server import Server, put, until
from tests.serving.artifacts import popularity_model, write_artifact

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed"),
]
FUTURE, PAST = "+10y", "-40y"


class Clock:
    """A wall clock for processes that run with `environment`. Their monotonic clock stays real."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set("+0")
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set(self, time: str) -> None:
        put(self._file, time)

    @contextmanager
    def jumping(self, every_s: float) -> Iterator[None]:
        """Set the clock to the future, the past and the present in turn, every `every_s` seconds."""
        over = threading.Event()

        def jump() -> None:
            for time in cycle((FUTURE, PAST, "+0")):
                self.set(time)
                if over.wait(every_s):
                    return

        thread = threading.Thread(target=jump)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def years(records: list[dict[str, Any]]) -> set[int]:
    return {datetime.fromisoformat(record["timestamp"]).year for record in records}


def test_a_server_keeps_answering_when_its_clock_is_set(home: Path, tmp_path: Path) -> None:
    """A server whose clock is set answers every request, serves every new artifact, and drains in time."""
    clock = Clock(tmp_path)
    asked = [("/v1/recipes/a:recommend", {"user_id": "u1"})]
    with Server(home, env=clock.environment, fresh=True) as server:
        with Load(server.url, asked, clients=4, judge=only_200, pause_s=0.01) as load:
            for number, time in enumerate((FUTURE, PAST, FUTURE, "+0"), start=1):
                clock.set(time)
                sha256 = write_artifact(home.parent / "a.svc", popularity_model(number % 3))
                server.wait_for("artifact_loaded", model_version=f"sha256:{sha256}")
                until(lambda goal=load.tally.answered + 100: load.tally.answered >= goal)
        assert load.tally.failures == []
        assert server.stop() == 0
    assert len(years(server.records)) == 3


def test_a_training_measures_durations_right_when_its_clock_is_set(shop: Shop, tmp_path: Path) -> None:
    """A training whose clock is set ends no trial early, and logs no negative or year-long duration."""
    clock = Clock(tmp_path)
    shop.edit("n_trials: 4", "n_trials: 12\n  timeout_seconds: 600\n  per_trial_timeout_seconds: 300")
    with clock.jumping(every_s=0.1):
        ended = shop.process("train", str(shop.recipe), fresh=True, **clock.environment)
    assert ended.code == 0, ended.err
    assert len(years(ended.records)) > 1, "the clock was not set while anything was logged"
    took = [value for record in ended.records for name, value in record.items() if name.endswith("seconds")]
    assert took, ended.err
    assert all(0 <= seconds <= 600 for seconds in took), took
