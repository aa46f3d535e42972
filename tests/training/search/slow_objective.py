"""An objective that worker processes can import, controlled by the parameters of the trial."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from svc.training.judging.recency import Fitted


class SlowObjective:
    """Sums its numbers after `seconds` of sleep. The parameter `exit` crashes, `error` fails and `warn` warns."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = np.asarray(numbers, dtype=np.float64)

    def __call__(
        self,
        _algorithm: str,
        params: dict[str, Any],
        report: Callable[[int, float], None],
    ) -> Fitted:
        time.sleep(params.get("seconds", 0.0))
        if "exit" in params:
            os._exit(params["exit"])
        if "error" in params:
            raise ValueError(params["error"])
        if "warn" in params:
            warnings.warn(params["warn"], RuntimeWarning, stacklevel=1)
        for epoch, score in enumerate(params.get("scores", []), start=1):
            report(epoch, score)
        self.numbers[0] += 1  # stays in this process
        return Fitted({"ndcg": float(self.numbers.sum()), "pid": os.getpid()}, None)
