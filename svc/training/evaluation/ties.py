"""In which order a user's items with equal scores are ranked while models are compared.

Items are numbered by their first appearance in the whole table, held-out rows included, and popular items appear early.
Breaking ties by number would therefore reward a model for them. Here each user has a random order of all items that
does not depend on the data: step j of user u visits the item

    Q₂[ a₂·Q₁[ (a₁·j + b₁) mod p ] + b₂ mod p ]

where p is the least prime not below the number of items, Q₁ and Q₂ are random permutations of 0..p−1 that all users
share, and a ≠ 0 and b are each user's own. Both directions cost a few operations, and no table for each user.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class TieOrder:
    """The orders of `n_users` users over `n_items` items; the same for the same seed."""

    def __init__(self, n_users: int, n_items: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 11])
        self.n_items = n_items
        self.prime = _prime_from(max(n_items, 2))
        self._rounds = [_Round(rng, n_users, self.prime) for _ in range(2)]

    def ranks(self, users: Indices, items: Indices) -> Indices:
        """(n,) the position of each item in the order of the user beside it."""
        for permutation in reversed(self._rounds):
            items = permutation.backward(users, items)
        return items

    def first(self, users: Indices, count: int) -> Indices:
        """(users, min(count, prime)) the first items of each user's order; some may be `n_items` or above."""
        items = np.arange(min(count, self.prime))[np.newaxis]
        for permutation in self._rounds:
            items = permutation.forward(users[:, np.newaxis], items)
        return items


class _Round:
    """x to Q[(a·x + b) mod p], with a and b by user."""

    def __init__(self, rng: np.random.Generator, n_users: int, prime: int) -> None:
        self._prime = prime
        self._table = rng.permutation(prime)
        self._place = np.argsort(self._table)
        self._factor = rng.integers(1, prime, n_users)
        self._inverse = _inverse(self._factor, prime)
        self._shift = rng.integers(0, prime, n_users)

    def forward(self, users: Indices, values: Indices) -> Indices:
        return np.asarray(self._table[(self._factor[users] * values + self._shift[users]) % self._prime])

    def backward(self, users: Indices, values: Indices) -> Indices:
        return np.asarray(self._inverse[users] * (self._place[values] - self._shift[users]) % self._prime)


def _inverse(values: Indices, prime: int) -> Indices:
    """values^(prime − 2) modulo prime, by Fermat. Products of two stay below 2^62 for primes below 2^31."""
    result = np.ones_like(values)
    base, exponent = values.copy(), prime - 2
    while exponent:
        if exponent & 1:
            result = result * base % prime
        base = base * base % prime
        exponent >>= 1
    return result


def _prime_from(least: int) -> int:
    """The smallest prime that is not below `least`."""
    candidate = least
    while any(candidate % divisor == 0 for divisor in range(2, math.isqrt(candidate) + 1)):
        candidate += 1
    return candidate
