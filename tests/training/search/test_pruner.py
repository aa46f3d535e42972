"""Trials that are clearly worse than others of their algorithm are pruned."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState, create_trial

from svc.training.search import budget, screening
from svc.training.search.pruner import complete_curves, is_outclassed
from tests.training.search.test_loop import KNN, SLIM


def test_screening_scores_are_compared_with_screening_scores_only() -> None:
    """Those of pruned trials are included, and those of epochs are not."""
    study = optuna.create_study(direction="maximize")
    for state, curve in (
        (TrialState.COMPLETE, {0: 0.9, 1: 0.1}),
        (TrialState.PRUNED, {0: 0.2}),
        (TrialState.COMPLETE, {0: 0.4}),
        (TrialState.FAIL, {0: 0.7}),
    ):
        study.add_trial(
            create_trial(
                state=state,
                value=0.5 if state is TrialState.COMPLETE else None,
                user_attrs={budget.ALGORITHM: "A"},
                intermediate_values=curve,
            )
        )
    assert screening.scores(study.trials, "A") == (0.9, 0.2, 0.4)
    others = complete_curves(study.trials, "A")
    assert others == ({0: 0.9, 1: 0.1},)
    assert not is_outclassed({0: 0.0}, others, n_startup=1, n_warmup=0)
    assert not is_outclassed({0: 0.0, 1: 0.2}, others, n_startup=1, n_warmup=0)
    assert is_outclassed({0: 0.9, 1: 0.05}, others, n_startup=1, n_warmup=0)


def test_pruning_compares_trials_of_one_algorithm_only() -> None:
    """A trial below their median after the warm-up is pruned. A better one, or one of another algorithm, is not."""
    study = optuna.create_study(direction="maximize")
    for algorithm, scores in ((KNN, [0.5, 0.6]), (KNN, [0.4, 0.5]), (KNN, [0.5, 0.7]), (SLIM, [0.01, 0.02])):
        study.add_trial(
            create_trial(
                value=scores[-1],
                user_attrs={budget.ALGORITHM: algorithm},
                intermediate_values=dict(enumerate(scores, start=1)),
            )
        )
    others = complete_curves(study.trials, KNN)
    assert len(others) == 3
    assert is_outclassed({1: 0.1, 2: 0.2}, others, n_startup=2, n_warmup=1)
    assert not is_outclassed({1: 0.1}, others, n_startup=2, n_warmup=1)
    assert not is_outclassed({1: 0.1, 2: 0.9}, others, n_startup=2, n_warmup=1)
    assert not is_outclassed({1: 0.01, 2: 0.02}, complete_curves(study.trials, SLIM), n_startup=2, n_warmup=1)
