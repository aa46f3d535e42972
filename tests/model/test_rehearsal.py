"""A model that cannot answer is found before it serves a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from svc.errors import RehearsalFailed
from svc.model.ids import IdTable
from svc.model.recommenders.factors import SVDScorer
from svc.model.rehearsal import N_USERS, rehearse, require_known_users
from tests.model.test_model import FAMILIES, factors, made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("features", [False, True])
def test_every_family_passes(family: str, features: bool) -> None:
    """Known users, a single one, and every kind of cold start get answers, alone and in a batch."""
    model = made(family, features=features and family == "ials")
    model.ready()
    cold = 3 if model.features is not None else 1
    assert len(rehearse(model)) == N_USERS + 1 + 2 * cold


def test_a_small_model_is_rehearsed_with_all_users() -> None:
    """A model with fewer users than a rehearsal needs is rehearsed with all of them."""
    model = made("popularity")
    model.user_ids = IdTable.from_ids([f"u{i}" for i in range(7)])
    model.ready = lambda: None  # type: ignore[method-assign]
    assert len(rehearse(model)) == 7 + 1 + 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_user_without_finite_scores_is_found_in_any_row(bad: float) -> None:
    """One broken user of the 32 is enough, and the error names its row."""
    model = made("svd")
    row = int(model.user_ids.rows[N_USERS - 1])
    users = factors(len(model.user_ids))
    users[row] = bad
    model.scorer = SVDScorer(users, model.scorer.index)  # type: ignore[attr-defined]
    model.ready()
    with pytest.raises(RehearsalFailed, match=f"the user in row {row} got scores that are not finite"):
        rehearse(model)


@pytest.mark.parametrize("family", ["svd", "bpr"])
def test_factors_that_are_nan_are_found(family: str) -> None:
    """NaN is found in all factors, in those of the users, and in one item among thousands."""
    for broken in ("users", "all", "one item"):
        model = made(family)
        index: Any = model.scorer.index  # type: ignore[attr-defined]
        if broken != "one item":
            model.scorer.users = np.full_like(model.scorer.users, np.nan)  # type: ignore[attr-defined]
        if broken != "users":
            index.factors = index.factors.copy()
            index.factors[1234 if broken == "one item" else slice(None)] = np.nan
        with np.errstate(all="ignore"), pytest.raises(RehearsalFailed):
            model.ready()
            rehearse(model)


def test_an_error_for_one_user_is_named() -> None:
    """The error names the user and the cause."""
    model = made("neighbours")
    model.ready()
    row = int(model.user_ids.rows[5])
    rank = model.rank

    def failing(queries: Any) -> Any:
        if any(query.user == row for query in queries):
            raise IndexError("index 7 is out of bounds")
        return rank(queries)

    model.rank = failing  # type: ignore[method-assign]
    with pytest.raises(RehearsalFailed, match=f"row {row} got no answer: IndexError: index 7 is out of bounds"):
        rehearse(model)


def test_an_id_table_that_does_not_find_its_own_ids_is_refused() -> None:
    """Such a model would answer 404 for its own users."""
    model = made("popularity")
    model.ready()
    ids = model.user_ids
    model.user_ids = IdTable(ids.blob, ids.offsets, ids.hashes[::-1].copy(), ids.rows)
    with pytest.raises(RehearsalFailed, match="is not found in the table of ids"):
        rehearse(model)


def test_the_share_of_known_users_counts_all_users_of_the_live_model() -> None:
    """Exactly the share passes. One user less is refused, with both counts."""
    live = IdTable.from_ids([str(number) for number in range(100)])
    half = IdTable.from_ids([str(number) for number in range(50)] + [f"new{number}" for number in range(500)])
    require_known_users(half, live, 0.5)
    with pytest.raises(RehearsalFailed, match="50 of the live model's 100 users are known to the new model"):
        require_known_users(half, live, 0.51)
    floats = IdTable.from_ids([f"{number}.0" for number in range(100)])
    with pytest.raises(RehearsalFailed, match="0 of the live model's 100 users"):
        require_known_users(floats, live, 0.01)
    require_known_users(floats, live, 0.0)
