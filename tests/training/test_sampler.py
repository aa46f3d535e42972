"""Which algorithm and which parameters a trial gets."""

from __future__ import annotations

import optuna
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from svc.training.budget import ALGORITHM, TrialPlan
from svc.training.sampler import AlgorithmSampler


def test_a_trial_beyond_the_plan_keeps_its_algorithm_whatever_others_do_meanwhile() -> None:
    spaces = {name: {"top_k": IntDistribution(1, 100)} for name in ("CosineKNN", "RP3beta")}
    sampler = AlgorithmSampler(TrialPlan({"CosineKNN": 1, "RP3beta": 1}), spaces, seed=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    first, second = study.ask(), study.ask()
    first.set_user_attr(ALGORITHM, "CosineKNN")
    second.set_user_attr(ALGORITHM, "RP3beta")
    study.tell(first, state=TrialState.FAIL)  # as if its process had died: CosineKNN lacks one
    third = study.ask()
    assert sampler.slot(study, third.number)[0] == "CosineKNN"
    # Another process fills that gap, and RP3beta loses its trial.
    study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs={ALGORITHM: "CosineKNN"}))
    study.tell(second, state=TrialState.FAIL)
    assert sampler.slot(study, third.number)[0] == "CosineKNN"
    assert 1 <= third.suggest_int("CosineKNN.top_k", 1, 100) <= 100
