"""How an error reaches the user: one line for people on a terminal, one JSON line otherwise. Never a traceback
unless SVC_LOG_LEVEL=debug asks for it."""

from __future__ import annotations

import os
import sys
import traceback

import typer
from typer.exceptions import TyperException

from svc.errors import ConfigError, SvcError
from svc.settings import Settings


def usage_text(error: TyperException) -> str:
    """Return the message for wrong usage: the mistake, and the command that shows help."""
    text = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{text}. See: {context.command_path if context else 'svc'} --help"


def report(error: SvcError, *, command: str) -> int:
    """Report an error and return its exit code."""
    fields = {"code": error.code, "exit_code": error.exit_code, **error.fields}
    return _write(error.message, fields, error, command)


def report_unexpected(error: Exception, *, command: str) -> int:
    """Report an error that svc does not raise on purpose, and return exit code 1.

    The message names the way to the traceback.
    """
    text = f"unexpected {type(error).__name__}: {error}"
    if not _debugging():
        text += " (SVC_LOG_LEVEL=debug shows the traceback)"
    return _write(text, {"code": SvcError.code, "exit_code": SvcError.exit_code}, error, command)


def _write(text: str, fields: dict[str, object], error: Exception, command: str) -> int:
    from svc import events, logs

    settings = _settings()
    if _debugging():
        fields["traceback"] = "".join(traceback.format_exception(error))
    if logs.wants_console(settings):
        shown = "\n".join(logs.printable(line) for line in logs.redact_text(text).splitlines())
        colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        typer.echo(logs.error_line(shown, colour=colour), err=True, color=colour)
        if "traceback" in fields:
            sys.stderr.write(logs.redact_text(str(fields["traceback"])))
    else:
        logs.configure(settings)
        logs.emit(events.COMMAND_ERROR, command=command, error=text, **fields)
    return int(str(fields["exit_code"]))


def _settings() -> Settings:
    """Return the settings for writing, or the defaults if the environment cannot be read."""
    try:
        return Settings.from_env()
    except ConfigError:
        return Settings()


def _debugging() -> bool:
    return os.environ.get("SVC_LOG_LEVEL") == "debug"
