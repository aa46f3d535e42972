"""`svc serve`: the checks before anything is served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from svc.cli import main
from svc.cli.common import CONFIRMATION
from svc.errors import ConfigError
from svc.processes import require_memory_files
from svc.serving.run import ServeOptions
from svc.settings import Settings
from tests.cli.conftest import last_error


def test_serving_without_auth_needs_a_development_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names SVC_ENV. In production, a server without authentication is a mistake."""
    assert main.run(["serve", "--recipes", ".", "--insecure-no-auth"]) == 8
    assert "SVC_ENV" in str(last_error(capsys)["error"])


@pytest.mark.parametrize("name", ["SVC_API_KEY", "SVC_APIKEY", "SVC_KEYS", "SVC_API_TOKEN", "SVC_API_KEY_FILE"])
def test_an_api_key_in_a_misspelt_variable_is_refused(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names the variable and `svc keygen`. It does not repeat the key."""
    monkeypatch.setenv(name, "s3cret")
    assert main.run(["serve", "--recipes", str(tmp_path)]) == 8
    error = str(last_error(capsys)["error"])
    assert error.startswith(f"{name} is not a variable of svc") and "svc keygen --type api" in error
    assert "s3cret" not in error


def test_a_folder_with_only_yml_files_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files with .yml are not served. The warning does not appear with SVC_YML_RECIPES=1."""
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    (tmp_path / "books.yml").write_text("name: books", encoding="utf-8")
    for change in (lambda: None, lambda: monkeypatch.setenv("SVC_YML_RECIPES", "1")):
        change()
        assert main.run(["serve", "--recipes", str(tmp_path)]) == 0
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(record["event"], record["files"]) for record in records] == [("recipes_end_in_yml", ["books.yml"])]
    assert "SVC_YML_RECIPES=1" in records[0]["way_out"]


def test_a_folder_without_recipes_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder below that has recipes is named. A recipe in the folder itself makes the warning go away."""
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    (tmp_path / "recipes").mkdir()
    said = []
    for added in ("recipes/notes.txt", "recipes/books.yaml", "books.yaml"):
        (tmp_path / added).write_text("name: books", encoding="utf-8")
        assert main.run(["serve", "--recipes", str(tmp_path)]) == 0
        said.append([json.loads(line) for line in capsys.readouterr().err.splitlines()])
    assert [record["event"] for (record,) in said[:2]] == ["no_recipes", "no_recipes"]
    assert said[0][0]["way_out"] == "put *.yaml files directly into it"
    assert said[1][0]["way_out"] == f"recipes are in {tmp_path / 'recipes'}: name that folder"
    assert said[2] == []


def test_variables_that_the_environment_overrides_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The event has the file and the names, not the values."""
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    monkeypatch.setenv("SVC_HOST", "127.0.0.1")
    (tmp_path / "books.yaml").write_text("name: books", encoding="utf-8")
    (tmp_path / "keys.env").write_text("SVC_HOST=192.0.2.1\n", encoding="utf-8")
    (tmp_path / "keys.env").chmod(0o600)
    assert main.run(["serve", "--recipes", str(tmp_path)]) == 0
    (record,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (record["event"], record["variables"]) == ("variables_overridden", ["SVC_HOST"])
    assert "192.0.2.1" not in str(record)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ServeOptions(Path(), "192.0.2.1", 81)),
        (["--host", "::1", "--port", "0"], ServeOptions(Path(), "::1", 0)),
        (["--insecure-no-auth"], ServeOptions(Path(), "192.0.2.1", 81, insecure_no_auth=True)),
        (["--dev-allow-unsigned", CONFIRMATION], ServeOptions(Path(), "192.0.2.1", 81, dev_allow_unsigned=True)),
    ],
)
def test_options_reach_the_server(
    arguments: list[str], expected: ServeOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option overrides its variable. Recipes may use the variables of the environment and of --env-var."""
    calls: list[tuple[ServeOptions, Settings, dict[str, str], dict[str, str]]] = []
    monkeypatch.setattr("svc.serving.run.serve", lambda *all: calls.append(all) or 75)
    environ = {"SVC_ENV": "development", "SVC_HOST": "192.0.2.1", "SVC_PORT": "81", "SVC_RECIPE_A": "1"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main.run(["serve", "--recipes", str(tmp_path), "--env-var", "SVC_RECIPE_B=2", *arguments]) == 75
    ((options, settings, variables, passed),) = calls
    assert options == replace(expected, recipes_dir=tmp_path)
    assert settings.env == "development"
    assert (variables["SVC_RECIPE_A"], variables["SVC_RECIPE_B"]) == ("1", "2")
    assert passed.items() >= environ.items()


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", "1.5", "", "2 "])
def test_an_invalid_number_of_workers_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2 for the option and 8 for the variable. An empty variable counts as unset."""
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
def test_the_option_for_workers_overrides_the_variable(
    option: str | None, variable: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` means the usable cores, here five."""
    asked: list[int] = []
    monkeypatch.setattr("svc.serving.run.serve", lambda options, *_: asked.append(options.workers) or 0)
    monkeypatch.setattr("svc.cores.usable_cores", lambda: 5)
    monkeypatch.setenv("SVC_WORKERS", variable)
    more = [] if option is None else ["--workers", option]
    assert main.run(["serve", "--recipes", str(tmp_path), *more]) == 0
    assert asked == [expected]


def test_workers_without_memory_files_are_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS the error comes at the start, not at the first failure."""
    monkeypatch.delattr("os.memfd_create")
    with pytest.raises(ConfigError, match="only Linux"):
        require_memory_files()
