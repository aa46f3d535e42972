"""`svc train`: the whole sequence, its events, and its handling of errors and interrupts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svc import events, logs
from svc.artifact import keys as signing
from svc.artifact.lock import lock_path, run_lock
from svc.errors import LockContestedError, SvcError, TrainingError, UsageError, exhaustion
from svc.progress import Progress
from svc.recipe.algorithms import BLEND
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.files import record_digests
from svc.training import refit
from svc.training.data import fetch
from svc.training.fitting.algorithms.registry import check_available
from svc.training.judging.incumbent import check_data_change, read_incumbent
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import check_scores, split_data
from svc.training.outcome import REFUSED, Outcome, TrainingOutcome, now
from svc.training.publishing.header import RunFacts, header
from svc.training.publishing.publication import Inputs, fresh_fields, needs_serial, publish
from svc.training.report.page import RunReport
from svc.training.search import prepare
from svc.training.search.fork_server import ForkServer
from svc.training.search.storage import StorageLocation, preflight

if TYPE_CHECKING:
    from svc.recipe.schema import Promotion
    from svc.training.fitting.trial import TrialRecord
    from svc.training.judging.measurements import WinnerMeasurements
    from svc.training.ranker.learn import Learned


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of `svc train`.

    `lock_timeout` is the longest wait for the recipe's lock in seconds: 0 does not wait, −1 waits without a limit.
    """

    run_id: str
    variables: Mapping[str, str] = field(default_factory=dict)
    no_lock: bool = False
    fail_on_busy: bool = False
    lock_timeout: float = 0.0
    quiet: bool = False
    verbose: bool = False
    dev_unsigned: bool = False
    search_only: bool = False
    report: Path | None = None
    accept_data_change: bool = False
    refit: bool = False
    cold: bool = False


def train(
    loaded: LoadedRecipe,
    options: TrainOptions,
    settings: Settings,
    progress: Progress,
    server: ForkServer | None = None,
) -> TrainingOutcome:
    """Train the recipe, log a final event, and return the result with the exit code.

    No exception is raised, except by a second interrupt. A KeyboardInterrupt ends the training at once and removes the
    lock and temporary files. The result then has the attribute `exit_code` of the exception, or 130 if it has none.

    `server` forks the workers of the search. If it is None, the search starts a server itself.
    """
    run = _Run(loaded, options, settings, progress, server)
    try:
        return run.run()
    except KeyboardInterrupt as interrupt:
        return run.outcome.log_interrupt(int(getattr(interrupt, "exit_code", 130)))
    # Apart from other exceptions, so that no local variable holds the error: it would be in a reference cycle with this
    # frame, and CPython 3.11 may crash when it collects the views of the model in the cycle.
    except SvcError as error:
        return run.outcome.log_failure(error.message, error.code, error.exit_code, error.fields)
    except Exception as error:
        # A full disk or too little memory may come from any line, and is no defect of svc.
        limit = exhaustion(error)
        if limit is not None:
            return run.outcome.log_failure(limit.message, limit.code, limit.exit_code, {})
        return run.outcome.log_defect(error)  # a bug in svc still ends with one clear last line


def train_or_raise(loaded: LoadedRecipe, options: TrainOptions, settings: Settings, progress: Progress) -> str:
    """Train the recipe and return the location of its artifact, even if `promotion` refused it.

    Raise TrainingError if no artifact was written, and any other error of the training. The caller closes `progress`
    after an error.
    """
    artifact = _Run(loaded, options, settings, progress).run().artifact
    if artifact is None:
        raise TrainingError("no artifact was written: the run was skipped, or only searched")
    return artifact


@dataclass(eq=False)
class _Run:
    loaded: LoadedRecipe
    options: TrainOptions
    settings: Settings
    progress: Progress
    server: ForkServer | None = None

    def __post_init__(self) -> None:
        self.name = self.loaded.recipe.name
        self.inputs = Inputs(self.loaded.base_dir)
        self.outcome = Outcome(self.name, self.options.run_id, self.progress)
        self.report = RunReport(self.options.report, self.loaded, self.settings, self.progress)

    def run(self) -> TrainingOutcome:
        logs.emit(events.TRAINING_STARTED, recipe=self.name, run_id=self.options.run_id)
        for warning in self.loaded.warnings:
            self._warn(warning)
        training = self.loaded.recipe.training
        # All that can fail without data is checked before a table is read, which may take minutes.
        check_available(training.algorithms)
        location = preflight(training.storage_path, self.loaded.base_dir)
        if self.options.cold and not self.options.refit:
            raise UsageError("--cold says how a refit starts: give --refit too, or leave --cold out")
        if self.options.refit:
            refit.check_alone(location, search_only=self.options.search_only)
        if self.options.search_only:
            return self._search_only(location)
        keys = self._keys()
        self.outcome.kid = keys.active[0]
        # Also the folder of the report, because some of its figures are measured only during a training.
        self.report.check()
        try:
            with self._lock():
                return self._train(location, keys)
        except LockContestedError as error:
            # By default a scheduled run is skipped while another one works on the recipe.
            if self.options.fail_on_busy or self.options.lock_timeout != 0:
                raise
            logs.emit(
                events.RECIPE_LOCK_CONTENDED_SKIPPING, recipe=self.name, run_id=self.options.run_id, lock=error.message
            )
            return TrainingOutcome(0)

    def _warn(self, warning: Any) -> None:
        if warning.code == "algorithm_duplicate":
            logs.emit(events.ALGORITHM_DUPLICATE, algorithm=warning.value)
        else:
            logs.emit(events.RECIPE_WARNING, code=warning.code, field=warning.field, message=warning.message)

    def _keys(self) -> signing.SigningKeys:
        if self.options.dev_unsigned:
            return signing.development_keys()
        return signing.load_signing_keys(self.settings)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        if self.options.no_lock:
            yield
            return
        output = self.loaded.output_uri
        if self.loaded.recipe.output.location.is_remote:
            lock = str(lock_path(output, self.settings))
            logs.emit(events.RECIPE_LOCK_LOCAL_ONLY, recipe=self.name, output=output, lock=lock)
        with run_lock(output, timeout_s=self.options.lock_timeout, settings=self.settings):
            yield

    def _task(self, keys: signing.SigningKeys | None = None) -> prepare.SearchTask:
        # Only then, because a digest reads each local file once more.
        is_recorded = needs_serial(self.loaded, self.settings)
        with record_digests(self.inputs.record) if is_recorded else contextlib.nullcontext():
            loaded = fetch.load(self.loaded, self.settings, self.options.variables, self.progress)
        if keys is not None:
            self._check_data_change(loaded, keys)
        self.progress.phase("splitting")
        self.loaded, split = split_data(self.loaded, loaded)
        return prepare.make_task(self.loaded, loaded, split, self.settings)

    def _check_data_change(self, loaded: fetch.TrainingData, keys: signing.SigningKeys) -> None:
        bounds = self.loaded.recipe.cleansing.max_change
        if bounds is None or self.options.accept_data_change:
            return
        last = read_incumbent(self.loaded, keys, self.settings)
        if last is not None:
            check_data_change(last.header["data_stats"], loaded.interactions.counts, bounds)

    def _search(self, task: prepare.SearchTask, location: StorageLocation) -> SearchResult:
        if location.shared:
            self.outcome.kept = f"finished trials are kept: continue with --run-id {self.options.run_id}"
        search = prepare.open_search(
            task,
            location,
            self.options.run_id,
            self.progress,
            quiet=self.options.quiet,
            verbose=self.options.verbose,
            server=self.server,
        )
        logs.emit(
            events.SEARCH_STARTED,
            algorithms=list(task.plan.shares),
            n_trials=task.plan.total,
            workers=search.workers.count,
        )
        self.progress.phase("searching")
        try:
            result = search.run()
        finally:
            search.storage.close()
        if not result.completed and result.n_too_slow:
            raise TrainingError(
                f"{result.n_too_slow} of {len(result.trials)} trials were trained, but a ranking by each takes longer "
                "than training.max_rank_ms allows; trial_done events have their rank_ms: raise the limit, or list "
                "other algorithms"
            )
        if not result.completed:
            raise TrainingError(
                f"none of {len(result.trials)} trials could be completed; the trial_failed events say why. "
                "If trials ran out of time, raise training.timeout_seconds or per_trial_timeout_seconds."
            )
        if BLEND in self.loaded.recipe.training.algorithms and not self.options.search_only:
            # A worker of --search-only stops here: the training that it joins makes the blend.
            from svc.training.search.blend_search import add_blend

            result = add_blend(task, result)
        best = result.best
        logs.emit(
            events.SEARCH_DONE,
            best_class=best.algorithm,
            best_score=best.score,
            n_completed=len(result.completed),
            **({"too_slow": result.n_too_slow} if result.n_too_slow else {}),
        )
        check_scores(self.loaded, task.data, best.score or 0.0)
        return result

    def _search_only(self, location: StorageLocation) -> TrainingOutcome:
        if not location.shared:
            raise TrainingError("--search-only joins a shared search: set training.storage_path")
        result = self._search(self._task(), location)
        logs.emit(events.SEARCH_ONLY_DONE, run_id=self.options.run_id, n_completed=len(result.completed), exit_code=0)
        return TrainingOutcome(0)

    def _train(self, location: StorageLocation, keys: signing.SigningKeys) -> TrainingOutcome:
        from svc.training.final_model import train_final
        from svc.training.judging.measurements import measure_winner
        from svc.training.judging.rankers import rank_ms

        # Before the data is read, so that a changed recipe is refused at once.
        reusable = refit.find_reusable(self.loaded, keys, self.settings) if self.options.refit else None
        task = self._task(keys)
        reused = None if reusable is None else refit.start_refit(task, reusable, self.settings, cold=self.options.cold)
        if reused is None:
            result = self._search(task, location)
            self.progress.phase("measuring the winner")
        else:
            self.progress.phase("measuring the winner")
            result = refit.measure(task, *reused)
            check_scores(self.loaded, task.data, result.best.score or 0.0)
        measured = measure_winner(task, result)
        # While the winner's model is still in memory.
        curves = self.report.curves(task, result.best, measured.winner)
        result = replace(result, trained=None, evaluation=None)
        learned = self._learn_order(task, measured, result.best)
        # Drop the winner's model before the final model is trained. On large data, a model needs several times the
        # memory of its matrix, so memory may be too small for both. With `promotion`, the comparison needs the winner.
        measured = replace(measured, winner=measured.winner if self._rules else None)
        self.progress.phase("training the final model")
        final = train_final(task, result, learned if learned is not None and learned.ships else None)
        curves = {**curves, **self.report.on_features(task, result, final.aware)}
        facts = RunFacts(
            run_id=self.options.run_id,
            trained_at=now(),
            kid=keys.active[0],
            fingerprint=signing.signer_fingerprint(keys.active[1], self.settings.artifact_signature),
            task=task,
            n_interactions=int(final.matrix.nnz),
            # A blend counts as a trial, too.
            n_trials=1 if reused else task.plan.total + sum(1 for trial in result.trials if trial.parts),
            result=result,
            measured=measured,
            curves=curves,
            features_active=final.aware is not None,
            parts=final.parts,
            rank_ms=rank_ms(final.model),
            ranker=None if learned is None else learned.as_fields(),
        )
        head = header(facts) | fresh_fields(self.loaded, self.settings, keys, facts.trained_at, self.inputs)
        # The comparison comes last, because another training may have replaced the live model in the meantime.
        promotion = self._decide(task, measured, result.best, learned, rank_ms=facts.rank_ms, keys=keys)
        head |= {} if promotion is None else {"promotion": promotion}
        earlier = self.report.earlier(keys)
        self.progress.phase("writing the artifact")
        decision = None if promotion is None else promotion["decision"]
        move = promotion is None or promotion["mode"] == "report" or decision == "promoted"
        published = publish(self.loaded, head, final.model, keys, self.settings, move=move)
        exit_code = 0 if published.promoted or published.held else REFUSED
        done = TrainingOutcome(exit_code, published.artifact)
        # Before the report, so that an error in it names the artifact, which may be live.
        self.outcome.kept, self.outcome.written = published.kept, done
        self.report.write(head, final.model, earlier)
        self.outcome.done(head, published, result, self.loaded.path, exit_code)
        return done

    @property
    def _rules(self) -> Promotion | None:
        """Return the recipe's block `promotion`, or None if it is missing or its mode is "off"."""
        rules = self.loaded.recipe.promotion
        return None if rules is None or rules.mode == "off" else rules

    def _decide(
        self,
        task: prepare.SearchTask,
        measured: WinnerMeasurements,
        winner: TrialRecord,
        learned: Learned | None,
        *,
        rank_ms: float,
        keys: signing.SigningKeys,
    ) -> dict[str, Any] | None:
        if self._rules is None:
            return None
        from svc.training.judging.comparison import Candidate
        from svc.training.publishing.gate import decide

        self.progress.phase("comparing with the live model")
        own = measured.winner
        ranker = own if own is None or learned is None or not learned.ships else learned.over(task, own, winner)
        candidate = None if ranker is None else Candidate(ranker, rank_ms, measured.choice, ranker is not own)
        return decide(task, self._rules, candidate, keys, self.settings)

    def _learn_order(
        self, task: prepare.SearchTask, measured: WinnerMeasurements, winner: TrialRecord
    ) -> Learned | None:
        """Learn a ranker that reorders the items recommended to a user.

        Return None if the recipe turns it off, or if it cannot be learned (see `learn`).
        """
        if self.loaded.recipe.training.ranker == "off":
            return None
        from svc.training.ranker.learn import learn
        from svc.training.ranker.record import item_tables

        self.progress.phase("learning the order of pages")
        tables = item_tables(self.loaded, task.data, self.settings, self.options.variables)
        return learn(task, measured.winner, winner, tables)
