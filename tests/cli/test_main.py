"""The command line as a whole: help, version, and what becomes of errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest
from typer.main import get_command

from svc import __version__
from svc.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`svc --version` says what is installed."""
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"svc {__version__}\n"


def test_no_command_shows_the_help_and_counts_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that forgets the command fails."""
    assert main.run([]) == 2
    assert "Usage: svc" in capsys.readouterr().out


@pytest.mark.parametrize("command", [module.NAME for module in main.COMMANDS])
def test_every_command_teaches_by_example_and_lists_its_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`svc <command> --help` is enough to get started."""
    assert main.run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"svc {command}" in shown
    assert "Example" in shown
    assert "Exit codes" in shown


EXAMPLES = [
    (module.NAME, line)
    for module in main.COMMANDS
    for line in module.EPILOG.splitlines()
    if f"svc {module.NAME} " in f"{line} "
]


@pytest.mark.parametrize(("command", "example"), EXAMPLES)
def test_examples_name_options_that_exist(command: str, example: str) -> None:
    """Whoever copies one is not met by an error."""
    known = {flag for parameter in get_command(main.app).commands[command].params for flag in parameter.opts}  # type: ignore[attr-defined]
    words = example.split("|", maxsplit=1)[0].split()
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("module", [main, *main.COMMANDS], ids=lambda module: module.__name__)
def test_examples_fit_a_terminal(module: ModuleType) -> None:
    """80 columns: a line that wraps can be neither read nor copied."""
    lines = [line.replace("[bold]", "").replace("[/bold]", "") for line in module.EPILOG.splitlines()]
    assert [line for line in lines if len(line) > 78] == []


@pytest.mark.system
def test_help_needs_none_of_the_heavy_libraries() -> None:
    """`svc --help` is there at once, whatever is installed."""
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
    """What `svc --install-completion` sets up answers with the commands that fit."""
    assert run_process(_SVC_COMPLETE="complete_bash", COMP_WORDS="svc tra", COMP_CWORD="1").split() == ["train"]


@pytest.mark.system
def test_no_color_means_no_colours() -> None:
    """Not even where colours are forced."""
    assert "\x1b" in run_process(FORCE_COLOR="1", TERM="xterm", NO_COLOR="")
    assert "\x1b[3" not in run_process(FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")


def test_every_command_warns_of_variables_that_it_does_not_take_as_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt name with the one that was meant; a number out of bounds with what is used in its place."""
    monkeypatch.setenv("SVC_SIGNING_KEY", "k1:00")
    monkeypatch.setenv("SVC_WATCH_INTERVAL", "0")
    assert main.run(["keygen", "--kid", "k1"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one["event"] for one in told] == ["variable_unknown", "variable_clamped"]
    assert (told[0]["variable"], told[0]["did_you_mean"]) == ("SVC_SIGNING_KEY", "SVC_SIGNING_KEYS")
    assert (told[1]["variable"], told[1]["value"], told[1]["used"]) == ("SVC_WATCH_INTERVAL", "0", 1)


@pytest.mark.parametrize("command", main.REMOVED)
def test_a_removed_command_names_its_replacement(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts of earlier versions end with 2 and a sentence, whatever options they give."""
    assert main.run([command, "http://127.0.0.1:8080", "--json"]) == 2
    assert main.REMOVED[command] in capsys.readouterr().err
