"""`svc train`: the whole sequence, its events, and what happens when it fails or is interrupted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from svc import events, logs
from svc.artifact import keys as signing
from svc.artifact import layout
from svc.artifact.lock import lock_path, run_lock
from svc.artifact.store import open_store
from svc.errors import LockContestedError, SvcError, TrainingError
from svc.model import codec
from svc.recipe.algorithms import FEATURE_AWARE
from svc.recipe.load import LoadedRecipe
from svc.recipe.paths import classify, is_remote
from svc.settings import Settings
from svc.training import data, prepare
from svc.training.algorithms import check_available
from svc.training.header import Facts, header
from svc.training.progress import Progress
from svc.training.storage import StorageLocation, preflight
from svc.training.trials import SearchResult

INTERNAL_ERROR = "internal_error"
_FAILED = 4


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The flags of `svc train`. `lock_timeout` is seconds, −1 for ever."""

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


@dataclass(frozen=True, slots=True)
class TrainResult:
    """`artifact` is None where none was written: a failure, a skip, or `search_only`."""

    exit_code: int
    artifact: str | None = None


def train(loaded: LoadedRecipe, options: TrainOptions, settings: Settings, progress: Progress) -> TrainResult:
    """Train the recipe. Every outcome is an exit code and an event; only a second interrupt passes through.

    An interrupt (KeyboardInterrupt, whose `exit_code` is taken if it has one) ends the run at once: the lock and
    temporary files are gone when this returns.
    """
    run = _Run(loaded, options, settings, progress)
    try:
        return run.run()
    except KeyboardInterrupt as interrupt:
        return run.interrupted(int(getattr(interrupt, "exit_code", 130)))
    except SvcError as error:
        return run.failed(error.message, error.code, error.exit_code, error.fields)
    except Exception as error:  # a defect: still one clear last line
        return run.failed(f"{type(error).__name__}: {error}", INTERNAL_ERROR, _FAILED, {}, defect=error)


@dataclass(slots=True)
class _Run:
    loaded: LoadedRecipe
    options: TrainOptions
    settings: Settings
    progress: Progress
    kid: str | None = None
    kept: str = "nothing was written; the last artifact, if there is one, is unchanged"

    @property
    def name(self) -> str:
        return self.loaded.recipe.name

    def run(self) -> TrainResult:
        logs.emit(events.TRAINING_STARTED, recipe=self.name, run_id=self.options.run_id)
        for warning in self.loaded.warnings:
            self._warn(warning)
        training = self.loaded.recipe.training
        check_available(training.algorithms)
        location = preflight(training.storage_path, self.loaded.base_dir)
        if self.options.search_only:
            return self._search_only(location)
        keys = self._keys()
        self.kid = keys.active[0]
        self._check_report()
        try:
            with self._lock():
                return self._train(location, keys)
        except LockContestedError as error:
            if self.options.fail_on_busy or self.options.lock_timeout != 0:
                raise
            logs.emit(
                events.RECIPE_LOCK_CONTENDED_SKIPPING, recipe=self.name, run_id=self.options.run_id, lock=error.message
            )
            return TrainResult(0)

    def _warn(self, warning: Any) -> None:
        if warning.code == "algorithm_duplicate":
            logs.emit(events.ALGORITHM_DUPLICATE, algorithm=warning.value)
        else:
            logs.emit(events.RECIPE_WARNING, code=warning.code, field=warning.field, message=warning.message)

    def _keys(self) -> signing.SigningKeys:
        if self.options.dev_unsigned:
            return signing.development_keys()
        return signing.parse_signing_keys(self.settings.signing_keys)

    def _check_report(self) -> None:
        if self.options.report is not None:
            from svc.training.report import check_report

            check_report(self.options.report)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        if self.options.no_lock:
            yield
            return
        output = self.loaded.output_uri
        if is_remote(classify(self.loaded.recipe.output.path)):
            lock = str(lock_path(output, self.settings))
            logs.emit(events.RECIPE_LOCK_LOCAL_ONLY, recipe=self.name, output=output, lock=lock)
        with run_lock(output, timeout_s=self.options.lock_timeout, settings=self.settings):
            yield

    def _task(self, location: StorageLocation) -> prepare.Task:
        loaded = data.load(self.loaded, self.settings, self.options.variables, self.progress)
        self.progress.phase("splitting")
        split = prepare.split_data(self.loaded, loaded)
        return prepare.make_task(self.loaded, loaded, split, self.settings, shared=location.shared)

    def _search(self, task: prepare.Task, location: StorageLocation) -> SearchResult:
        if location.shared:
            self.kept = f"finished trials are kept: continue with --run-id {self.options.run_id}"
        search = prepare.open_search(
            task,
            location,
            self.options.run_id,
            self.progress,
            quiet=self.options.quiet,
            verbose=self.options.verbose,
        )
        logs.emit(events.SEARCH_STARTED, algorithms=list(task.plan.shares), n_trials=task.plan.total)
        self.progress.phase("searching")
        try:
            result = search.run()
        finally:
            search.storage.close()
        if not result.completed:
            raise TrainingError(
                f"none of {len(result.trials)} trials could be completed; the trial_failed events say why. "
                "If trials ran out of time, raise training.timeout_seconds or per_trial_timeout_seconds."
            )
        best = result.best
        logs.emit(
            events.SEARCH_DONE, best_class=best.algorithm, best_score=best.score, n_completed=len(result.completed)
        )
        prepare.check_scores(self.loaded, task.data, best.score or 0.0)
        return result

    def _search_only(self, location: StorageLocation) -> TrainResult:
        if not location.shared:
            raise TrainingError("--search-only joins a shared search: set training.storage_path")
        result = self._search(self._task(location), location)
        logs.emit(events.SEARCH_ONLY_DONE, run_id=self.options.run_id, n_completed=len(result.completed), exit_code=0)
        return TrainResult(0)

    def _train(self, location: StorageLocation, keys: signing.SigningKeys) -> TrainResult:
        task = self._task(location)
        result = self._search(task, location)
        self.progress.phase("training the final model")
        started = time.monotonic()
        matrix, model = self._final_model(task, result)
        cold_start = self._cold_start(task, result, time.monotonic() - started)
        facts = Facts(
            run_id=self.options.run_id,
            trained_at=_now(),
            kid=keys.active[0],
            data=task.data,
            n_interactions=int(matrix.nnz),
            n_heldout=task.split.n_heldout,
            algorithms=self.loaded.recipe.training.algorithms,
            n_trials=task.plan.total,
            result=result,
            cold_start=cold_start,
        )
        head = header(self.loaded, facts)
        artifact = self._write(head, model, keys)
        self._report(head, result, matrix)
        self._done(head, artifact, result)
        return TrainResult(0, artifact)

    def _final_model(self, task: prepare.Task, result: SearchResult) -> tuple[Any, Any]:
        from svc.training.export import export
        from svc.training.objective import refit_winner

        best, interactions = result.best, task.data.interactions
        logs.emit(events.TRAINING_FINAL_MODEL, recommender=best.algorithm)
        matrix = interactions.matrix()
        trained = refit_winner(task.builder, best, matrix, task.features)
        logs.emit(events.FINAL_MODEL_TRAINED, recommender=best.algorithm)
        model = export(
            trained,
            best.algorithm,
            user_ids=interactions.user_ids,
            item_ids=interactions.item_ids,
            X=matrix,
            features=task.data.feature_state if best.algorithm == FEATURE_AWARE else None,
        )
        return matrix, model

    def _cold_start(self, task: prepare.Task, result: SearchResult, refit_s: float) -> Mapping[str, Any]:
        if not task.data.sides or result.best.algorithm != FEATURE_AWARE:
            return {}
        from svc.training.coldstart import evaluate_cold_start

        self.progress.phase("evaluating cold start")
        return evaluate_cold_start(task, result, refit_s)

    def _write(self, head: dict[str, Any], model: Any, keys: signing.SigningKeys) -> str:
        self.progress.phase("writing the artifact")
        kid, key = keys.active
        payload = codec.encode(model)
        versioning = self.loaded.recipe.output.versioning
        published = open_store(self.loaded.output_uri, self.settings).publish(
            lambda out: layout.write(out, kid=kid, key=key, header=head, payload=payload), versioning
        )
        written = published.written
        self.kept = f"the new artifact {published.pointer or published.artifact} is in place"
        pointer = {} if published.pointer is None else {"pointer": published.pointer}
        logs.emit(
            events.ARTIFACT_WRITTEN,
            versioning=versioning,
            artifact=published.artifact,
            **pointer,
            kid=kid,
            artifact_bytes=written.artifact_bytes,
            payload_bytes=written.payload_bytes,
        )
        self._warn_of_caps(written)
        return published.artifact

    def _warn_of_caps(self, written: layout.Written) -> None:
        settings = self.settings
        over_payload = written.payload_bytes > settings.max_payload_bytes
        if not over_payload and written.artifact_bytes <= settings.max_artifact_bytes:
            return
        logs.emit(
            events.ARTIFACT_PAYLOAD_EXCEEDS_SERVE_CAP,
            artifact_bytes=written.artifact_bytes,
            payload_bytes=written.payload_bytes,
            max_artifact_bytes=settings.max_artifact_bytes,
            max_payload_bytes=settings.max_payload_bytes,
            setting="SVC_MAX_PAYLOAD_BYTES" if over_payload else "SVC_MAX_ARTIFACT_BYTES",
        )

    def _report(self, head: Mapping[str, Any], result: SearchResult, matrix: Any) -> None:
        if self.options.report is None:
            return
        from svc.training.report import write_report

        self.progress.phase("writing the report")
        write_report(self.options.report, head, result, matrix)
        logs.emit(events.REPORT_WRITTEN, path=str(self.options.report))

    def _done(self, head: Mapping[str, Any], artifact: str, result: SearchResult) -> None:
        stats = head["data_stats"]
        self.progress.close()
        logs.emit(
            events.TRAIN_DONE,
            name=self.name,
            run_id=self.options.run_id,
            exit_code=0,
            artifact=artifact,
            best_class=head["best_class"],
            best_score=head["best_score"],
            trials=len(result.trials),
            n_orphaned=result.n_orphaned,
            trained_at=head["trained_at"],
            kid=head["kid"],
            recipe_hash=head["recipe_hash"],
            **{name: stats[name] for name in ("n_rows", "n_users", "n_items")},
        )

    def failed(
        self, message: str, code: str, exit_code: int, fields: Mapping[str, Any], defect: Exception | None = None
    ) -> TrainResult:
        self.progress.close()
        if defect is not None:
            fields = {**fields, "traceback": _where(defect)}
        known = {} if self.kid is None else {"kid": self.kid}
        logs.emit(
            events.TRAIN_ERROR,
            error=message,
            code=code,
            name=self.name,
            run_id=self.options.run_id,
            exit_code=exit_code,
            trained_at=_now(),
            **known,
            **fields,
        )
        return TrainResult(exit_code)

    def interrupted(self, exit_code: int) -> TrainResult:
        self.progress.close()
        logs.emit(
            events.TRAIN_INTERRUPTED,
            name=self.name,
            run_id=self.options.run_id,
            exit_code=exit_code,
            kept=self.kept,
        )
        return TrainResult(exit_code)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _where(error: Exception) -> list[str]:
    """The innermost places that a defect went through, for a report of it."""
    import traceback

    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]
