"""What every scorer offers, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from svc.model.history import History
from svc.model.query import Query, Ranking

Side = Literal["user", "item"]


class Scorer(Protocol):
    """Ranks items for queries. All methods but `ready` may run in several threads at once."""

    kind: ClassVar[str]
    """Names the family in logs and descriptions."""
    reads_values: ClassVar[bool]
    """Whether the values beside the history matter, or only which items are in it."""

    @property
    def n_items(self) -> int: ...

    def ready(self) -> None:
        """Compute what is kept beside the stored arrays. Called once, before the first ranking."""

    def feature_dim(self, side: Side) -> int | None:
        """Places of the feature vectors of a side that can be scored; None: features of that side cannot."""

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        """One ranking a query, in order. The bits of a ranking depend on its query alone."""

    def parts(self) -> dict[str, int]:
        """Bytes of the stored arrays by name."""


def left_out(query: Query, history: History) -> NDArray[np.int32]:
    """Item columns that must not come back; some may be named twice."""
    parts = [query.exclude, query.seeds]
    if query.user >= 0 and not query.include_seen:
        parts.append(history.items(query.user))
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else np.concatenate(filled or parts)


def profile(query: Query, history: History) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """Item columns that lead the query, (h,), and their values, (h,); None: all are 1."""
    if query.user < 0:
        return query.seeds, None
    values = history.values(query.user)
    return history.items(query.user), None if values is None else values.astype(np.float64)
