"""The search: ask for a trial, train it in a thread, tell its score, until the study's budget is used.

Trials run in threads of this process, at most `parallelism` at once. irspack's C++ holds the GIL, so more than one
at a time gains only where numpy works. The main thread asks, waits and tells; it never trains, so that signals and
deadlines are seen as soon as the interpreter is free.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from svc import events, logs
from svc.training import budget, trials
from svc.training.algorithms import Params
from svc.training.fit import Fitted, Stop
from svc.training.owner import own_identity
from svc.training.progress import Progress
from svc.training.sampler import AlgorithmSampler, own_parameters
from svc.training.storage import StudyStorage
from svc.training.trials import SearchResult

_POLL_S = 0.5


class Objective(Protocol):
    """Trains and scores one algorithm with one set of parameters, in a worker thread.

    May raise `Hopeless`, and whatever `check` and `report` raise must pass.
    """

    @property
    def metric(self) -> str: ...

    def __call__(
        self, algorithm: str, params: Params, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted: ...


class Hopeless(Exception):
    """These parameters cannot be trained on this data: the trial is pruned and the search goes on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`parallelism` trials at once; seconds for all trials of this process, and for each."""

    parallelism: int = 1
    timeout_s: float | None = None
    per_trial_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Talk:
    """How much is logged of single trials."""

    trials: bool = True
    parameters: bool = False


@dataclass(slots=True, eq=False)
class _Attempt:
    trial: Trial
    algorithm: str
    params: Params
    started: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.stop.is_set():
            raise Stop

    def report(self, epoch: int, score: float) -> None:
        self.check()
        self.trial.report(score, epoch)
        if self.trial.should_prune():
            raise Hopeless("clearly below its algorithm's median")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


@dataclass(slots=True, eq=False)
class Search:
    """One process's part in a study, whose sampler must be `sampler`. `run` may be called once."""

    study: Study
    storage: StudyStorage
    sampler: AlgorithmSampler
    plan: budget.TrialPlan
    objective: Objective
    limits: Limits
    progress: Progress
    talk: Talk = Talk()
    _identity: str = field(default_factory=own_identity)
    _running: dict[int, _Attempt] = field(default_factory=dict)
    _ended: queue.SimpleQueue[tuple[_Attempt, Fitted | BaseException]] = field(default_factory=queue.SimpleQueue)
    _n_orphaned: int = 0

    def run(self) -> SearchResult:
        """Work until the study's budget is used or the time is over, and return what the study then holds.

        At the end of the time running trials are left behind, unless nothing is complete yet: then the first
        complete one is waited for. On any exception, an interrupt too, running trials go back to the study.
        """
        started = time.monotonic()
        deadline = math.inf if self.limits.timeout_s is None else started + self.limits.timeout_s
        try:
            while True:
                if time.monotonic() >= deadline:
                    if not self._running or self._has_complete():
                        break
                elif not (self._fill() or self._others_work()):
                    break
                self.storage.beat([attempt.trial for attempt in self._running.values()])
                self._collect(self._patience(deadline))
                self._leave_late_trials()
        finally:
            self._give_back()
        return SearchResult(trials.records(self._trials()), time.monotonic() - started, self._n_orphaned)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _has_complete(self) -> bool:
        return any(trial.state is TrialState.COMPLETE for trial in self._trials())

    def _fill(self) -> bool:
        """Start what may be started; True while trials of this process run."""
        while len(self._running) < self.limits.parallelism and budget.n_used(self._trials()) < self.plan.total:
            self._start_next()
        return bool(self._running)

    def _others_work(self) -> bool:
        """True while another process holds a part of the budget; the part of dead ones becomes free here."""
        if not self.storage.shared:
            return False
        self.storage.release_dead_trials(self.study)
        return budget.n_finished(self._trials()) < self.plan.total

    def _start_next(self) -> None:
        trial = self.study.ask()
        algorithm, _place = self.sampler.slot(self.study, trial.number)
        trial.set_user_attr(budget.OWNER, self._identity)
        trial.set_user_attr(budget.ALGORITHM, algorithm)
        for name, distribution in self.sampler.space(algorithm).items():
            _suggest(trial, name, distribution)
        everything = self._trials()
        if not budget.is_within(everything, trial.number, self.plan.total):
            self.study.tell(trial, state=TrialState.FAIL)
            return
        attempt = _Attempt(trial, algorithm, own_parameters(algorithm, trial.params))
        if self.talk.parameters:
            logs.emit(events.TRIAL_PARAMETERS, number=trial.number, algorithm=algorithm, params=attempt.params)
        twin = trials.twin(everything, algorithm, attempt.params)
        if twin is not None:
            self._reuse(attempt, twin)
            return
        self._running[trial.number] = attempt
        threading.Thread(target=self._work, args=(attempt,), name=f"trial-{trial.number}", daemon=True).start()

    def _work(self, attempt: _Attempt) -> None:
        """Body of a trial's thread: whatever happens is put into the queue."""
        outcome: Fitted | BaseException
        try:
            outcome = self.objective(attempt.algorithm, attempt.params, check=attempt.check, report=attempt.report)
        except BaseException as error:
            outcome = error
        self._ended.put((attempt, outcome))

    def _patience(self, deadline: float) -> float:
        """Seconds that may pass before something else than a trial's end has to be looked at."""
        moments = [deadline, time.monotonic() + (_POLL_S if self.storage.shared or not self._running else 1.0)]
        if self.limits.per_trial_timeout_s is not None:
            moments += [attempt.started + self.limits.per_trial_timeout_s for attempt in self._running.values()]
        return max(0.01, min(moments) - time.monotonic())

    def _collect(self, patience_s: float) -> None:
        try:
            attempt, outcome = self._ended.get(timeout=patience_s)
        except queue.Empty:
            return
        if self._running.pop(attempt.trial.number, None) is None:
            return  # left behind before it ended
        if isinstance(outcome, Fitted):
            self._complete(attempt, outcome)
        elif isinstance(outcome, Hopeless | Stop):
            self._tell(attempt, TrialState.PRUNED)
        elif isinstance(outcome, Exception):
            self._fail(attempt, f"{type(outcome).__name__}: {outcome}")
        else:
            raise outcome

    def _complete(self, attempt: _Attempt, fitted: Fitted) -> None:
        score = fitted.metrics[self.objective.metric]
        if not math.isfinite(score):
            self._fail(attempt, f"its score is {score}")
            return
        for name, value in trials.attributes(fitted, attempt.seconds).items():
            attempt.trial.set_user_attr(name, value)
        self._tell(attempt, TrialState.COMPLETE, score)

    def _reuse(self, attempt: _Attempt, twin: FrozenTrial) -> None:
        for name in (trials.METRICS, trials.EPOCHS):
            if name in twin.user_attrs:
                attempt.trial.set_user_attr(name, twin.user_attrs[name])
        attempt.trial.set_user_attr(trials.REUSED, twin.number)
        self._tell(attempt, twin.state, twin.value if twin.state is TrialState.COMPLETE else None)

    def _fail(self, attempt: _Attempt, error: str) -> None:
        logs.emit(events.TRIAL_FAILED, number=attempt.trial.number, algorithm=attempt.algorithm, error=error)
        attempt.trial.set_user_attr(budget.SPENT, error[:500])
        self._tell(attempt, TrialState.FAIL)

    def _leave_late_trials(self) -> None:
        limit = self.limits.per_trial_timeout_s
        if limit is None:
            return
        for number, attempt in list(self._running.items()):
            if attempt.seconds > limit:
                del self._running[number]
                attempt.stop.set()
                self._n_orphaned += 1
                logs.emit(
                    events.TRIAL_TIMED_OUT,
                    number=number,
                    algorithm=attempt.algorithm,
                    seconds=round(attempt.seconds, 3),
                )
                attempt.trial.set_user_attr(budget.SPENT, "over per_trial_timeout_seconds")
                self._tell(attempt, TrialState.FAIL)

    def _give_back(self) -> None:
        """Leave what still runs; its place in the budget becomes free."""
        for attempt in self._running.values():
            attempt.stop.set()
            self._n_orphaned += 1
            with contextlib.suppress(Exception):  # a store that is gone must not hide why the search ends
                self.study.tell(attempt.trial, state=TrialState.FAIL, skip_if_finished=True)
        self._running.clear()

    def _tell(self, attempt: _Attempt, state: TrialState, score: float | None = None) -> None:
        self.study.tell(attempt.trial, score, state=state, skip_if_finished=True)
        found = SearchResult(trials.records(self._trials()), 0.0, 0)
        best = found.best if found.completed else None
        best_score = best.score if best else None
        self.progress.trial(len(found.trials), self.plan.total, best_score, best.algorithm if best else None)
        if self.talk.trials:
            logs.emit(
                events.TRIAL_DONE,
                number=attempt.trial.number,
                algorithm=attempt.algorithm,
                state=state.name.lower(),
                score=score,
                best_score=best_score,
                seconds=round(attempt.seconds, 3),
            )


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    """Take the sampler's value for `name` into the trial."""
    if isinstance(distribution, FloatDistribution):
        return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    assert isinstance(distribution, CategoricalDistribution), "irspack tunes numbers and choices"
    return trial.suggest_categorical(name, distribution.choices)
