"""`svc train`: train a recipe's model and write a signed artifact."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from svc.atomic_write import replace_file
from svc.cli.common import (
    Confirmed,
    DevAllowUnsigned,
    EnvVar,
    RecipeFile,
    check_unsigned,
    interrupts,
    load,
    log_overridden,
    progress_for,
)
from svc.env_file import environment
from svc.errors import ConfigError, SvcError, UsageError
from svc.metrics import TRAINING_METRICS, Metric
from svc.names import RUN_ID
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.training.outcome import TrainingOutcome

_RUN_ID = re.compile(RUN_ID)
EPILOG = """
[bold]Examples[/bold]
  svc train recipes/movies.yaml
  svc train recipes/movies.yaml --env-var SVC_RECIPE_DAY=2026-01-31
  svc train recipes/movies.yaml --run-id nightly --lock-timeout 600
  svc train recipes/movies.yaml --refit

[bold]Exit codes[/bold]
  0 success, or another run holds the lock   5 artifact not written
  2 bad recipe or usage                      6 lock held, see --fail-on-busy
  3 data source                              8 configuration
  4 training                                 9 refused: written, not live
                                             130, 143 interrupted
"""
_EXIT_CODE, _ENDED, _SECONDS, _SUCCESS, _PROMOTIONS = TRAINING_METRICS
_DECISIONS = ("promoted", "refused")
_SUCCESSFUL = (0, 9)
"""Exit codes of successful trainings. With 9 the artifact was written, but it was refused and is not live."""
_SAMPLE = re.compile(r"^([a-z_]+)\{([^}\n]*)\} ([0-9]+(?:\.[0-9]+)?)$", re.MULTILINE)


def check_metrics_file(path: Path) -> None:
    """Check before a training that its file of metrics can be written.

    Raises UsageError if the name does not end in .prom, and ConfigError if `path` is a folder or its folder is missing
    or not writable.
    """
    if path.suffix != ".prom":
        raise UsageError(f"--metrics-file: {path} must end in .prom, or the textfile collector does not read it")
    folder = path.absolute().parent
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--metrics-file: {path} cannot be written: {folder} is missing or not writable")


def write_metrics_file(path: Path, recipe: str, exit_code: int, seconds: float, decision: str | None = None) -> None:
    """Replace the file of metrics atomically. `seconds` is the duration of the run.

    A failed run keeps the time of the last success. `decision`, "promoted" or "refused", is added to the counts in the
    file. Raises ConfigError if the file cannot be written.
    """
    now, before = time.time(), _samples(path)
    success = now if exit_code in _SUCCESSFUL else before.get((_SUCCESS.name, None))
    values = {_EXIT_CODE: exit_code, _ENDED: now, _SECONDS: seconds, _SUCCESS: success}
    text = "".join(_lines(metric, {"recipe": recipe}, value) for metric, value in values.items() if value is not None)
    counts = {name: before.get((_PROMOTIONS.name, name)) for name in _DECISIONS}
    if decision is not None or any(count is not None for count in counts.values()):
        # The first decision writes both counters, because Prometheus sees no increase in a series that begins at 1.
        first, second = (
            (_PROMOTIONS, {"recipe": recipe, "decision": name}, (count or 0.0) + (name == decision))
            for name, count in counts.items()
        )
        text += _lines(*first) + _line(*second)
    try:
        replace_file(path, text.encode(), mode=0o644)  # the collector runs as another user
    except OSError as error:
        raise ConfigError(f"--metrics-file: {path} cannot be written: {error.strerror}") from None


def _lines(metric: Metric, labels: Mapping[str, str], value: float) -> str:
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n" + _line(metric, labels, value)


def _line(metric: Metric, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{name}="{label}"' for name, label in labels.items())
    return f"{metric.name}{{{shown}}} {value:.3f}\n"


def _samples(path: Path) -> dict[tuple[str, str | None], float]:
    """Return the values that the last run wrote, by metric and decision, or nothing if the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {
        (name, next((decision for decision in _DECISIONS if f'decision="{decision}"' in labels), None)): float(value)
        for name, labels, value in _SAMPLE.findall(text)
    }


def command(
    recipe_file: RecipeFile,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Take no lock. Safe only if something else prevents two writers.")
    ] = False,
    fail_on_busy: Annotated[
        bool, typer.Option("--fail-on-busy", help="If another run holds the lock, exit 6 instead of 0.")
    ] = False,
    lock_timeout: Annotated[
        float, typer.Option("--lock-timeout", help="Seconds to wait for the lock. 0 does not wait, -1 waits forever.")
    ] = 0.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log only warnings, errors and the outcome.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log the parameters of each trial.")] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id",
            help="Id of the run. The same id resumes its search in training.storage_path.",
            show_default="12 random hex characters",
        ),
    ] = None,
    env_var: EnvVar = None,
    search_only: Annotated[
        bool,
        typer.Option(
            "--search-only", help="Join a shared search (training.storage_path) and end with it, without a final model."
        ),
    ] = False,
    refit: Annotated[
        bool,
        typer.Option("--refit", help="Take the parameters of the live artifact instead of searching for new ones."),
    ] = False,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="With --refit: start from random vectors, not from those of the live artifact."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report of the run to this file (extra: report).")
    ] = None,
    accept_data_change: Annotated[
        bool,
        typer.Option("--accept-data-change", help="Train even if the data changed by more than cleansing.max_change."),
    ] = False,
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            "--metrics-file",
            help="Write metrics of the run to this .prom file, for node_exporter's textfile collector.",
        ),
    ] = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
    confirmed: Confirmed = False,
) -> int:
    """Train the recipe's model and write one signed artifact."""
    settings = Settings.from_env(environment(recipe_file.parent))
    if not (lock_timeout >= 0 or lock_timeout == -1):  # not a number is neither
        raise UsageError(f"--lock-timeout: {lock_timeout:g} is neither -1 nor zero or more seconds")
    unsigned = check_unsigned(settings, wanted=dev_allow_unsigned, confirmed=confirmed)
    options: dict[str, Any] = {
        "run_id": _run_id(run_id),
        "no_lock": no_lock,
        "fail_on_busy": fail_on_busy,
        "lock_timeout": lock_timeout,
        "quiet": quiet,
        "verbose": verbose,
        "dev_unsigned": unsigned,
        "search_only": search_only,
        "report": report,
        "accept_data_change": accept_data_change,
        "refit": refit,
        "cold": cold,
    }
    if metrics_file is not None:
        check_metrics_file(metrics_file)
    began = time.monotonic()
    with interrupts():
        name, outcome = _train(recipe_file, env_var or [], options, settings)
    # A run that ends with 0 and no artifact found the lock held by another run, or only searched.
    if metrics_file is not None and (outcome.exit_code != 0 or outcome.artifact is not None):
        write_metrics_file(metrics_file, name, outcome.exit_code, time.monotonic() - began, outcome.decision)
    return outcome.exit_code


def _run_id(text: str | None) -> str:
    if text is None:
        return secrets.token_hex(6)
    if not _RUN_ID.fullmatch(text):
        raise UsageError(f"--run-id: {text!r} is not a run id: use 1 to 64 letters, digits, '_', '.' or '-'")
    return text


def _train(
    recipe_file: Path, env_var: list[str], options: dict[str, Any], settings: Settings
) -> tuple[str, TrainingOutcome]:
    """Return the name of the recipe, or of its file if the recipe cannot be loaded, and the result of the training."""
    from svc.cores import shorten_blas_waits
    from svc.progress import Progress
    from svc.training.outcome import Outcome

    shorten_blas_waits()
    with progress_for(settings, quiet=bool(options["quiet"])) as progress:
        log_overridden(environment(recipe_file.parent))
        try:
            loaded, variables = load(recipe_file, env_var, settings)
        except SvcError as error:
            outcome = Outcome(recipe_file.stem, options["run_id"], progress or Progress())
            return recipe_file.stem, outcome.log_failure(error.message, error.code, error.exit_code, error.fields)
        from svc.training.run import TrainOptions, train
        from svc.training.search.fork_server import ForkServer
        from svc.training.search.workers import work

        train_options = TrainOptions(variables=variables, **options)
        # Fork now, before the training starts threads for the sources, because a fork copies only one thread.
        with nullcontext() if train_options.refit else closing(ForkServer.from_fork(work)) as server:
            result = train(loaded, train_options, settings, progress or Progress(), server)
        return loaded.recipe.name, result
