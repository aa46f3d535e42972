"""`svc serve`: what its flags need before anything is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main
from svc.errors import ConfigError
from svc.processes.memory import require_memory_files
from tests.cli.conftest import last_error


def test_serving_without_auth_needs_a_development_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """An open server in production is a mistake."""
    assert main.run(["serve", "--recipes", ".", "--insecure-no-auth"]) == 8
    assert "SVC_ENV" in str(last_error(capsys)["error"])


@pytest.mark.parametrize("name", ["SVC_API_KEY", "SVC_APIKEY", "SVC_KEYS", "SVC_API_TOKEN", "SVC_API_KEY_FILE"])
def test_a_key_in_a_variable_that_nobody_reads_is_refused(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server would answer everybody, and its owner would not know."""
    monkeypatch.setenv(name, "s3cret")
    assert main.run(["serve", "--recipes", str(tmp_path)]) == 8
    error = str(last_error(capsys)["error"])
    assert error.startswith(f"{name} is no variable of svc") and "svc keygen --type api" in error
    assert "s3cret" not in error


def test_a_folder_with_only_yml_files_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not served; the warning ends when they are asked for, or when others are there."""
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    (tmp_path / "books.yml").write_text("name: books", encoding="utf-8")
    for change in (lambda: None, lambda: monkeypatch.setenv("SVC_YML_RECIPES", "1")):
        change()
        assert main.run(["serve", "--recipes", str(tmp_path)]) == 0
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["event"], one["files"]) for one in told] == [("recipes_end_in_yml", ["books.yml"])]
    assert "SVC_YML_RECIPES=1" in told[0]["way_out"]


def test_variables_that_the_environment_overrides_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their names and the file, no values."""
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    monkeypatch.setenv("SVC_HOST", "127.0.0.1")
    (tmp_path / "keys.env").write_text("SVC_HOST=192.0.2.1\n", encoding="utf-8")
    (tmp_path / "keys.env").chmod(0o600)
    assert main.run(["serve", "--recipes", str(tmp_path)]) == 0
    (told,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (told["event"], told["variables"]) == ("variables_overridden", ["SVC_HOST"])
    assert "192.0.2.1" not in str(told)


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", "1.5", "", "2 "])
def test_a_wrong_number_of_workers_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 for the option, 8 for the variable, which counts as unset when it is empty."""
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    serve = ["serve", "--recipes", str(tmp_path)]
    assert main.run([*serve, "--workers", text]) == 2
    assert "--workers" in "".join(capsys.readouterr())
    monkeypatch.setenv("SVC_WORKERS", text)
    assert main.run(serve) == (8 if text else 0)
    assert not text or "SVC_WORKERS" in str(last_error(capsys)["error"])


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [(None, "", 1), (None, "7", 7), (None, "auto", 5), ("3", "7", 3), ("auto", "7", 5), ("64", "", 64)],
)
def test_the_option_goes_before_the_variable(
    option: str | None, variable: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` stands for the usable cores, here five."""
    asked: list[int] = []
    monkeypatch.setattr("svc.serving.run.serve", lambda options, *_: asked.append(options.workers) or 0)
    monkeypatch.setattr("svc.cores.usable_cores", lambda: 5)
    monkeypatch.setenv("SVC_WORKERS", variable)
    more = [] if option is None else ["--workers", option]
    assert main.run(["serve", "--recipes", str(tmp_path), *more]) == 0
    assert asked == [expected]


def test_a_system_without_memory_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS: an error at the start, not a failure later."""
    monkeypatch.delattr("os.memfd_create")
    with pytest.raises(ConfigError, match="only Linux"):
        require_memory_files()
