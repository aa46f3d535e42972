"""Arms of units, and their digests."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from svc.asking.experiment import arm_of, unit_digest


@pytest.mark.parametrize(
    ("unit", "arm"),
    [("u2", 2), ("u3", 2), ("u5", 1), ("u7", 0), ("é", 0)],
)
def test_the_arm_is_the_one_that_a_client_computes(unit: str, arm: int) -> None:
    """The first 16 hex digits of sha256 of `salt:unit`, modulo the sum of the weights, counted along the arms.

    The numbers modulo 6 are 3, 4, 2, 1 and 0, as `sha256sum` shows.
    """
    assert arm_of("2026-12", (2, 1, 3), unit) == arm


def test_the_digest_is_an_hmac_with_the_salt_as_key() -> None:
    """The digest is the first half of HMAC-SHA256, here by its definition with padded keys."""
    key = b"2026-12".ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + "é".encode()).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner)
    assert unit_digest("2026-12", "é") == outer.hexdigest()[:32]


def test_units_divide_by_the_weights() -> None:
    """An arm of weight 0 has no unit, and another salt divides anew."""
    counts = Counter(arm_of("2026-12", (0, 90, 0, 10), f"u{number}") for number in range(10_000))
    assert counts.keys() == {1, 3}
    assert 8_900 < counts[1] < 9_100
    moved = sum(arm_of("a", (1, 1), f"u{n}") != arm_of("b", (1, 1), f"u{n}") for n in range(1000))
    assert 400 < moved < 600
