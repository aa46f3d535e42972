"""The log: levels, redaction, library records, formats."""

from __future__ import annotations

import collections
import errno
import json
import logging
import re
import types
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import structlog

from svc import events, logs
from svc.settings import Settings


@pytest.fixture
def declared_fields() -> None:
    """Allow any event with any fields, because these tests are about the form of records."""


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Yield the list of written log lines. Restore the logging of the process afterwards."""
    written: list[str] = []
    root, show = logging.getLogger(), warnings.showwarning
    handlers, level = root.handlers, root.level
    logs.configure(Settings(log_format="json", log_level="debug"), write=written.append)
    yield written
    structlog.reset_defaults()
    root.handlers, warnings.showwarning = handlers, show
    root.setLevel(level)


def record(lines: list[str]) -> dict[str, object]:
    return dict(json.loads(lines[-1]))


def test_a_record_is_one_json_line_with_event_level_and_time(lines: list[str]) -> None:
    """Log shippers read each line as one record."""
    logs.emit(events.DATA_FETCHED, n_rows=np.int64(3))
    assert len(lines) == 1
    assert "\n" not in lines[0]
    shown = record(lines)
    assert (shown["event"], shown["level"], shown["n_rows"]) == ("data_fetched", "info", 3)
    assert str(shown["timestamp"]).endswith("Z")


@pytest.mark.parametrize(
    "name",
    [
        "x-api-key",
        "Authorization",
        "cookie",
        "db_password",
        "TOKEN",
        "private",
        "aws_region",
        "my_secret",
        "credentials",
    ],
)
def test_values_of_secret_names_are_hidden_at_any_depth(lines: list[str], name: str) -> None:
    """A field with a name such as `db_password` is redacted at the top and in nested documents."""
    logs.emit(events.LIBRARY_LOG, **{name: "s3cr3t"}, nested={"list": [{name: "s3cr3t"}]})
    assert "s3cr3t" not in lines[-1]
    assert record(lines)[name] == "[REDACTED]"


@pytest.mark.parametrize("name", ["kid", "fingerprint", "recipe_hash", "model_version", "signing_keys", "keys"])
def test_public_names_stay_readable(lines: list[str], name: str) -> None:
    """Fields that identify a key or a model are not secret."""
    logs.emit(events.LIBRARY_LOG, **{name: "plain"})
    assert record(lines)[name] == "plain"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg://user:s3cr3t@host/x",
        "https://s3cr3t@host/path",
        "mariadb+pymysql://host/x?password=s3cr3t&charset=utf8",
        "https://host/file?X-Amz-Signature=s3cr3t",
        "https://user:s3@cr3t@host/path?a=b",
        "https://user:pw@s3cr3t@host",
        "one http://a/b two http://s3cr3t@host/c",
        "https://host/a?x=1;token=s3cr3t;y",
        "https://host/a?x=?token=s3cr3t",
        "https://host/#access_token=s3cr3t&x=1",
        "https://host/?mytokens=s3cr3t?key=s3cr3t&a=1",
        "https://host/?a=1&b&key=s3cr3t",
    ],
)
def test_urls_lose_their_secrets_within_any_text(lines: list[str], text: str) -> None:
    """User-info ends at the last `@`. Parameters may be separated by `&`, `;`, `?` or `#`."""
    for message in (text, f"cannot reach {text}: refused"):
        logs.emit(events.LIBRARY_LOG, message=message)
        assert "cr3t" not in lines[-1]
        assert "host" in lines[-1]


SIGNING_KEY = "0123456789abcdefABCDEF0123456789" * 2
API_KEY = "aB3-_" * 8 + "xY7"


@pytest.mark.parametrize("key", [SIGNING_KEY, API_KEY])
@pytest.mark.parametrize("around", ["{}", "/data/{}/x.svc", "kid:{}", "run {}, again", "{}.svc", "k={}&"])
def test_words_that_look_like_keys_are_redacted_anywhere(lines: list[str], key: str, around: str) -> None:
    """The key may be part of a run id, a path or a kid, in a value or in a name."""
    text = around.format(key)
    logs.emit(events.LIBRARY_LOG, run_id=text, nested=[{"kid": text}, {text: 1}])
    assert key not in lines[-1]


def test_digests_and_longer_or_shorter_words_stay(lines: list[str]) -> None:
    """Model versions, recipe hashes, public keys and ordinary names stay readable."""
    digest, name = "ab" * 32, "a-name-of-43-characters-without-any-capital"
    public = {"model_version": f"sha256:{digest}", "recipe_hash": "0123456789ab", "message": f"ed25519:{digest}"}
    logs.emit(events.LIBRARY_LOG, **public, other=[f"{digest}0", digest[1:], f"x{API_KEY}", API_KEY[1:], name])
    assert record(lines) | public == record(lines)
    assert record(lines)["other"] == [f"{digest}0", digest[1:], f"x{API_KEY}", API_KEY[1:], name]


@pytest.mark.parametrize("at", range(1, 64, 7))
def test_cutting_a_long_text_leaves_no_part_of_a_key(at: int) -> None:
    """The key may lie across either end of the part that is cut out."""
    for end in (logs.MAX_TEXT * 3 // 4, 100_000 - logs.MAX_TEXT // 4):
        text = ("y " * 50_000)[: end - at] + f" {SIGNING_KEY} "
        text += "y " * ((100_000 - len(text)) // 2)
        assert SIGNING_KEY[:4] not in logs.redact_text(text)


def test_texts_without_secrets_are_not_changed() -> None:
    """Ordinary texts, addresses and URLs stay as they are."""
    for text in (
        "see https://host/a?x=1&y=2#part",
        "mail me@host",
        "http://[::1]:80/a",
        "?token=x",
        "a://b?token=&c=d",
    ):
        assert logs.redact_text(text) == text


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_cutting_a_long_text_leaves_no_part_of_a_secret(at: int) -> None:
    """The cut may fall within user-info or a parameter of a URL, at either end of the removed part."""
    secret = "http://user:s3cr3t-s3cr3t@host/?token=s3cr3t-s3cr3t "
    head, tail = "x" * (logs.MAX_TEXT * 3 // 4 - at), "x" * (logs.MAX_TEXT // 4 - at)
    for text in (f"{head}{secret}{'y' * 100_000}", f"{'y' * 100_000} {secret}{tail}", f"{'y' * 100_000}{secret}{tail}"):
        shown = logs.redact_text(text)
        assert len(shown) <= logs.MAX_TEXT + 100
        assert f"[{len(text)} characters, cut here]" in shown
        assert "s3cr3t" not in shown


def test_other_values_are_redacted_by_their_text(lines: list[str]) -> None:
    """Bytes, errors, sets, mappings and any other objects lose the secrets of their text, at any depth."""

    class Told:
        def __str__(self) -> str:
            return "http://me:s3cr3t@host"

        __repr__ = __str__

    url = "http://me:s3cr3t@host"
    values = {
        "bytes": url.encode() + b"\xff",
        "array": bytearray(url.encode()),
        "error": ValueError(f"at {url}"),
        "set": {url},
        "frozen": frozenset({url}),
        "deque": collections.deque([url]),
        "proxy": types.MappingProxyType({"token": "s3cr3t", "a": url, url: 1}),
        "object": Told(),
        "numpy": np.array([Told()]),
    }
    for log_format in ("json", "console"):
        logs.configure(Settings(log_format=log_format), write=lines.append)
        logs.emit(events.LIBRARY_LOG, **values, nested=[{"deep": value} for value in values.values()])
        assert "s3cr3t" not in re.sub(r"\x1b\[\d*m", "", lines[-1])
        assert lines[-1].count("host") >= 2 * len(values)


def test_numbers_stay_numbers(lines: list[str]) -> None:
    """Numbers of numpy become JSON numbers, too."""
    logs.emit(events.LIBRARY_LOG, a=np.float32(0.5), b=np.int8(3), c=True, d=None, e=np.bool_(True), f=np.array(7))
    shown = record(lines)
    assert [shown[name] for name in "abcdef"] == [0.5, 3, True, None, True, 7]


UNSEEN = [chr(point) for point in (*range(0x10000), *range(0x10000, 0x110000, 97)) if not chr(point).isprintable()]


def test_invisible_characters_are_escaped_in_json_lines(lines: list[str]) -> None:
    """Values and names are escaped, single surrogates included. Parsing returns the original text."""
    for start in range(0, len(UNSEEN), 30_000):
        text = "ß" + "".join(UNSEEN[start : start + 30_000]) + "語"
        logs.emit(events.LIBRARY_LOG, message=text, nested={"\u202e": ["\u2028\x9b"]})
        assert lines[-1].isprintable()
        lines[-1].encode()
        assert record(lines)["nested"] == {"\u202e": ["\u2028\x9b"]}
        assert str(record(lines)["message"]).encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")
        assert "ß" in lines[-1]
        assert "語" in lines[-1]


def test_a_deeply_nested_document_is_redacted_as_a_whole(lines: list[str]) -> None:
    """A password twelve levels deep is not shown."""
    deep: object = {"password": "s3cr3t"}
    for _ in range(12):
        deep = {"d": deep}
    logs.emit(events.LIBRARY_LOG, deep=deep)
    assert "s3cr3t" not in lines[-1]


def test_python_warnings_and_library_records_join_the_log_redacted(lines: list[str]) -> None:
    """Warnings and records of other libraries become records of the log, without their secrets."""
    warnings.showwarning(UserWarning("see ftp://me:s3cr3t@host"), UserWarning, "file.py", 1)
    assert record(lines)["event"] == "python_warning"
    logging.getLogger("some.library").warning("at http://me:%s@host", "s3cr3t")
    assert record(lines)["logger"] == "some.library"
    assert "s3cr3t" not in "".join(lines)


def write_to_a_full_disk(_text: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("stream", [None, types.SimpleNamespace(write=write_to_a_full_disk)])
def test_a_log_that_cannot_be_written_does_not_end_the_command(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error may be closed, or a file on a full disk."""
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure(Settings(log_format="json"))
    logs.emit(events.DATA_FETCHED, n_rows=3)


def test_records_below_the_level_are_dropped(lines: list[str]) -> None:
    """At the level `warning`, an event of level `info` writes no line."""
    logs.configure(Settings(log_format="json", log_level="warning"), write=lines.append)
    logs.emit(events.DATA_FETCHED, n_rows=1)
    assert lines == []


def test_bound_fields_are_in_every_later_record(lines: list[str]) -> None:
    """A bound field is in each record until it is unbound."""
    with structlog.contextvars.bound_contextvars():
        logs.bind(request_id="r1", trace_id="t1")
        for _ in range(2):
            logs.emit(events.DATA_FETCHED, n_rows=1)
            assert (record(lines)["request_id"], record(lines)["trace_id"]) == ("r1", "t1")
        logs.unbind("trace_id")
        logs.emit(events.DATA_FETCHED, n_rows=1)
    assert record(lines)["request_id"] == "r1"
    assert "trace_id" not in record(lines)


def test_the_format_follows_the_terminal_under_auto() -> None:
    """The format is `console` on a terminal and JSON otherwise. A configured format overrides this."""

    class Terminal:
        def isatty(self) -> bool:
            return True

    assert logs.wants_console(Settings(), Terminal())  # type: ignore[arg-type]
    assert not logs.wants_console(Settings(), object())  # type: ignore[arg-type]
    assert logs.wants_console(Settings(log_format="console"), object())  # type: ignore[arg-type]
    assert not logs.wants_console(Settings(log_format="json"), Terminal())  # type: ignore[arg-type]


def test_console_lines_are_short(lines: list[str]) -> None:
    """Console lines show times in seconds and numbers with six digits. JSON keeps all digits."""
    logs.configure(Settings(log_format="console"), write=lines.append)
    logs.emit(events.SEARCH_DONE, best_class="TopPopRecommender", best_score=0.123456789, n_completed=4)
    assert "best_score=0.123457 " in lines[-1]
    assert re.match(r"\d\d:\d\d:\d\dZ ", lines[-1])
    logs.emit(events.TRAIN_DONE, exit_code=0)
    assert "exit_code=0" in lines[-1]
    assert "refused" not in lines[-1]
    logs.configure(Settings(log_format="json"), write=lines.append)
    logs.emit(events.SEARCH_DONE, best_class="TopPopRecommender", best_score=0.123456789, n_completed=4)
    assert record(lines)["best_score"] == 0.123456789


def test_terminal_control_characters_are_escaped(lines: list[str]) -> None:
    """Console lines show escape sequences, bells and characters that reverse text in escaped form."""
    logs.configure(Settings(log_format="console"), write=lines.append)
    hostile = "\x1b[2J\x07\u202e\x9b"
    logs.emit(events.KID_EXTRACTION_FAILED, name=f"m{hostile}", error=f"one {hostile}\ntwo ß")
    assert not re.search("[\x1b\x07\u202e\x9b]", re.sub(r"\x1b\[\d*m", "", lines[-1]))
    assert r"name=m\x1b[2J\x07\u202e\x9b" in lines[-1]
    assert logs.printable("plain ß") == "plain ß"


def fail(held: str) -> None:
    raise ValueError(f"cannot reach http://me:{held}@host")


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_has_no_secret(lines: list[str], log_format: str) -> None:
    """The traceback has file names and no values of variables. Its message is redacted."""
    logs.configure(Settings(log_format=log_format), write=lines.append)
    held = "s3cr3t"
    with pytest.raises(ValueError, match="reach") as caught:
        fail(held)
    logs.emit(events.REQUEST_FAILED, error="ValueError", exc_info=caught.value)
    assert "Traceback" in lines[-1]
    assert "test_logs.py" in lines[-1]
    assert "s3cr3t" not in lines[-1]


def test_an_error_in_a_library_record_is_named(lines: list[str]) -> None:
    """The record has class and message of an error, and of each member of a group."""
    group = ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    logging.getLogger("some.library").error("failed", exc_info=group)
    record = json.loads(lines[-1])
    assert (record["message"], record["error"]) == ("failed", "ValueError: one; KeyError: 'two'")


def test_records_of_the_library_do_not_come_back_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may set up logging as a command does, and later use svc as a library."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logs._ToStructlog()])
    was_configured, before = structlog.is_configured(), structlog.get_config()
    structlog.reset_defaults()
    try:
        logs.configure_for_library()
        logs.emit(events.KEYS_RELOAD_FAILED, error="e")
    finally:
        structlog.reset_defaults()
        if was_configured:
            structlog.configure(**before)
