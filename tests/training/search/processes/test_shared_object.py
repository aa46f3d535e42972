"""One copy of a search's matrices for all worker processes."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from svc.training.search.processes.shared_object import attach, share


def test_a_shared_object_is_the_same_and_its_arrays_are_not_copied() -> None:
    """Arrays, matrices and repeated references are restored. A change is visible only in its own process."""
    matrix = sparse.random(200, 100, density=0.1, format="csr", dtype=np.float32, random_state=1)
    value = {"a": matrix, "again": matrix, "empty": np.zeros(0), "odd": np.arange(7)[::2], "text": "x"}
    memory, location = share(value)
    first, second = attach(location), attach(location)
    del memory
    assert (first["a"] != matrix).nnz == 0
    assert first["a"] is first["again"]
    assert first["odd"].tolist() == [0, 2, 4, 6]
    assert first["empty"].size == 0
    assert len(location.pickled) < 4096
    first["a"].data[:] = 0
    assert (second["a"] != matrix).nnz == 0
