"""All log records pass here: one set-up, one redaction, JSON lines or a terminal.

`emit(events.X, field=...)` writes a record with the level that the event declares. Records of other
libraries and Python warnings join the same stream, so the redaction holds for them too.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog

from svc import events
from svc.events import Event
from svc.settings import Settings

REDACTED = "[REDACTED]"
_READABLE = frozenset(
    {"kid", "fingerprint", "recipe_hash", "model_version", "keys", "signing_keys", "api_keys_configured"}
)
_SECRET_NAME = re.compile(
    r"secret|password|passwd|token|key(?!s)|auth|bearer|cred|private|^cookie$|^(aws|gcp|google|azure)_", re.IGNORECASE
)
_USER_INFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*://)[^/\s@\"']*@")
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&;](?:[\w.\-]*(?:secret|password|passwd|pwd|token|key|sig|signature|cred)[\w.\-]*)=)[^&\s\"']+",
    re.IGNORECASE,
)
_MAX_DEPTH = 6
_EVENT_WIDTH = 20

Record = MutableMapping[str, Any]
_levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def redact_text(text: str) -> str:
    """`text` without the user-info and the secret query parameters of any URL in it."""
    if "://" in text:
        text = _USER_INFO.sub(rf"\g<scheme>{REDACTED}@", text)
        text = _SECRET_PARAMETER.sub(rf"\g<name>{REDACTED}", text)
    return text


def printable(text: str) -> str:
    """`text` with escapes for whatever would steer a terminal or turn its letters around instead of being shown."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _redact(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if depth >= _MAX_DEPTH:
        return REDACTED if isinstance(value, dict | list | tuple) else value
    if isinstance(value, dict):
        return {str(k): _redact_field(str(k), v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(v, depth + 1) for v in value]
    return value


def _redact_field(name: str, value: Any, depth: int) -> Any:
    if name not in _READABLE and _SECRET_NAME.search(name) and value is not None:
        return REDACTED
    return _redact(value, depth)


def redact(_logger: Any, _method: str, record: Record) -> Record:
    """structlog processor: hide what a secret's name or a URL gives away, at any depth."""
    return {name: _redact_field(name, value, 0) for name, value in record.items()}


def _for_terminals(_logger: Any, _method: str, record: Record) -> Record:
    """structlog processor: the lines of a text stay lines, all else that is not shown is escaped."""
    return {name: _visible(value) if isinstance(value, str) else value for name, value in record.items()}


def _visible(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def _plain(value: Any) -> Any:
    """What JSON cannot say by itself, such as numpy scalars and paths."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


class _StreamLogger:
    """Writes one line a record; the stream is looked up at each write, as tests and progress bars replace it."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def msg(self, message: str) -> None:
        self._write(message)

    debug = info = warning = error = msg


def _write_line(message: str) -> None:
    try:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):  # whoever read the log has gone: work goes on without it
        pass


def wants_console(settings: Settings, stream: TextIO | None = None) -> bool:
    """True when people read the log: asked for, or a terminal under `auto`."""
    if settings.log_format != "auto":
        return settings.log_format == "console"
    stream = sys.stderr if stream is None else stream
    return bool(getattr(stream, "isatty", lambda: False)())


def configure(settings: Settings, write: Callable[[str], None] | None = None) -> None:
    """Set up all logging of the process. `write` takes finished lines; by default they go to standard error."""
    level = _levels[settings.log_level]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,  # before the redaction: a traceback quotes messages
            *(_for_people() if wants_console(settings) else _for_machines()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _StreamLogger(write or _write_line),
        cache_logger_on_first_use=False,
    )
    _adopt_library_logs()
    warnings.showwarning = _show_warning


def _for_machines() -> list[Any]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redact,
        structlog.processors.JSONRenderer(default=_plain, ensure_ascii=False),
    ]


def _for_people() -> list[Any]:
    """Lines that fit a terminal. Tracebacks show no values of variables: some of those are keys."""
    plain = structlog.dev.plain_traceback
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%SZ", utc=True),
        redact,
        _for_terminals,
        _short_numbers,
        structlog.dev.ConsoleRenderer(
            _EVENT_WIDTH, colors=_may_colour(), sort_keys=False, pad_level=False, exception_formatter=plain
        ),
    ]


def _short_numbers(_logger: Any, _method: str, record: Record) -> Record:
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in record.items()}


def _may_colour() -> bool:
    import os

    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def emit(event: Event, /, **fields: Any) -> None:
    """Write one record of `event` at its own level."""
    getattr(structlog.get_logger(), event.level)(event.name, **fields)


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        cause = {"error": _named(record.exc_info[1])} if record.exc_info and record.exc_info[1] else {}
        emit(events.LIBRARY_LOG, logger=record.name, message=record.getMessage(), library_level=level, **cause)


def _named(error: BaseException) -> str:
    """What an error is and says; of a group, what its members are."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_named(member) for member in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _adopt_library_logs() -> None:
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(logging.WARNING)


def _show_warning(message: Any, category: type[Warning], *_place: Any, **_more: Any) -> None:
    emit(events.PYTHON_WARNING, category=category.__name__, message=str(message))


def bind(**fields: Any) -> None:
    """Add `fields` to every later record of this task or thread."""
    structlog.contextvars.bind_contextvars(**fields)
