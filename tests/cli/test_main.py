"""The command line as a whole: help, version, and errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.main import get_command

from svc import __version__
from svc.cli import main
from svc.cli.common import Interrupted
from svc.training.search.workers import Workers
from tests.cli.conftest import last_error
from tests.privileges import permissions_hold


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`svc --version` prints the installed version."""
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"svc {__version__}\n"


def test_no_command_prints_the_help_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that forgets the command fails."""
    assert main.run([]) == 2
    assert "Usage: svc" in capsys.readouterr().out


@pytest.mark.parametrize("command", main.COMMANDS)
def test_the_help_of_every_command_has_examples_and_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`svc <command> --help` is enough to start with."""
    assert main.run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"svc {command}" in shown
    assert "Example" in shown
    assert "Exit codes" in shown
    options = get_command(main.app).commands[command].params  # type: ignore[attr-defined]
    assert [option.name for option in options if not option.help] == []


EXAMPLES = [
    (name, line)
    for name, (_, epilog) in main.COMMANDS.items()
    for line in epilog.splitlines()
    if f"svc {name} " in f"{line} "
]


@pytest.mark.parametrize(("command", "example"), EXAMPLES)
def test_options_in_examples_exist(command: str, example: str) -> None:
    """An example that is copied from the help works."""
    known = {flag for parameter in get_command(main.app).commands[command].params for flag in parameter.opts}  # type: ignore[attr-defined]
    words = example.split("|", maxsplit=1)[0].split()
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize(
    "epilog", [main.EPILOG, *(epilog for _, epilog in main.COMMANDS.values())], ids=["svc", *main.COMMANDS]
)
def test_examples_fit_a_terminal(epilog: str) -> None:
    """Lines of the help have at most 78 characters, so that they do not wrap."""
    lines = [line.replace("[bold]", "").replace("[/bold]", "") for line in epilog.splitlines()]
    assert [line for line in lines if len(line) > 78] == []


@pytest.mark.system
def test_help_imports_no_heavy_library() -> None:
    """`svc --help` starts fast and without optional libraries."""
    script = "import sys\nfrom svc.cli import main\nmain.run(['--help'])\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {
        "numpy",
        "pandas",
        "pyarrow",
        "scipy",
        "trio",
        "optuna",
        "sqlalchemy",
        "quart",
        "h2",
        "httpx",
        "pydantic",
    }
    assert not heavy & set(done.stderr.split())


def run_process(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "svc"], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.system
def test_the_shell_completes_commands() -> None:
    """The completion of `svc --install-completion` gives the matching commands."""
    assert run_process(_SVC_COMPLETE="complete_bash", COMP_WORDS="svc tra", COMP_CWORD="1").split() == ["train"]


@pytest.mark.system
def test_no_color_disables_colours() -> None:
    """NO_COLOR takes precedence over FORCE_COLOR."""
    assert "\x1b" in run_process(FORCE_COLOR="1", TERM="xterm", NO_COLOR="")
    assert "\x1b[3" not in run_process(FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")


def test_every_command_warns_of_misspelt_and_clamped_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The warning has the likely name of a misspelt variable, or the value used for a number out of bounds."""
    monkeypatch.setenv("SVC_SIGNING_KEY", "k1:00")
    monkeypatch.setenv("SVC_WATCH_INTERVAL", "0")
    assert main.run(["keygen", "--kid", "k1"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [record["event"] for record in records] == ["variable_unknown", "variable_clamped"]
    assert (records[0]["variable"], records[0]["did_you_mean"]) == ("SVC_SIGNING_KEY", "SVC_SIGNING_KEYS")
    assert (records[1]["variable"], records[1]["value"], records[1]["used"]) == ("SVC_WATCH_INTERVAL", "0", 1)


@pytest.mark.parametrize(
    ("interrupt", "code"), [(KeyboardInterrupt(), 130), (Interrupted(signal.SIGTERM), 143)], ids=["ctrl-c", "sigterm"]
)
def test_an_interrupted_command_returns_the_exit_code_of_its_signal(
    interrupt: KeyboardInterrupt, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed, and Ctrl-C outside of a training ends with 130, as a shell expects."""
    monkeypatch.setattr("svc.cli.schema.json_schema", Mock(side_effect=interrupt))
    assert main.run(["schema"]) == code
    assert capsys.readouterr() == ("", "")


def test_a_command_ends_at_once_while_an_abandoned_trial_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own exit could print errors of a trial inside C++ on standard error."""
    ended, exit_at_once = threading.Event(), Mock()
    monkeypatch.setattr("svc.training.search.workers.run_trial", lambda *_: ended.wait(60))
    monkeypatch.setattr(main, "run", lambda _: 4)
    monkeypatch.setattr("os._exit", exit_at_once)
    with pytest.raises(SystemExit):
        main.main()
    exit_at_once.assert_not_called()
    Workers(Mock()).submit(Mock(number=3), Mock())
    with pytest.raises(SystemExit):
        main.main()
    exit_at_once.assert_called_once_with(4)
    ended.set()


@pytest.mark.parametrize("command", main.ELSEWHERE)
def test_a_removed_command_names_its_replacement(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts of earlier versions end with 2 and this message, for any options."""
    assert main.run([command, "http://127.0.0.1:8080", "--json"]) == 2
    assert main.ELSEWHERE[command] in capsys.readouterr().err


@pytest.mark.parametrize("name", main.OTHER_NAMES)
def test_a_command_of_another_program_names_the_command_of_svc(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([name, "recipe.yaml"]) == 2
    assert f"did you mean `svc {main.OTHER_NAMES[name]}`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["trane"],
        ["train"],
        ["train", "--no-such-flag", "r.yaml"],
        ["train", "r.yaml", "--lock-timeout", "soon"],
        ["train", "r.yaml", "--lock-timeout", "-2"],
        ["train", "r.yaml", "--lock-timeout", "nan"],
        ["train", "r.yaml", "--run-id", "a b"],
        ["keygen", "--kid", "a:b"],
        ["keygen", "--kid", "x" * 65],
        ["keygen", "--kid", "a", "--type", "ssh"],
        ["serve", "--recipes", "no-such-folder"],
        ["serve", "--recipes", ".", "--port", "65536"],
        ["status", "localhost:8080"],
        ["bench", "http://127.0.0.1", "--recipe", "a", "--users", "no-such-file"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_json_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """If standard error is no terminal, the error is one JSON record."""
    assert main.run(arguments) == 2
    shown = last_error(capsys)
    assert (shown["event"], shown["code"], shown["exit_code"]) == ("command_error", "usage_error", 2)


def test_wrong_usage_on_a_terminal_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names the command that prints the help. The exit code is the same if nobody can read it."""
    monkeypatch.setenv("SVC_LOG_FORMAT", "console")
    assert main.run(["train"]) == 2
    assert capsys.readouterr().err == "error: Missing argument 'RECIPE'. See: svc train --help\n"
    monkeypatch.setattr("sys.stderr", None)
    assert main.run(["train"]) == 2


def test_a_failed_training_ends_with_a_sentence_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each problem is one line. Code, exit code and run id are on the last line."""
    monkeypatch.setenv("SVC_LOG_FORMAT", "console")
    monkeypatch.setenv("NO_COLOR", "1")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: a b\nsource: {type: csv}\n")
    assert main.run(["train", str(recipe)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"error: {recipe}: \d problems", lines[0])
    assert "\\n" not in "".join(lines)
    assert re.fullmatch(r"\(code recipe_error, exit code 2, run [0-9a-f]{12}\)", lines[-1])


def test_an_unreadable_environment_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the variable."""
    monkeypatch.setenv("SVC_PORT", "eighty")
    assert main.run(["serve", "--recipes", "."]) == 8
    assert "SVC_PORT" in str(last_error(capsys)["error"])


def test_an_unexpected_error_is_one_line_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names SVC_LOG_LEVEL=debug, which shows the traceback."""

    def explode() -> dict[str, object]:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("svc.cli.schema.json_schema", explode)
    assert main.run(["schema"]) == 1
    shown = last_error(capsys)
    assert "ZeroDivisionError: inside" in str(shown["error"])
    assert "SVC_LOG_LEVEL=debug" in str(shown["error"])
    assert "traceback" not in shown

    monkeypatch.setenv("SVC_LOG_LEVEL", "debug")
    assert main.run(["schema"]) == 1
    assert "in explode" in str(last_error(capsys)["traceback"])
    monkeypatch.setenv("SVC_LOG_FORMAT", "console")
    assert main.run(["schema"]) == 1
    assert "in explode\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "exit_code"), [(["serve", "--recipes", "closed/recipes"], 8), (["inspect", "closed/a.svc"], 5)]
)
def test_a_path_in_a_closed_folder_is_an_expected_error(
    command: list[str],
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The error names the path, and it is no defect of svc."""
    (tmp_path / "closed").mkdir(mode=0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SVC_ENV", "production")
    with permissions_hold():
        assert main.run(command) == exit_code
    shown = str(last_error(capsys)["error"])
    assert command[-1] in shown and "Permission denied" in shown
