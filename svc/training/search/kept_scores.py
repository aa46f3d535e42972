"""The scores of complete trials for each user, which a search keeps in memory up to a limit.

The correction for choosing the best of many trials needs them, because the scores of different trials are correlated
over users (see judging/intervals.py). They are too large to be stored in the study, so those of the trials of other
processes are missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 512 << 20
"""Above this, the scores of the worst trials are dropped, because these are the least likely to win by chance."""


@dataclass(slots=True)
class KeptScores:
    """Keeps the scores of trials up to `most_bytes`, and those of the best trial of each algorithm even above.

    `by_user` has the scores for each user, (users,), by trial number.
    """

    most_bytes: int = MOST_BYTES
    by_user: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _means: dict[int, tuple[float, str]] = field(default_factory=dict)

    def keep(self, number: int, algorithm: str, score: float, by_user: NDArray[np.float64]) -> None:
        """Keep `by_user`, the scores of trial `number` for each user, (users,). Their mean is `score`."""
        self.by_user[number] = by_user
        self._means[number] = score, algorithm
        n_bytes = sum(scores.nbytes for scores in self.by_user.values())
        for worst in sorted(self._others(), key=self._means.__getitem__):
            if n_bytes <= self.most_bytes:
                return
            n_bytes -= self.by_user.pop(worst).nbytes
            del self._means[worst]

    def _others(self) -> set[int]:
        """Return the trials that are not the best of their algorithm. The first of equal trials is the best."""
        best: dict[str, int] = {}
        for number, (score, algorithm) in self._means.items():
            if algorithm not in best or score > self._means[best[algorithm]][0]:
                best[algorithm] = number
        return self._means.keys() - set(best.values())
