"""Options, keys, signals and progress that several commands share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from svc import events, logs
from svc.env_file import Environment, environment, keys_hint
from svc.errors import ConfigError
from svc.progress import Progress, TerminalBar
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.artifact.keys import SigningKeys
    from svc.recipe.load import LoadedRecipe


RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.", show_default=False)]
EnvVar = Annotated[
    list[str] | None,
    typer.Option(
        "--env-var",
        metavar="KEY=VALUE",
        help="A variable for ${...} in the recipe, `SVC_RECIPE_X=value`. Can be repeated.",
        show_default=False,
    ),
]


def log_overridden(environ: Environment) -> None:
    """Log the variables of the file (SVC_ENV_FILE or keys.env) that the environment overrides, if there are any."""
    if environ.overridden:
        logs.emit(events.VARIABLES_OVERRIDDEN, file=str(environ.file), variables=environ.overridden)


def load(
    recipe_file: Path, extra: Sequence[str] | None, settings: Settings, *, for_serving: bool = False
) -> tuple[LoadedRecipe, dict[str, str]]:
    """Return the checked recipe, and the variables for its `${...}`. `extra` are the `KEY=VALUE` pairs of --env-var.

    With `for_serving` the recipe is read as a server reads it, so fields that only training uses may refer to variables
    that are not set. Raises RecipeError, UsageError for an invalid pair, and ConfigError for an invalid keys.env.
    """
    from svc.recipe.load import load_recipe
    from svc.recipe.variables import recipe_variables
    from svc.sources.base import check_spec

    variables = recipe_variables(environment(recipe_file.parent), extra or ())
    loaded = load_recipe(recipe_file, variables, settings=settings, for_serving=for_serving, check_source=check_spec)
    return loaded, variables


CONFIRMATION = "--i-understand-this-loads-arbitrary-code"

DevAllowUnsigned = Annotated[
    bool,
    typer.Option(
        "--dev-allow-unsigned",
        help="Sign and verify with a built-in key that everybody knows. Needs SVC_ENV=development.",
    ),
]
Confirmed = Annotated[bool, typer.Option(CONFIRMATION, help="Confirms --dev-allow-unsigned.")]


def check_unsigned(settings: Settings, *, wanted: bool, confirmed: bool, runs_payload: bool = True) -> bool:
    """Return `wanted`, which tells whether --dev-allow-unsigned is given.

    With this option, the command signs and verifies with a key that anybody knows.

    - `confirmed` tells whether CONFIRMATION is given.
    - `runs_payload` is True for a command that decodes or makes a payload. Such a command needs the confirmation.

    Raises ConfigError if the confirmation is given alone, if the option is given outside SVC_ENV=development, and if
    `runs_payload` is True and the option is given without the confirmation.
    """
    if not wanted:
        if confirmed:
            raise ConfigError(f"{CONFIRMATION} is given without --dev-allow-unsigned: give both or neither")
        return False
    # Anybody can sign with this key, so a server in production must not accept it by mistake.
    if settings.env != "development":
        raise ConfigError("--dev-allow-unsigned needs SVC_ENV=development; elsewhere set SVC_SIGNING_KEYS")
    if runs_payload and not confirmed:
        raise ConfigError(f"--dev-allow-unsigned also needs {CONFIRMATION}")
    return True


def verifying_keys(settings: Settings, *, unsigned: bool, artifact: str | None = None) -> SigningKeys:
    """Return the keys that an artifact may be signed with. In unsigned mode this is the development key alone.

    Raises UsageError if `artifact` has the extension of a table or a recipe. If no keys are set, raises
    ArtifactReadError if `artifact` is a missing local file, else ConfigError. Raises ConfigError for invalid keys too.
    """
    from svc.artifact.keys import development_keys, load_signing_keys
    from svc.artifact.store import refuse_other_kinds, require_file

    if artifact is not None:
        # Before the keys, because the wrong file is the first mistake to mend.
        refuse_other_kinds(artifact)
    if unsigned:
        return development_keys()
    keys = load_signing_keys(settings)
    if not keys:
        if artifact is not None:
            require_file(artifact)
        raise ConfigError(
            "SVC_SIGNING_KEYS is not set: set it, or SVC_VERIFY_KEYS, to the keys that the artifact may be signed with"
            f"{'' if artifact is None else keys_hint(artifact)}"
        )
    return keys


def open_recipe(
    recipe_file: Path, env_var: Sequence[str] | None, *, unsigned: bool
) -> tuple[LoadedRecipe, SigningKeys, Settings]:
    """Return the recipe as a server reads it, the keys of its versions, and the settings. Sets up logging.

    `unsigned` tells whether --dev-allow-unsigned is given. Raises the errors of `check_unsigned`, `load` and
    `verifying_keys`.
    """
    settings = Settings.from_env(environment(recipe_file.parent))
    check_unsigned(settings, wanted=unsigned, confirmed=False, runs_payload=False)
    logs.configure(settings)
    loaded, _ = load(recipe_file, env_var, settings, for_serving=True)
    return loaded, verifying_keys(settings, unsigned=unsigned), settings


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal asks this command to end.

    It is a `KeyboardInterrupt`, so no `except Exception` catches it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """Return the exit code that a shell reports for a process that the signal ended: 130, 143 or 129."""
        return 128 + self.signum


def _raise(signum: int, _frame: FrameType | None) -> None:
    raise Interrupted(signum)


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise `Interrupted` in the main thread for SIGINT, SIGTERM and SIGHUP inside the block.

    The previous handlers are restored after the block. An ignored SIGHUP stays ignored, because nohup may have started
    the command.
    """
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    # Also SIGTERM, so that a stopped container releases its locks and removes temporary files.
    previous = {signum: signal.signal(signum, _raise) for signum in SIGNALS if signum not in ignored}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextmanager
def progress_for(settings: Settings, *, quiet: bool = False) -> Iterator[Progress | None]:
    """Set up logging, and yield the progress that a bar shows, or None without a bar.

    There is a bar if standard error is a terminal, SVC_LOG_FORMAT is not `json` and `quiet` is False. It is removed at
    the end of the block.
    """
    if quiet or not (logs.wants_console(settings) and sys.stderr.isatty()):
        logs.configure(settings, quiet=quiet)
        yield None
        return
    bar = TerminalBar()
    # Lines go above the bar, which would otherwise overwrite them.
    logs.configure(settings, write=bar.write_line)
    try:
        yield Progress(bar)
    finally:
        bar.close()
        logs.configure(settings)
