"""Select the tokens of a column that are frequent enough to become features, in bounded memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.errors import FeatureDimensionExceeded

# 16 MiB of counters.
_BUCKETS = 1 << 21

Tokenize = Callable[[object], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Sorted tokens that are frequent enough.

    `distinct` counts all tokens seen. It is a lower bound if there are very many.
    """

    tokens: list[str]
    distinct: int


def count_tokens(
    values: Sequence[object], weights: NDArray[np.int64], tokenize: Tokenize, *, min_frequency: int, limit: int
) -> Vocabulary:
    """Return the tokens that occur in at least `min_frequency` rows.

    `weights[j]` is the number of rows that hold `values[j]`. Raise FeatureDimensionExceeded as soon as more than
    `limit` tokens are known to qualify.
    """
    counts, distinct = frequent_tokens(values, weights, tokenize, min_frequency=min_frequency, limit=limit)
    return Vocabulary(sorted(counts), distinct)


def frequent_tokens(
    values: Sequence[object],
    weights: NDArray[np.int64],
    tokenize: Tokenize,
    *,
    min_frequency: int,
    limit: float = math.inf,
) -> tuple[dict[str, int], int]:
    """Return the number of rows of each frequent token, and the number of distinct tokens.

    Arguments and errors are those of `count_tokens`. The first pass adds counts in a fixed number of buckets, so the
    count of a bucket is an upper bound for its tokens. The second pass counts exactly, but only tokens whose bucket
    reaches `min_frequency`.
    """
    buckets = np.zeros(_BUCKETS, dtype=np.int64)
    for value, weight in zip(values, weights.tolist(), strict=True):
        for token in tokenize(value):
            buckets[_bucket(token)] += weight
    counts: dict[str, int] = {}
    n_frequent = 0
    for value, weight in zip(values, weights.tolist(), strict=True):
        for token in tokenize(value):
            if buckets[_bucket(token)] < min_frequency:
                continue
            before = counts.get(token, 0)
            counts[token] = before + weight
            n_frequent += before < min_frequency <= before + weight
        if n_frequent > limit:
            raise FeatureDimensionExceeded(
                f"more than {limit} distinct values occur at least {min_frequency} times: raise min_frequency, "
                "or SVC_MAX_FEATURE_DIM"
            )
    distinct = max(int(np.count_nonzero(buckets)), len(counts))
    return {token: count for token, count in counts.items() if count >= min_frequency}, distinct


def _bucket(token: str) -> int:
    return zlib.crc32(token.encode()) % _BUCKETS
