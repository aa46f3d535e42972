"""irspack's BPRFMRecommender with a seed, which irspack itself does not pass on to LightFM."""

from __future__ import annotations

from typing import Any

import numpy as np
from irspack.recommenders.bpr import BPRFMRecommender, BPRFMTrainer


# Not registered, so that irspack's own table of classes by name stays as it is.
class SeededBPRFMRecommender(BPRFMRecommender, register_class=False):
    """irspack's BPRFMRecommender, which trains the same model again with the same `random_seed` on one thread."""

    def __init__(self, matrix: Any, *, random_seed: int = 42, **parameters: Any) -> None:
        super().__init__(matrix, **parameters)
        self.random_seed = random_seed

    def _create_trainer(self) -> BPRFMTrainer:
        trainer = super()._create_trainer()
        trainer.fm.random_state = np.random.RandomState(self.random_seed)
        return trainer
