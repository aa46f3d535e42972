"""The scores of single users, kept in memory for the complete trials of this process.

A trial's score is a mean over the validation users. The scores of trials are correlated over users, and the correction
for choosing among trials depends on that, so each trial's per-user scores are needed (see judging/intervals.py). They
are too large for the study, so those of trials from other processes of a shared search are missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.training.judging.intervals import is_gain

MOST_BYTES = 512 << 20
"""Above this the trials with the lowest scores are dropped, because they are the least likely to win by chance."""


@dataclass(slots=True)
class KeptScores:
    """Keeps the scores of many trials, and always those of the best trial of each algorithm, at any size."""

    most_bytes: int = MOST_BYTES
    by_user: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _known: dict[int, tuple[float, str]] = field(default_factory=dict)

    def keep(self, number: int, algorithm: str, score: float, by_user: NDArray[np.float64]) -> None:
        """Keep `by_user`, the (users,) scores with the mean `score`, of trial `number`."""
        self.by_user[number] = by_user
        self._known[number] = score, algorithm
        n_bytes = sum(scores.nbytes for scores in self.by_user.values())
        for worst in sorted(self._others(), key=self._known.__getitem__):
            if n_bytes <= self.most_bytes:
                return
            n_bytes -= self.by_user.pop(worst).nbytes
            del self._known[worst]

    def is_better(self, first: int, second: int) -> bool:
        """Return whether trial `first` is better than `second` for the same users by more than chance.

        Return True if the scores of one of them are not kept, because only the means can then be compared.
        """
        if first not in self.by_user or second not in self.by_user:
            return True
        return is_gain(self.by_user[first], self.by_user[second])

    def _others(self) -> set[int]:
        """Return the trials that are not the best of their algorithm.

        Of equal ones the first is the best.
        """
        best: dict[str, int] = {}
        for number, (score, algorithm) in self._known.items():
            if algorithm not in best or score > self._known[best[algorithm]][0]:
                best[algorithm] = number
        return self._known.keys() - set(best.values())
