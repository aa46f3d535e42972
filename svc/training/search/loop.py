"""The loop of a search: create trials, let workers train them and store their scores, until the budget is used.

Optuna calls this "ask" and "tell". To ask is to create a trial in the study and suggest its parameters. To tell is to
store the result of a trial in the study, so that later suggestions learn from it. The main thread asks, waits and
tells. It never trains, so that it can handle signals, deadlines and heartbeats.

A search in one process asks and tells in a fixed order, whatever the order in which trials end. When it asks for trial
k, exactly the trials up to number k - `_ahead` have been told. So the same seed and number of workers give the same
search. A search shared by several processes tells each result at once, so that the other processes learn from it early.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from svc import events, logs
from svc.progress import Progress
from svc.training.judging.recency import Fitted
from svc.training.judging.search_result import SearchResult
from svc.training.search import budget, trials
from svc.training.search.sampler import AlgorithmSampler, own_parameters
from svc.training.search.storage import StudyStorage, own_identity
from svc.training.search.trial_task import TrialOutcome, TrialTask, known_curves
from svc.training.search.workers import Workers

_POLL_S = 0.5
_AHEAD = 3
"""Maximum number of trials that are asked for and not yet told, for each of several workers in a search of one process.

With 3, other workers need not wait for a long trial.
"""


@dataclass(slots=True, eq=False)
class _Attempt:
    """A trial that has been asked for and not yet told.

    The trial waits for a worker, is trained by `worker`, and then has an `outcome`.
    """

    trial: Trial
    task: TrialTask
    worker: int | None = None
    submitted: float = 0.0
    outcome: TrialOutcome | None = None
    timed_out: bool = False


@dataclass(slots=True, eq=False)
class Search:
    """The search of one process in a study. `run` may be called once.

    - `timeout_s` limits all trials of this process together, and `per_trial_timeout_s` limits each trial.
    - `max_rank_ms` is the longest time for a single ranking. A trial whose model needs longer cannot be chosen.
    - `at_once` limits the number of simultaneous trials of each algorithm that needs much memory.

    A `quiet` search logs no event for a finished trial. A `verbose` search also logs the parameters of each trial.

    The search keeps the scores of complete trials for each user, (users,), in `sampler.by_user`, up to a limit of
    memory (see `drop_worst_scores`).
    """

    study: Study
    storage: StudyStorage
    sampler: AlgorithmSampler
    workers: Workers
    metric: str
    progress: Progress
    timeout_s: float | None = None
    per_trial_timeout_s: float | None = None
    max_rank_ms: float | None = None
    at_once: Mapping[str, int] = field(default_factory=dict)
    quiet: bool = False
    verbose: bool = False
    _identity: str = field(default_factory=own_identity)
    _asked: dict[int, _Attempt] = field(default_factory=dict)
    _ended: queue.SimpleQueue[tuple[int, TrialOutcome]] = field(default_factory=queue.SimpleQueue)
    _n_orphaned: int = 0

    def run(self) -> SearchResult:
        """Run trials until the budget is used up or the time is over, and return the result of the search.

        When the time is over, running trials are abandoned. But if no trial is complete by then, the search waits until
        one is complete or none runs any more. Abandoned trials are marked as failed, so that other processes can use
        their places in the budget. This also happens after an exception or an interrupt.
        """
        started = time.monotonic()
        deadline = math.inf if self.timeout_s is None else started + self.timeout_s
        try:
            while True:
                if time.monotonic() >= deadline:
                    if not self._running() or self._has_complete():
                        break
                elif not (self._fill() or self._others_work()):
                    break
                self.storage.beat([attempt.trial for attempt in self._asked.values()])
                self._collect(self._patience(deadline))
                self._leave_late_trials()
        finally:
            self._give_back()
            self.workers.close()
        return SearchResult(
            trials.records(self._trials()),
            time.monotonic() - started,
            self._n_orphaned,
            self.workers.count,
            self.sampler.by_user,
        )

    @property
    def _ahead(self) -> int:
        """Return the largest number of trials that are asked for and not yet told."""
        count = self.workers.count
        return count if self.storage.shared or count == 1 else _AHEAD * count

    def _trials(self) -> list[FrozenTrial]:
        # Optuna copies all trials by default, which takes 11 ms for 200 trials, several times a trial.
        return self.study.get_trials(deepcopy=False)

    def _running(self) -> list[_Attempt]:
        return [attempt for attempt in self._asked.values() if attempt.worker is not None]

    def _has_complete(self) -> bool:
        outcomes = [attempt.outcome for attempt in self._asked.values() if attempt.outcome is not None]
        return any(outcome.fitted is not None for outcome in outcomes) or any(
            trial.state is TrialState.COMPLETE for trial in self._trials()
        )

    def _fill(self) -> bool:
        """Tell, ask for and start as many trials as allowed. Return True while this process has untold trials.

        Asking comes first, so after each told trial the next trial is asked for. The results that a suggestion can
        learn from then depend only on its trial's number.
        """
        while self._ask_next() or self._tell_next():
            pass
        for attempt in self._asked.values():
            waits = attempt.worker is None and attempt.outcome is None
            if waits and self._may_start(attempt.task.algorithm):
                attempt.submitted = time.monotonic()
                attempt.worker = self._submit(attempt.task)
        return bool(self._asked)

    def _may_start(self, algorithm: str) -> bool:
        running = self._running()
        alike = sum(1 for attempt in running if attempt.task.algorithm == algorithm)
        return len(running) < self.workers.count and alike < self.at_once.get(algorithm, len(running) + 1)

    def _submit(self, task: TrialTask) -> int:
        return self.workers.submit(task, lambda outcome: self._ended.put((task.number, outcome)))

    def _others_work(self) -> bool:
        """Release the trials of dead processes. Return True while fewer trials have finished than the budget has.

        The missing trials are trained by other processes, or this process can ask for them. If the storage is not
        shared, do nothing and return False.
        """
        if not self.storage.shared:
            return False
        self.storage.release_dead_trials(self.study)
        return budget.n_finished(self._trials()) < self.sampler.plan.total

    def _ask_next(self) -> bool:
        """Create one trial and suggest its parameters. Return False if no further trial may be created at present.

        If other processes have used up the budget in the meantime, the new trial is marked as failed.
        """
        if len(self._asked) >= self._ahead or budget.n_used(self._trials()) >= self.sampler.plan.total:
            return False
        # Created before its algorithm is known, because the storage assigns the number that decides it.
        trial = self.storage.new_trial(self.study, {budget.OWNER: self._identity})
        others = [other for other in self._trials() if other.number != trial.number]
        algorithm, position = self.sampler.choose_algorithm(trial.number, others)
        trial.set_user_attr(budget.ALGORITHM, algorithm)
        suggested = self.sampler.suggest(trial.number, algorithm, position, others)
        self.storage.set_params(trial, suggested, self.sampler.space(algorithm))
        others = [other for other in self._trials() if other.number != trial.number]
        # Another process may have created trials since the check above.
        if not budget.is_within(others, trial.number, self.sampler.plan.total):
            self.study.tell(trial, state=TrialState.FAIL)
            return True
        params = own_parameters(algorithm, suggested)
        if self.verbose:
            logs.emit(events.TRIAL_PARAMETERS, number=trial.number, algorithm=algorithm, params=params)
        task = TrialTask(trial.number, algorithm, params, known_curves(others, algorithm))
        self._asked[trial.number] = _Attempt(trial, task)
        return True

    def _patience(self, deadline: float) -> float:
        """Return the longest time to wait for the end of a trial, in seconds.

        The wait ends after at most a second, at a trial's time limit, or at the deadline.
        """
        running, now = self._running(), time.monotonic()
        moments = [deadline, now + (_POLL_S if self.storage.shared or not running else 1.0)]
        if self.per_trial_timeout_s is not None:
            moments += [now - self._seconds(attempt) + self.per_trial_timeout_s for attempt in running]
        # Never 0: `get` of a queue refuses a negative timeout, and a limit that has just passed must not spin.
        return max(0.01, min(moments) - now)

    def _seconds(self, attempt: _Attempt) -> float:
        """Return for how many seconds a running `attempt` has been trained, without the start of its worker."""
        assert attempt.worker is not None, "only running trials have a worker"
        ready = self.workers.ready_at(attempt.worker)
        return 0.0 if ready is None else time.monotonic() - max(attempt.submitted, ready)

    def _collect(self, patience_s: float) -> None:
        try:
            # One outcome a turn, so that deadlines and heartbeats are looked at between any two.
            number, outcome = self._ended.get(timeout=patience_s)
        except queue.Empty:
            return
        attempt = self._asked.get(number)
        if attempt is None or attempt.worker is None:
            return  # abandoned before it ended
        self.workers.release(attempt.worker)
        attempt.worker, attempt.outcome = None, outcome

    def _tell_next(self) -> bool:
        """Tell the study the result of one trial, and return False if none may be told now.

        In a shared search, this is the oldest trial that has ended. Otherwise only the oldest of all may be told.
        """
        for number, attempt in self._asked.items():
            if attempt.outcome is not None:
                del self._asked[number]
                self._conclude(attempt, attempt.outcome)
                return True
            if not self.storage.shared:
                return False
        return False

    def _conclude(self, attempt: _Attempt, outcome: TrialOutcome) -> None:
        for epoch, score in outcome.curve.items():
            attempt.trial.report(score, epoch)
        if outcome.fitted is not None:
            self._complete(attempt, outcome.fitted, outcome.seconds)
        elif outcome.error:
            self._fail(attempt, outcome.error)
        else:
            self._tell(attempt, TrialState.PRUNED)

    def _complete(self, attempt: _Attempt, fitted: Fitted, seconds: float) -> None:
        score = fitted.metrics[self.metric]
        if not math.isfinite(score):
            self._fail(attempt, f"its score is {score}")
            return
        for name, value in trials.attributes(fitted, seconds).items():
            attempt.trial.set_user_attr(name, value)
        rank_ms, limit = fitted.rank_ms, self.max_rank_ms
        if rank_ms is not None and limit is not None and rank_ms > limit:
            attempt.trial.set_user_attr(trials.TOO_SLOW, True)
            self._tell(attempt, TrialState.PRUNED)
            return
        if fitted.by_user is not None:
            self.sampler.by_user[attempt.task.number] = fitted.by_user
        self._tell(attempt, TrialState.COMPLETE, score)

    def _fail(self, attempt: _Attempt, error: str) -> None:
        if not attempt.timed_out:  # the time limit has been logged
            logs.emit(events.TRIAL_FAILED, number=attempt.task.number, algorithm=attempt.task.algorithm, error=error)
        attempt.trial.set_user_attr(budget.SPENT, error[:500])
        self._tell(attempt, TrialState.FAIL)

    def _leave_late_trials(self) -> None:
        limit = self.per_trial_timeout_s
        if limit is None:
            return
        for attempt in self._running():
            seconds = self._seconds(attempt)
            if seconds <= limit:
                continue
            logs.emit(
                events.TRIAL_TIMED_OUT,
                number=attempt.task.number,
                algorithm=attempt.task.algorithm,
                seconds=round(seconds, 3),
            )
            self._abandon(attempt)
            attempt.timed_out = True
            attempt.outcome = TrialOutcome(seconds, error="over per_trial_timeout_seconds")

    def _abandon(self, attempt: _Attempt) -> None:
        assert attempt.worker is not None, "only running trials can be left"
        self.workers.abandon(attempt.worker)
        attempt.worker = None
        self._n_orphaned += 1

    def _give_back(self) -> None:
        """Abandon running trials, and tell the results of ended trials.

        Mark all other trials as failed, which frees their places in the budget.
        """
        for attempt in self._running():
            self._abandon(attempt)
        for attempt in self._asked.values():
            with contextlib.suppress(Exception):  # an unreachable storage must not hide the error that ends the search
                if attempt.outcome is not None:
                    self._conclude(attempt, attempt.outcome)
                else:
                    self.study.tell(attempt.trial, state=TrialState.FAIL, skip_if_finished=True)
        self._asked.clear()

    def _tell(self, attempt: _Attempt, state: TrialState, score: float | None = None) -> None:
        # Another process may have released this trial as one of a dead process, if this process was stopped for a
        # minute.
        self.study.tell(attempt.trial, score, state=state, skip_if_finished=True)
        result = SearchResult(trials.records(self._trials()), 0.0, 0)
        trials.drop_worst_scores(self.sampler.by_user, result)
        best = result.best if result.completed else None
        best_score = best.score if best else None
        n_done, total = len(result.trials), self.sampler.plan.total
        note = f"{n_done}/{total} trials" + (f", best {best.score:.4f} ({best.algorithm})" if best else "")
        self.progress.advance(n_done, total, note)
        if not self.quiet:
            (record,) = (record for record in result.trials if record.number == attempt.task.number)
            logs.emit(
                events.TRIAL_DONE,
                number=attempt.task.number,
                algorithm=attempt.task.algorithm,
                state=state.name.lower(),
                score=score,
                best_score=best_score,
                seconds=round(attempt.outcome.seconds, 3) if attempt.outcome else 0.0,
                **({} if record.rank_ms is None else {"rank_ms": record.rank_ms}),
                **({"too_slow": True} if record.too_slow else {}),
            )
