"""How an error reaches the user of a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import last_error


@pytest.mark.parametrize(
    "arguments",
    [
        ["trane"],
        ["train"],
        ["train", "--no-such-flag", "r.yaml"],
        ["train", "r.yaml", "--lock-timeout", "soon"],
        ["train", "r.yaml", "--lock-timeout", "-2"],
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
    """Where nobody watches, the last line says what was wrong as a record."""
    assert main.run(arguments) == 2
    shown = last_error(capsys)
    assert (shown["event"], shown["code"], shown["exit_code"]) == ("command_error", "usage_error", 2)


def test_people_get_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the same error is one readable line that says where to look."""
    monkeypatch.setenv("SVC_LOG_FORMAT", "console")
    assert main.run(["train"]) == 2
    assert capsys.readouterr().err == "error: Missing argument 'RECIPE'. See: svc train --help\n"


def test_a_failed_training_ends_with_a_sentence_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its lines stay lines, paths have no detours, and code and exit code stand behind it."""
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
    """The variable is named, whichever command runs."""
    monkeypatch.setenv("SVC_PORT", "eighty")
    assert main.run(["serve", "--recipes", "."]) == 8
    assert "SVC_PORT" in str(last_error(capsys)["error"])


def test_an_unexpected_error_is_one_line_with_the_way_to_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback meets a user who did not ask for it; SVC_LOG_LEVEL=debug asks."""

    def explode() -> dict[str, object]:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("svc.recipe.json_schema.json_schema", explode)
    assert main.run(["schema"]) == 1
    shown = last_error(capsys)
    assert "ZeroDivisionError: inside" in str(shown["error"])
    assert "SVC_LOG_LEVEL=debug" in str(shown["error"])
    assert "traceback" not in shown

    monkeypatch.setenv("SVC_LOG_LEVEL", "debug")
    assert main.run(["schema"]) == 1
    assert "in explode" in str(last_error(capsys)["traceback"])
