"""BPR of the extra `bprfm`, trained with a seed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from scipy import sparse

from svc.training.fitting.train import Builder, train_epochs

pytestmark = pytest.mark.skipif(find_spec("lightfm") is None, reason="lightfm comes with the extra `bprfm`")


@pytest.mark.filterwarnings("ignore")
def test_the_same_seed_gives_the_same_model() -> None:
    """irspack does not seed LightFM's random numbers, so svc does."""
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((40, 30)) < 0.2).astype(np.float32))

    def items(seed: int) -> np.ndarray:
        builder = Builder(seed, None, 1)
        trained = train_epochs(builder.build("BPRFMRecommender", matrix, {"n_components": 4}, {}), 3)
        return np.array(trained.get_item_embedding())

    np.testing.assert_array_equal(items(1), items(1))
    assert np.abs(items(1) - items(2)).max() > 0
