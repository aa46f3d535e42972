"""Feature values that ids have in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import sparse

from svc.model.features import NumberColumn, SideEncoder, TokenColumn
from svc.model.ids import IdTable
from svc.training.data.feature_overlap import N_BINS, shared_values


def fitted(*columns: Any, rows: list[list[float]]) -> Any:
    """Return an encoded side, with its constant."""
    matrix = sparse.csr_matrix(np.array([[*row, 1.0] for row in rows]))
    return cast(Any, SimpleNamespace(encoder=SideEncoder(columns), matrix=matrix))


TAG = TokenColumn("tag", "multi_label", IdTable.from_ids(["a", "b"]))
AGE = NumberColumn("age", mean=0.0, deviation=1.0, low=-9.0, high=9.0)


def test_tokens_are_shared_values_and_the_constant_is_none() -> None:
    """Two ids share a token if both have it."""
    values = shared_values(fitted(TAG, rows=[[1, 0], [1, 1], [0, 0]]), np.arange(3))
    assert values.toarray().tolist() == [[1, 0], [1, 1], [0, 0]]


def test_numbers_are_shared_by_deciles_of_the_known_ids() -> None:
    """Each id is in one bin. Neighbours in order share it, at any distance."""
    rows = [[float(n * n)] for n in range(100)]
    values = shared_values(fitted(AGE, rows=rows), np.arange(100)).toarray()
    assert values.sum(axis=1).tolist() == [1.0] * 100
    assert values.shape[1] == N_BINS
    assert values.sum(axis=0).tolist() == [10.0] * N_BINS
    assert (np.diff(values.argmax(axis=1)) >= 0).all()


def test_equal_numbers_share_a_bin() -> None:
    """A frequent number stays within one bin."""
    values = shared_values(fitted(AGE, rows=[[0.0]] * 50 + [[1.0]] * 50), np.arange(100)).toarray()
    assert len(np.unique(values[:50], axis=0)) == len(np.unique(values[50:], axis=0)) == 1
    assert not np.array_equal(values[0], values[-1])


@pytest.mark.parametrize("usual", [0.0, 5.0, 10.0], ids=["lowest", "in the middle", "highest"])
def test_a_number_that_most_share_has_a_bin_of_its_own(usual: float) -> None:
    """Smaller and larger numbers are in other bins."""
    rows = [[float(n)] for n in range(11) if n != usual] + [[usual]] * 90
    values = shared_values(fitted(AGE, rows=rows), np.arange(100)).toarray()
    many, few = values[-1], values[:10]
    assert (values[10:] == many).all()
    assert not (few == many).all(axis=1).any()


def test_a_number_of_an_unknown_id_falls_into_a_bin_of_known_ids() -> None:
    """This includes numbers below the lowest and above the highest."""
    rows = [[float(n)] for n in range(100)] + [[-7.0], [1000.0], [55.5]]
    values = shared_values(fitted(AGE, rows=rows), np.arange(100)).toarray()
    assert values[100:].argmax(axis=1).tolist() == [0, N_BINS - 1, 5]


def test_without_columns_nothing_is_shared() -> None:
    """A constant column counts as no column."""
    flat = NumberColumn("age", mean=0.0, deviation=0.0, low=0.0, high=0.0)
    assert shared_values(fitted(flat, rows=[[], []]), np.arange(2)).shape == (2, 0)
