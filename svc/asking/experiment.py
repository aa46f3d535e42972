"""The arm of a unit in an experiment, and the digest that stands for the unit in the served log."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate

OPEN = ".open"
"""Ending of a file of the served log that a server still writes. Its last line may be half a line."""
_HEX = 16
_DIGEST_HEX = 32


def arm_of(salt: str, weights: Sequence[int], unit: str) -> int:
    """Return the position of the unit's arm among arms with these `weights`, whose sum is above 0.

    Clients can compute it too, so every replica and every client agree.
    """
    # Of 64 bits the remainder is even to one part in 10^12 for weights that add up to millions.
    number = int(sha256(f"{salt}:{unit}".encode()).hexdigest()[:_HEX], 16) % sum(weights)
    return next(arm for arm, end in enumerate(accumulate(weights)) if number < end)


def unit_digest(salt: str, unit: str) -> str:
    """Return the 32 hex digits that stand for a unit in the served log.

    The salt is the key. Whoever lacks it cannot find the ids by trying all of them.
    """
    return hmac.digest(salt.encode(), unit.encode(), "sha256").hex()[:_DIGEST_HEX]
