"""What several commands share: the loading of a recipe, keys, signals as exceptions, and the progress bar."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from svc import events, logs
from svc.cli import main
from svc.cli.common import Interrupted, interrupts, load, progress_for
from svc.errors import RecipeError
from svc.settings import Settings
from tests.cli.conftest import last_error

RECIPE = """\
name: books
source: {type: csv, path: "${SVC_RECIPE_ROWS}"}
schema: {user_column: u, item_column: i}
training: {algorithms: [TopPop]}
output: {path: books.svc}
"""


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SVC_RECIPE_ROWS", raising=False)
    path = tmp_path / "books.yaml"
    path.write_text(RECIPE)
    return path


def test_a_variable_of_the_command_line_overrides_the_environment(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load` returns the variables together with the recipe, because sources need more of them."""
    monkeypatch.setenv("SVC_RECIPE_ROWS", "environment.csv")
    loaded, variables = load(recipe_file, ["SVC_RECIPE_ROWS=given.csv"], Settings())
    assert loaded.recipe.source.options["path"] == "given.csv"
    assert variables["SVC_RECIPE_ROWS"] == "given.csv"
    assert load(recipe_file, None, Settings())[0].recipe.source.options["path"] == "environment.csv"


def test_only_training_needs_the_variables_of_its_source(recipe_file: Path) -> None:
    """A server and an export load the same recipe although the variables are not set."""
    with pytest.raises(RecipeError, match="SVC_RECIPE_ROWS"):
        load(recipe_file, None, Settings())
    assert load(recipe_file, None, Settings(), for_serving=True)[0].recipe.name == "books"


def test_a_recipe_whose_source_is_not_installed_is_refused_at_once(recipe_file: Path) -> None:
    recipe_file.write_text(RECIPE.replace("type: csv", "type: kafka"))
    with pytest.raises(RecipeError, match="'kafka' is not an installed source"):
        load(recipe_file, ["SVC_RECIPE_ROWS=given.csv"], Settings())


BOTH_FLAGS = ["--dev-allow-unsigned", "--i-understand-this-loads-arbitrary-code"]


MISUSES = [(BOTH_FLAGS, ""), (BOTH_FLAGS, "production"), (BOTH_FLAGS[1:], "development")]


DECODING = [["train", "r.yaml"], ["serve", "--recipes", "."]]


@pytest.mark.parametrize(
    ("command", "arguments", "env"),
    [
        *((command, *misuse) for misuse in MISUSES for command in [*DECODING, ["inspect", "a.svc"]]),
        *((command, BOTH_FLAGS[:1], "development") for command in DECODING),
    ],
)
def test_unsigned_mode_needs_both_flags_and_a_development_environment(
    command: list[str],
    arguments: list[str],
    env: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In all other cases the exit code is 8 before anything is read. The message names the flag."""
    monkeypatch.setenv("SVC_ENV", env)
    assert main.run([*command, *arguments]) == 8
    assert "--dev-allow-unsigned" in str(last_error(capsys)["error"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_is_raised_in_the_main_thread(number: signal.Signals, code: int) -> None:
    """The signal becomes an exception, so cleanup runs as after any exception. The handlers are restored afterwards."""
    before = signal.signal(number, signal.default_int_handler)  # the tests themselves may run under nohup
    try:
        with pytest.raises(Interrupted) as caught, interrupts():
            os.kill(os.getpid(), number)
            signal.pause()
        assert caught.value.exit_code == code
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_nohup_is_respected() -> None:
    """An ignored hang-up does not end the command."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace standard error by a terminal of 120 columns.

    A fixture would not do: pytest sets its own between phases.
    """
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_log_lines_are_printed_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log line stays on the terminal, and markup in it is not interpreted."""
    terminal = make_terminal(monkeypatch)
    with progress_for(Settings(log_format="console")) as progress:
        assert progress is not None
        progress.phase("searching")
        logs.emit(events.REPORT_WRITTEN, path="[bold]40[/bold]")
    shown = terminal.getvalue()
    assert "searching" in shown
    assert "[bold]40[/bold]" in shown


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """If standard error is no terminal, only log lines are written."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_for(Settings()) as progress:
        assert progress is None
    assert stream.getvalue() == ""


def test_json_logs_on_a_terminal_get_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """With JSON logs a terminal gets JSON lines only."""
    terminal = make_terminal(monkeypatch)
    with progress_for(Settings(log_format="json")) as progress:
        assert progress is None
    assert terminal.getvalue() == ""
