"""RidgeTransitions: item weights that predict the next item from all earlier ones by one ridge regression.

Transitions counts each pair of items by itself. Here the weights of all earlier items are solved for together, so an
item that often stands beside a good predictor gets no credit for it. It is to Transitions what DenseSLIM (Steck,
"Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019) is to counts of pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from irspack.recommenders.base import BaseSimilarityRecommender
from numpy.typing import NDArray
from scipy import sparse

from svc.training.fitting.algorithms.item_weights import invert
from svc.training.fitting.algorithms.transitions import Near, Positions, strongest

_LEAST = 1e-3
"""Pairs of items whose product of decays is less are left out: for a decay of 0.1, those 70 positions apart."""
_ROWS_AT_ONCE = 1024


class RidgeTransitionsRecommender(BaseSimilarityRecommender, register_class=False):
    """A recommender by the item weights B that minimize Σ_t ‖e(t) − Bᵀφ(t)‖² plus a ridge, over all choices t.

    e(t) is 1 at the chosen item. φ(t) is exp(−decay · d) at each item that the same user chose d positions earlier, as
    in `Near`. So B = (G + ridge · mean(diag G) · I + popular_ridge · diag G)⁻¹ K, with G = Σ_t φ(t) φ(t)ᵀ and
    K = Σ_t φ(t) e(t)ᵀ. The `top_k` largest weights of each item are kept.

    `times`, (users, items) CSR, has the time of each entry of `matrix`, in nanoseconds since any fixed time.
    """

    default_tune_range: list[Any] = []  # noqa: RUF012 - declared as in irspack, without ClassVar

    def __init__(
        self,
        matrix: Any,
        *,
        times: sparse.csr_matrix,
        decay: float = 0.2,
        ridge: float = 3.0,
        popular_ridge: float = 1.0,
        top_k: int = 200,
    ) -> None:
        super().__init__(matrix)
        self._positions = Positions(times, breaks_ties=True)
        self.decay = decay
        self.ridge = ridge
        self.popular_ridge = popular_ridge
        self.top_k = top_k

    def _learn(self) -> None:
        # Half of the items of film ratings have one user. Without them, a training takes an eighth of the time.
        kept = np.flatnonzero(np.bincount(self._positions.items.indices, minlength=self.n_items) > 1)
        positions = self._positions.of_items(kept)
        items, n_kept = positions.items, len(kept)
        after = np.exp(-self.decay * np.arange(1, 1 + max(1, int(-np.log(_LEAST) / self.decay))))
        later = sparse.diags(_later(self._positions, after**2)) @ items
        gram, targets = np.zeros((n_kept, n_kept), dtype=np.float32), np.empty((n_kept, n_kept), dtype=np.float32)
        for first, pairs in Near(positions, after, np.zeros_like(after)).pairs():
            rows = slice(first, first + pairs.shape[0])
            targets[rows] = (pairs @ items).toarray()
            gram[rows] = (pairs @ later).toarray()
        # `pairs` has each pair of an earlier and a later item once. The Gram matrix needs both halves.
        gram += gram.T.copy()
        gram += (items.T @ later).toarray()
        # A copy, because the diagonal is a view of the matrix that is changed in the next line.
        own = gram.diagonal().copy()
        np.fill_diagonal(gram, own * (1.0 + self.popular_ridge) + self.ridge * own.mean())
        solution = invert(gram)
        blocks = [
            # In blocks of rows, because the whole product would be another dense (items, items) matrix.
            strongest(sparse.csr_matrix(solution[first : first + _ROWS_AT_ONCE] @ targets), self.top_k)
            for first in range(0, n_kept, _ROWS_AT_ONCE)
        ]
        weights = sparse.vstack(blocks, format="coo")
        places = (kept[weights.row], kept[weights.col])
        self._W = sparse.csr_matrix((weights.data, places), shape=(self.n_items, self.n_items))


def _later(positions: Positions, decays: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ decays[d − 1] · (number of items d positions later) over the same user's positions, (positions,)."""
    sizes = np.diff(positions.items.indptr).astype(np.float64)
    sums = np.zeros(len(sizes))
    for steps, decay in enumerate(decays[: len(sizes) - 1], start=1):
        same = positions.user[steps:] == positions.user[:-steps]
        sums[:-steps] += np.where(same, decay * sizes[steps:], 0.0)
    return sums
