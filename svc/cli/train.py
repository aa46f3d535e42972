"""`svc train`: train a recipe's model and write a signed artifact."""

from __future__ import annotations

import re
import secrets
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from svc.errors import SvcError, UsageError
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


def command(
    recipe_file: RecipeFile,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Take no lock. Safe only if something else prevents two writers.")
    ] = False,
    fail_on_busy: Annotated[
        bool, typer.Option("--fail-on-busy", help="If another run holds the lock, exit 6 instead of 0.")
    ] = False,
    lock_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the lock. 0 does not wait, -1 waits forever.")
    ] = 0.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log only warnings, errors and the outcome.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log the parameters of each trial.")] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
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
        Path | None, typer.Option(help="Write an HTML report of the run to this file (extra: report).")
    ] = None,
    accept_data_change: Annotated[
        bool,
        typer.Option("--accept-data-change", help="Train even if the data changed by more than cleansing.max_change."),
    ] = False,
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
    with interrupts():
        return _train(recipe_file, env_var or [], options, settings).exit_code


def _run_id(text: str | None) -> str:
    if text is None:
        return secrets.token_hex(6)
    # The id becomes a part of the name of the study in the storage.
    if not _RUN_ID.fullmatch(text):
        raise UsageError(f"--run-id: {text!r} is not a run id: use 1 to 64 letters, digits, '_', '.' or '-'")
    return text


def _train(recipe_file: Path, env_var: list[str], options: dict[str, Any], settings: Settings) -> TrainingOutcome:
    from svc.cores import shorten_blas_waits
    from svc.progress import Progress
    from svc.training.outcome import Outcome

    # Before numpy is imported, when OpenBLAS reads the variable.
    shorten_blas_waits()
    with progress_for(settings, quiet=bool(options["quiet"])) as progress:
        # After logging is set up.
        log_overridden(environment(recipe_file.parent))
        try:
            loaded, variables = load(recipe_file, env_var, settings)
        except SvcError as error:
            # A recipe that cannot be loaded ends like any failed training, with the event that monitors wait for.
            outcome = Outcome(recipe_file.stem, options["run_id"], progress or Progress())
            return outcome.log_failure(error.message, error.code, error.exit_code, error.fields)
        from svc.training.run import TrainOptions, train
        from svc.training.search.fork_server import ForkServer
        from svc.training.search.workers import work

        train_options = TrainOptions(variables=variables, **options)
        # Fork now, before the training starts threads for the sources, because a fork copies only one thread.
        with nullcontext() if train_options.refit else closing(ForkServer.from_fork(work)) as server:
            return train(loaded, train_options, settings, progress or Progress(), server)
