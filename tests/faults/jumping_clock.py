"""A wall clock that jumps at its n-th reading. The monotonic clock stays unchanged."""

from __future__ import annotations

import datetime
import sys
import time
from contextlib import ExitStack
from typing import Any, Self
from unittest import mock

from tests.faults.failing_calls import Failure

TEN_YEARS_S, FORTY_YEARS_S = 10 * 365 * 86_400, 40 * 365 * 86_400
JUMPS = (TEN_YEARS_S, -FORTY_YEARS_S)


class JumpingClock:
    """During a `with` block, shifts the wall clock of svc by `jump_s` from reading `nth` on."""

    def __init__(self, jump_s: Failure, nth: int) -> None:
        self._jump_s, self._nth = int(jump_s), nth
        self._patches = ExitStack()
        self.made = 0

    @property
    def failed(self) -> bool:
        return 0 < self._nth <= self.made

    def _offset_s(self) -> int:
        self.made += 1
        return self._jump_s if self.failed else 0

    def __enter__(self) -> Self:
        clock, now, now_ns = self, time.time, time.time_ns

        class Jumping(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Any:
                return datetime.datetime.now(tz) + datetime.timedelta(seconds=clock._offset_s())

        self._patches.enter_context(mock.patch.object(time, "time", lambda: now() + self._offset_s()))
        self._patches.enter_context(mock.patch.object(time, "time_ns", lambda: now_ns() + self._offset_s() * 10**9))
        for name, module in list(sys.modules.items()):
            if name.startswith("svc.") and getattr(module, "datetime", None) is datetime.datetime:
                self._patches.enter_context(mock.patch.object(module, "datetime", Jumping))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()
