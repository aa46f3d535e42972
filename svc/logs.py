"""Set up logging: one redaction for all records, and JSON lines or text for a terminal.

`emit(events.X, field=...)` writes a record with the level that the event declares. Records of other libraries and
Python warnings join the same stream, so the redaction holds for them too.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Set
from contextlib import suppress
from typing import Any, Final, TextIO

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
# Redaction holds the interpreter lock while it scans text from clients, so a slow expression would stop all threads.
# Each expression takes linear time, because an attempt to match ends before the next place where one could begin.
_USER_INFO = re.compile(r"://[^/\s\"']*@")
_OPEN_USER_INFO = re.compile(r"://[^/\s\"']*\Z")
_PARAMETER = re.compile(r"[?&;#][\w.\-]+=")
_PARAMETER_VALUE = re.compile(r"[^&\s\"']+")
_SECRET_PARAMETER = re.compile(r"secret|password|passwd|pwd|token|key|sig|cred", re.IGNORECASE)
_KEY_LIKE = re.compile(
    r"(?<!sha256:)(?<!ed25519:)(?<![\w-])(?:[0-9a-fA-F]{64}|(?=[\w-]{0,42}[0-9])(?=[\w-]{0,42}[a-z])(?=[\w-]{0,42}[A-Z])[\w-]{43})(?![\w-])",
    re.ASCII,
)
"""The form of a signing key, 64 hex digits, and of an API key, 43 letters, digits, `-` and `_`.

An API key has at least one digit, one lower-case and one upper-case letter, which most other long words lack.

Digests and public keys are no secrets. They follow the name of their algorithm, so they do not match."""
_LONGEST_KEY: Final = 64
_SHORTEST_KEY: Final = 43
_KEY_CHARACTERS: Final = "".join(map(chr, (*range(48, 58), *range(65, 91), *range(97, 123), 45, 95)))
_BLANK = re.compile(r"\s")
MAX_TEXT: Final = 32 << 10
"""Maximum number of characters of a text that are scanned and logged.

Of a longer text, the beginning and the end are logged.
"""
_TAIL: Final = 8 << 10
_MAX_DEPTH = 6  # ends the walk through a list that contains itself
_EVENT_WIDTH = 20
_RED, _PLAIN = "\x1b[31m\x1b[1m", "\x1b[0m"

Record = MutableMapping[str, Any]
_levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def redact_text(text: str) -> str:
    """Return `text` without key-like words, and without user-info and secret query parameters of its URLs.

    It is cut to about `MAX_TEXT`.
    """
    if len(text) > MAX_TEXT:
        text = _cut(text)
    if "://" in text:
        text = _USER_INFO.sub(f"://{REDACTED}@", text)
        text = _without_secret_parameters(text)
    return _KEY_LIKE.sub(REDACTED, text) if len(text) >= _SHORTEST_KEY else text


def _cut(text: str) -> str:
    """Return the beginning and the end of `text`, without the parts of a secret that the cut would split.

    User-info is redacted even if the `@` that ends it is cut off. A word at the cut is dropped, because it may be part
    of a key. The end starts after a blank, so it does not start inside a URL or a key.
    """
    head = _OPEN_USER_INFO.sub(f"://{REDACTED}", text[: MAX_TEXT - _TAIL])
    head = head[:-_LONGEST_KEY] + head[-_LONGEST_KEY:].rstrip(_KEY_CHARACTERS)
    blank = _BLANK.search(text, len(text) - _TAIL)
    tail = text[blank.end() :] if blank else ""
    return f"{head} [{len(text)} characters, cut here] {tail}"


def _without_secret_parameters(text: str) -> str:
    parts, end = [], 0
    for name in _PARAMETER.finditer(text):
        if name.start() < end or not _SECRET_PARAMETER.search(name[0]):
            continue
        if value := _PARAMETER_VALUE.match(text, name.end()):
            parts += [text[end : name.end()], REDACTED]
            end = value.end()
    return "".join([*parts, text[end:]])


def printable(text: str) -> str:
    """Return `text` with escapes for characters that would steer a terminal or reorder its letters."""
    return _escaped(text, lambda character: character.encode("unicode_escape").decode())


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else escape(character) for character in text)


def _redact(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping | list | tuple | Set | deque):
        return REDACTED if depth >= _MAX_DEPTH else _redact_members(value, depth + 1)
    return _redact_other(value)


def _redact_members(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {redact_text(str(k)): _redact_field(str(k), v, depth) for k, v in value.items()}
    return [_redact(member, depth) for member in value]


def _redact_other(value: Any) -> Any:
    """Return numbers unchanged and redact other values as text: paths, errors, bytes.

    A renderer would turn them into text after the redaction.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return redact_text(bytes(value[: 2 * MAX_TEXT]).decode("utf-8", "backslashreplace"))
    scalar = value.item() if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0 else value
    return scalar if isinstance(scalar, bool | int | float) else redact_text(str(scalar))


def _redact_field(name: str, value: Any, depth: int) -> Any:
    if name not in _READABLE and _SECRET_NAME.search(name) and value is not None:
        return REDACTED
    return _redact(value, depth)


def redact(_logger: Any, _method: str, record: Record) -> Record:
    """Hide secrets at any depth, found by their name, their form or a URL (structlog processor)."""
    return {name: _redact_field(name, value, 0) for name, value in record.items()}


def _for_terminals(_logger: Any, _method: str, record: Record) -> Record:
    """Escape unprintable characters, except line breaks (structlog processor)."""
    return {name: _visible(value) if isinstance(value, str) else value for name, value in record.items()}


def _visible(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def _escape_unprintable(_logger: Any, _method: str, line: str) -> str:
    """Replace unprintable characters by JSON escapes.

    This structlog processor runs after the JSON renderer. JSON itself keeps U+009B, U+202E and U+2028, which steer a
    terminal or split the line in a viewer.
    """
    return _escaped(line, _json_escape)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


class _StreamLogger:
    """A logger that writes one line per record.

    The stream is looked up at each write, because tests and progress bars replace it.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def msg(self, message: str) -> None:
        self._write(message)

    debug = info = warning = error = msg


def _write_line(message: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # closed, or its disk is full, but the command goes on
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def wants_console(settings: Settings, stream: TextIO | None = None) -> bool:
    """Return whether people read the log: by setting, or on a terminal under `auto`."""
    if settings.log_format != "auto":
        return settings.log_format == "console"
    stream = sys.stderr if stream is None else stream
    return bool(getattr(stream, "isatty", lambda: False)())


_OUTCOMES = frozenset(
    event.name
    for event in (
        events.TRAIN_DONE,
        events.SEARCH_ONLY_DONE,
        events.RECIPE_LOCK_CONTENDED_SKIPPING,
        events.PROMOTION_DECIDED,
    )
)
"""Events that a quiet command writes beside its warnings and errors."""


def _outcomes_alone(_logger: Any, _method: str, record: Record) -> Record:
    """Drop records that are neither a warning or error nor the outcome of a command (structlog processor)."""
    if record["level"] in ("debug", "info") and record["event"] not in _OUTCOMES:
        raise structlog.DropEvent
    return record


def configure(settings: Settings, write: Callable[[str], None] | None = None, *, quiet: bool = False) -> None:
    """Set up all logging of the process.

    `write` takes finished lines. By default they go to standard error. With `quiet` only warnings, errors and the
    outcome of the command are written.
    """
    level = _levels[settings.log_level]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *([_outcomes_alone] if quiet else []),
            structlog.processors.format_exc_info,  # before the redaction, because tracebacks quote messages
            *(_for_people() if wants_console(settings) else _for_machines()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _StreamLogger(write or _write_line),
    )
    _adopt_library_logs()
    warnings.showwarning = _show_warning


def configure_for_library() -> None:
    """Send records to the standard logger `svc` of a Python program that uses svc, unless logging was set up.

    The program's own handlers, levels and warnings stay as they are.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            redact,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=lambda *_: logging.getLogger("svc"),
    )


def _for_machines() -> list[Any]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redact,
        structlog.processors.JSONRenderer(ensure_ascii=False),
        _escape_unprintable,
    ]


def _for_people() -> list[Any]:
    """Return the processors for lines that fit a terminal.

    Tracebacks show no values of variables, because some values are keys.
    """
    plain = structlog.dev.plain_traceback
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%SZ", utc=True),
        redact,
        _for_terminals,
        _short_numbers,
        _LastWord(
            structlog.dev.ConsoleRenderer(
                _EVENT_WIDTH, colors=_may_colour(), sort_keys=False, pad_level=False, exception_formatter=plain
            )
        ),
    ]


class _LastWord:
    """A renderer that shows the end of a failed training as a sentence.

    Every other record is rendered by `otherwise`. If a model was refused, a sentence follows the record.
    """

    def __init__(self, otherwise: Callable[[Any, str, Record], str]) -> None:
        self._otherwise = otherwise

    def __call__(self, logger: Any, method: str, record: Record) -> str:
        if record.get("event") == events.TRAIN_DONE.name and "refused" in record:
            sentence = record.pop("refused")
            return f"{self._otherwise(logger, method, record)}\nrefused: {sentence}"
        if record.get("event") != events.TRAIN_ERROR.name:
            return self._otherwise(logger, method, record)
        line = error_line(str(record["error"]), colour=_may_colour())
        traceback = "".join(f"\n  {frame}" for frame in record.get("traceback", ()))
        return f"{line}\n(code {record['code']}, exit code {record['exit_code']}, run {record['run_id']}){traceback}"


def error_line(text: str, *, colour: bool) -> str:
    """Return the text of an error that ends a command, with the prefix `error:`, which is red if `colour` is true.

    Line breaks in the text stay.
    """
    return f"{_RED if colour else ''}error: {_PLAIN if colour else ''}{text}"


def _short_numbers(_logger: Any, _method: str, record: Record) -> Record:
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in record.items()}


def _may_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def emit(event: Event, /, **fields: Any) -> None:
    """Write one record of `event` at its own level."""
    getattr(structlog.get_logger(), event.level)(event.name, **fields)


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "svc":  # svc's own record (`configure_for_library`), which would come back here for ever
            return
        level = record.levelname.lower()
        cause = {"error": _describe_error(record.exc_info[1])} if record.exc_info and record.exc_info[1] else {}
        emit(events.LIBRARY_LOG, logger=record.name, message=record.getMessage(), library_level=level, **cause)


def _describe_error(error: BaseException) -> str:
    """Return the class and the text of an error. For a group, return the classes and texts of its members."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_describe_error(member) for member in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _adopt_library_logs() -> None:
    root = logging.getLogger()
    # Handlers of libraries would write lines that the redaction has not seen.
    root.handlers = [_ToStructlog()]
    root.setLevel(logging.WARNING)


def _show_warning(message: Any, category: type[Warning], *_place: Any, **_more: Any) -> None:
    emit(events.PYTHON_WARNING, category=category.__name__, message=str(message))


def unbind(*names: str) -> None:
    """Remove fields that `bind` added.

    A connection handles several requests in one task, so the fields of one request would leak into the next request.
    """
    structlog.contextvars.unbind_contextvars(*names)


def bind(**fields: Any) -> None:
    """Add `fields` to every later record of this task or thread."""
    structlog.contextvars.bind_contextvars(**fields)
