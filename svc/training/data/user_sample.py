"""Draw a sample of users to train on, and compute the vectors of all users after training.

Given trained item vectors, the exact vector of a user depends only on this user's history. So all users are solved for
after training: for iALS by least squares (Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback
Datasets", ICDM 2008, equation 4), for a truncated SVD by projection. The vectors that training itself computes are
close to these but not exact. With them, recommendations for a known user would differ from those for a request with the
same history.

Item parameters hardly change if there are enough users, so the search and the final training may use a sample.
Neighbour models, item weights and popularity have no parameters of single users, so they need no further step.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.cores import usable_cores
from svc.errors import TrainingError
from svc.model.ranking.query import Query
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.factors import BPRScorer, FactorScorer, IALSScorer
from svc.training.data.interactions import Interactions

_USERS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class UserSample:
    """A sample of users and their interactions.

    `rows` has the rows of the sampled users among all users, ascending. Items have the same numbers as in the
    interactions of all users.
    """

    rows: NDArray[np.int64]
    interactions: Interactions


def draw_users(all_users: Interactions, n_users: int, seed: int) -> UserSample | None:
    """Draw `n_users` of the users, each equally likely, or return None if there are no more than `n_users`.

    The same seed draws the same users. Hidden rows of items that no user chose are left out.
    """
    n_all = len(all_users.user_ids)
    if n_all <= n_users:
        return None
    # Sorted, so that users keep their order, and the 23 keeps the draw independent of others from this seed.
    rows = np.sort(np.random.default_rng([seed, 23]).permutation(n_all)[:n_users])
    row_of = np.full(n_all, -1, dtype=np.int32)
    row_of[rows] = np.arange(n_users)
    drawn = all_users.of_rows(np.flatnonzero(row_of[all_users.users] >= 0))
    hidden = all_users.hidden
    if hidden is not None:
        renumbered = hidden._replace(users=row_of[hidden.users])
        hidden = renumbered.of_rows(renumbered.users >= 0)
    sampled = replace(
        drawn,
        users=row_of[drawn.users],
        user_ids=[all_users.user_ids[row] for row in rows.tolist()],
        hidden=hidden,
        hidden_unknown=None,
        hidden_of_others=None,
    )
    return UserSample(rows, sampled)


def solve_users(
    scorer: Scorer | None,
    matrix: sparse.csr_matrix,
    features: sparse.csr_matrix | None = None,
    rows: NDArray[Any] | None = None,
) -> None:
    """Set the exact vector of each user of `matrix`, (users, items), in `scorer`, if it is a factor model.

    - `features`, (users, F), are encoded user features. Only iALS reads them.
    - If `rows` is given, only these users are solved for, and the other users get zeros.

    The vectors of BPR cannot be solved for, so BPR keeps those from its training. Raise TrainingError if `matrix` has
    another number of users than this training, or if a vector is not finite.
    """
    if not isinstance(scorer, FactorScorer):
        return
    if isinstance(scorer, BPRScorer):
        if len(scorer.users) == matrix.shape[0]:
            return
        raise TrainingError(
            "BPRFMRecommender has vectors only for users of its training: leave it out with sample_users"
        )
    # Before the threads start, so that they do not compute the same arrays each.
    scorer.ready()
    features = features if isinstance(scorer, IALSScorer) else None
    users = np.zeros((matrix.shape[0], scorer.users.shape[1]), dtype=np.float32)
    rows = np.arange(matrix.shape[0]) if rows is None else rows
    chunks = [rows[start : start + _USERS_AT_ONCE] for start in range(0, len(rows), _USERS_AT_ONCE)]
    with ThreadPoolExecutor(usable_cores()) as pool:
        solved_chunks = pool.map(lambda chunk: solve_rows(scorer, matrix, chunk, features), chunks)
        for chunk, vectors in zip(chunks, solved_chunks, strict=True):
            users[chunk] = vectors
    if not np.isfinite(users).all():
        raise TrainingError(
            "solving for the users gave infinite or NaN vectors: raise reg, or sample_users if it is set"
        )
    scorer.users = users


def solve_rows(
    scorer: FactorScorer, matrix: sparse.csr_matrix, rows: NDArray[Any], features: sparse.csr_matrix | None = None
) -> NDArray[np.float64]:
    """Return the user vectors, (r, K), that `scorer` computes from the histories in `rows`, (r,), of `matrix`.

    `features`, (users, F), are encoded user features. `ready` of the scorer must have been called.
    """
    queries = []
    for row in rows.tolist():
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        values = matrix.data[part]
        query = Query(
            limit=1,
            seeds=matrix.indices[part].astype(np.int32),
            # As in a request without weights, so that both take the same path.
            seed_weights=None if (values == 1).all() else values.astype(np.float64),
            user_features=None if features is None else features[row].toarray()[0].astype(np.float64),
        )
        queries.append(query)
    vectors: NDArray[np.float64] = scorer.embed_cold(queries)
    return vectors
