"""The `svc` command: its subcommands, and the handling of their errors.

The exit code is what the command returns, by default 0. It is the `exit_code` of an SvcError, 1 for an unexpected
error, 2 for wrong usage, and 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.

Commands import their libraries inside functions, so that `svc --help` takes 0.5 s of processor time. With the imports
of training and serving it would take 4.5 s.
"""

from __future__ import annotations

import difflib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from svc import __version__, events, logs
from svc.cli import arms, demo, forget, inspect, keygen, recommend, report, schema, serve, train, validate, versions
from svc.errors import ConfigError, SvcError, UsageError, exhaustion
from svc.settings import Settings, clamped_variables, misspelt_variables

INTERRUPTED = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP})
COMMANDS: dict[str, tuple[Callable[..., int | None], str]] = {
    "keygen": (keygen.command, keygen.EPILOG),
    "validate": (validate.command, validate.EPILOG),
    "train": (train.command, train.EPILOG),
    "inspect": (inspect.command, inspect.EPILOG),
    "report": (report.command, report.EPILOG),
    "history": (versions.history, versions.HISTORY_EPILOG),
    "promote": (versions.promote, versions.PROMOTE_EPILOG),
    "rollback": (versions.rollback, versions.ROLLBACK_EPILOG),
    "forget": (forget.command, forget.EPILOG),
    "recommend": (recommend.command, recommend.EPILOG),
    "serve": (serve.command, serve.EPILOG),
    "experiment": (arms.command, arms.EPILOG),
    "schema": (schema.command, schema.EPILOG),
    "demo": (demo.command, demo.EPILOG),
}
"""The function of each command and the epilog of its help. The docstring of the function is the text of the help."""
EPILOG = """
[bold]See it work[/bold]
  svc demo                        data, keys, training and a server in one go

[bold]With your own data[/bold]
  svc keygen --kid 2026-01 --write keys.env    a signing key, beside recipes/
  svc validate recipe.yaml        check the recipe and its sources
  svc train recipe.yaml           write the signed artifact
  svc serve --recipes recipes/    answer over HTTP and follow new artifacts

[bold]Exit codes[/bold]
  0 success          3 data source    6 lock held, with --fail-on-busy
  1 unexpected       4 training       8 configuration
  2 usage, recipe    5 artifact       9 refused: the new model is not live
                                      130, 143 interrupted by SIGINT, SIGTERM
"""

ELSEWHERE = {
    "evaluate": "`svc inspect ARTIFACT` shows the scores of a training, `svc.evaluate` in Python those on other rows",
    "status": "ask the server itself: curl http://127.0.0.1:8080/v1/health/details, or open its console at /",
    "bench": "run `python -m benchmarks load http://127.0.0.1:8080` from a checkout of svc",
}
"""Commands of earlier versions and of other programs that svc has no command for, each with what to use instead."""
OTHER_NAMES = {
    **dict.fromkeys(("fit", "build", "learn"), "train"),
    **dict.fromkeys(("run", "start", "up"), "serve"),
    **dict.fromkeys(("predict", "export"), "recommend"),
    **dict.fromkeys(("check", "lint", "test"), "validate"),
    **dict.fromkeys(("info", "show"), "inspect"),
    **dict.fromkeys(("init", "new", "example", "quickstart"), "demo"),
    "help": "--help",
    "version": "--version",
    **dict.fromkeys(("versions", "list", "ls"), "history"),
    "keys": "keygen",
    "deploy": "promote",
    **dict.fromkeys(("erase", "delete", "remove"), "forget"),
}
"""svc's name for each command of other programs."""

_MISSING = {
    "'SHA8'": ": name a version too, as `svc promote r.yaml SHA8`, by the first digits that `svc history r.yaml` shows",
    "'--recipes'": ": serve takes a folder, as `svc serve --recipes FOLDER`, with the recipes as its *.yaml files",
}
"""Hints for arguments and options that are often missing."""
_UNEXPECTED = {"forget": "--user ID", "recommend": "--users FILE", "rollback": "--to SHA8"}
"""For some commands, the option of a value that is often given without it."""
_OPTIONS = {
    "recipe": "the recipe is named without an option, as `svc train recipe.yaml`",
    "user": "`--users` takes a file with an id in each line; to ask for one user, use a server or `import svc`",
    **dict.fromkeys(
        ("set", "override"),
        "values are written in the recipe, and `${SVC_RECIPE_X}` in it is set by `--env-var SVC_RECIPE_X=value`",
    ),
}
"""Hints for options of other programs, of commands that read recipes."""
_OPTIONS_OF_KEYGEN = dict.fromkeys(("name", "id", "key_id"), "the id of a key is its `--kid`")

app = typer.Typer(
    name="svc",
    help="Turn a YAML recipe into a recommendation API: train one signed file, serve it over HTTP.",
    epilog=EPILOG,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def usage_text(error: TyperException, name: str = "") -> str:
    """Return the message for wrong usage of the command `name`: the mistake, and the command that shows help."""
    text = error.format_message().rstrip(".").replace("Value error, ", "")
    # typer has no error class for each argument, so its words tell them apart.
    text += next((hint for name, hint in _MISSING.items() if text.startswith("Missing") and name in text), "")
    context = getattr(error, "ctx", None)
    option = str(getattr(error, "option_name", ""))
    if option.startswith("--") and "--recipes" not in text and (hint := _hint_for_option(option, context)):
        text = f"there is no option {option}: {hint}"
    elif name in _UNEXPECTED and "extra argument" in text:
        text += f": give it as `{_UNEXPECTED[name]}`"
    elif context is not None and context.parent is None and name != "" and option:
        text = f"{option} is no option of svc itself; options stand behind the command, as in `svc train {option}`"
    return f"{text}{'' if text.endswith('?') else '.'} See: {context.command_path if context else 'svc'} --help"


def _hint_for_option(option: str, context: Any) -> str:
    """Return a hint for an option of another program, or one that is a field of recipes, or "" for any other option."""
    from svc.recipe.schema import Recipe
    from svc.recipe.training_schema import Training

    name = option.removeprefix("--").replace("-", "_")
    taken = set() if context is None else {parameter.name for parameter in context.command.params}
    if "env_var" not in taken:  # the command reads no recipe
        return _OPTIONS_OF_KEYGEN.get(name, "") if "kid" in taken else ""
    if name in _OPTIONS:
        return _OPTIONS[name]
    if near := difflib.get_close_matches(name, Training.model_fields, n=1, cutoff=0.75):
        return f"write it in the recipe, at `training.{near[0]}`"
    return f"write it in the recipe, at `{name}`" if name in Recipe.model_fields else ""


def report_error(error: SvcError, *, command: str) -> int:
    """Write an error to standard error, as a line for people or as a log record, and return its exit code."""
    fields = {"code": error.code, "exit_code": error.exit_code, **error.fields}
    return _write(error.message, fields, error, command)


def report_unexpected(error: Exception, *, command: str) -> int:
    """Report an error that svc does not raise on purpose, and return exit code 1.

    SVC_LOG_LEVEL=debug shows the traceback. Otherwise the message says so.
    """
    text = f"unexpected {type(error).__name__}: {error}"
    if not _debugging():
        text += " (SVC_LOG_LEVEL=debug shows the traceback)"
    return _write(text, {"code": SvcError.code, "exit_code": SvcError.exit_code}, error, command)


def _write(text: str, fields: dict[str, object], error: Exception, command: str) -> int:
    settings = _settings()
    if _debugging():
        fields["traceback"] = "".join(traceback.format_exception(error))
    if logs.wants_console(settings):
        shown = "\n".join(logs.printable(line) for line in logs.redact_text(text).splitlines())
        with suppress(OSError, AttributeError):  # standard error is closed, or its disk is full
            # https://no-color.org: any value but an empty one asks for plain text.
            colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
            typer.echo(logs.error_line(shown, colour=colour), err=True, color=colour)
            if "traceback" in fields:
                sys.stderr.write(logs.redact_text(str(fields["traceback"])))
    else:
        logs.configure(settings)
        logs.emit(events.COMMAND_ERROR, command=command, error=text, **fields)
    return int(str(fields["exit_code"]))


def _settings() -> Settings:
    """Return the settings for the error report, or the defaults if the environment cannot be read."""
    try:
        return Settings.from_env()
    except ConfigError:
        return Settings()


def _debugging() -> bool:
    # From the environment itself, because invalid settings may be the very error to report.
    return os.environ.get("SVC_LOG_LEVEL") == "debug"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"svc {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)
    _warn_of_variables()


def _warn_of_variables() -> None:
    """Log the variables of the environment that are misspelt or out of bounds."""
    misspelt, clamped = misspelt_variables(os.environ), clamped_variables(os.environ)
    if not misspelt and not clamped:
        return
    try:
        logs.configure(Settings.from_env())
    except ConfigError:  # the command itself names the unreadable variable or file
        return
    for variable, suggestion in misspelt:
        logs.emit(events.VARIABLE_UNKNOWN, variable=variable, did_you_mean=suggestion)
    for variable, value, used in clamped:
        logs.emit(events.VARIABLE_CLAMPED, variable=variable, value=value, used=used)


def _ending_on_signals(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap `command` so that it returns the exit code of the signal that interrupted it, or its own result."""

    @wraps(command)
    def guarded(*args: Any, **options: Any) -> int | None:
        try:
            return command(*args, **options)
        except KeyboardInterrupt as interrupt:
            # Python's own KeyboardInterrupt, before a command sets its handlers, has no code.
            return getattr(interrupt, "exit_code", 130)

    return guarded


for name, (command, epilog) in COMMANDS.items():
    app.command(name, epilog=epilog)(_ending_on_signals(command))


def _hint_for_command(name: str) -> str:
    """Return a hint for a command of earlier versions or of other programs, or "" for any other name."""
    if name in ELSEWHERE:
        return f"`svc {name}` is not a command: {ELSEWHERE[name]}"
    return f"`svc {name}` is not a command: did you mean `svc {OTHER_NAMES[name]}`?" if name in OTHER_NAMES else ""


def run(arguments: Sequence[str]) -> int:
    """Run one command line, without the program's name, and return its exit code."""
    # Options of svc itself take no values, so the first plain argument is the command.
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    if refusal := _hint_for_command(name):
        return report_error(UsageError(refusal), command=name)
    try:
        # In standalone mode typer would print errors in a form of its own, and exit.
        result = app(args=list(arguments), prog_name="svc", standalone_mode=False)
    except TyperException as error:
        return report_error(UsageError(usage_text(error, name)), command=name)
    except SvcError as error:
        return report_error(error, command=name)
    except Exception as error:
        # pathlib raises it for a file in a closed folder, even where it could answer that there is none.
        expected = ConfigError(str(error)) if isinstance(error, PermissionError) else exhaustion(error)
        if expected is not None:
            return report_error(expected, command=name)
        return report_unexpected(error, command=name)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the command line of this process, and exit with its code."""
    code = run(sys.argv[1:])
    if code in INTERRUPTED or any(thread.name.startswith("trial-") for thread in threading.enumerate()):
        # The command has cleaned up. Python's own exit would wait for an abandoned trial in C++, and print errors.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
