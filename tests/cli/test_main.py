"""The command line as a whole: help, version, and what becomes of errors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from typer.main import get_command

from svc import __version__
from svc.artifact import layout
from svc.artifact.keys import development_keys
from svc.cli import main
from tests.serving.artifacts import SIGNING_KEYS, header, popularity_model, write_artifact


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches these tests; standard error counts as a pipe."""
    for name in ("SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_ENV", "SVC_SIGNING_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def last_error(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return dict(json.loads(capsys.readouterr().err.splitlines()[-1]))


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
        "hypercorn",
        "httpx",
        "pydantic",
    }
    assert not heavy & set(done.stderr.split())


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


def test_inspecting_unsigned_files_asks_for_no_confirmation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nothing is decoded there; trainings and servers, which decode, do ask."""
    monkeypatch.setenv("SVC_ENV", "development")
    kid, key = development_keys().active
    with (tmp_path / "a.svc").open("wb") as out:
        layout.write(out, kid=kid, key=key, header={}, payload=[b"x"])
    assert main.run(["inspect", str(tmp_path / "a.svc"), "--dev-allow-unsigned"]) == 0
    assert "kid: dev" in capsys.readouterr().out
    assert main.run(["serve", "--recipes", str(tmp_path), "--dev-allow-unsigned"]) == 8


VALIDATED = """\
name: books
source: {type: csv, path: rows.csv}
schema: {user_column: u, item_column: i, time_column: t, time_unit: s}
training: {algorithms: [TopPop], storage_path: STORAGE, split: {scheme: time_user}}
output: {path: books.svc}
"""


def test_validate_looks_at_values_and_prints_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Times in another unit and an unusable storage are found before any training, with what it would end with."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(VALIDATED.replace("STORAGE", "postgres://host/db"))
    (tmp_path / "rows.csv").write_text("u,i,t\na,x,1735689600000\nb,y,1735689600001\n")
    assert main.run(["validate", str(recipe)]) == 8
    shown = capsys.readouterr().out
    assert "(code storage_path_unusable, exit code 8)" in shown
    assert "2 of the first 2 rows would be dropped" in shown and "set schema.time_unit: ms?" in shown
    recipe.write_text(VALIDATED.replace("STORAGE", "''"))
    assert main.run(["validate", str(recipe)]) == 4
    (tmp_path / "rows.csv").write_text("u,i,t\na,x,1735689600\nb,y,1735689601\n")
    assert main.run(["validate", str(recipe)]) == 0


@pytest.fixture(params=["parquet", "sql"])
def validated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """`validated(rows, unit)`: the exit code of `svc validate` for rows of user, item and time."""
    described = "{type: parquet, path: rows.parquet}"
    if request.param == "sql":
        monkeypatch.setenv("SVC_RECIPE_DSN", f"sqlite:///{tmp_path}/rows.db")
        described = "{type: sql, dsn_env: SVC_RECIPE_DSN, query: 'SELECT u, i, t FROM choices ORDER BY rowid'}"
    recipe = tmp_path / "recipe.yaml"
    text = VALIDATED.replace("STORAGE", "''").replace("{type: csv, path: rows.csv}", described)

    def run(rows: list[tuple[Any, ...]], unit: str = "s") -> int:
        recipe.write_text(text.replace("time_unit: s", f"time_unit: {unit}"))
        frame = pd.DataFrame(rows, columns=["u", "i", "t"])
        frame.to_parquet(tmp_path / "rows.parquet")
        with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
            frame.to_sql("choices", connection, if_exists="replace", index=False)
        return main.run(["validate", str(recipe)])

    return run


GOOD = [(f"u{k}", f"i{k}", 1_735_689_600 + k) for k in range(1000)]


@pytest.mark.parametrize(
    ("rows", "unit", "expected"),
    [
        (GOOD, "s", (0, None)),
        ([(u, i, t * 1000) for u, i, t in GOOD], "s", (4, "1000 of the first 1000 rows would be dropped")),
        ([(u, i, t * 1000) for u, i, t in GOOD], "s", (4, "set schema.time_unit: ms?")),
        (GOOD, "ms", (0, "1735689600 is far from today when it counts ms (set schema.time_unit: s?)")),
        ([(u, i, "soon") for u, i, _ in GOOD], "s", (4, "the time column 't' holds 'soon' in data row 1")),
        ([(None, i, t) for _, i, t in GOOD], "s", (4, "the id column 'u' is blank in 1000 rows")),
        ([*GOOD[:900], *((u, " ", t) for u, _, t in GOOD[:100])], "s", (0, "the id column 'i' is blank in 100 rows")),
        (
            [(float(k), i, t) for k, (_, i, t) in enumerate(GOOD)],
            "s",
            (3, "the id column u holds floating point numbers"),
        ),
        ([(u, f"{k}.0", t) for k, (u, _, t) in enumerate(GOOD)], "s", (0, "requests must ask for '0.0'")),
        ([*GOOD, *((None, None, None) for _ in range(1000))], "s", (0, None)),
    ],
)
def test_validate_looks_at_the_first_rows_of_tables_and_queries(
    capsys: pytest.CaptureFixture[str], validated: Any, rows: Any, unit: str, expected: tuple[int, str | None]
) -> None:
    """What csv files are told of, with the exit code of the training; later rows are not looked at."""
    code, told = expected
    assert validated(rows, unit) == code
    shown = capsys.readouterr().out
    assert told in shown if told else "warning" not in shown
    assert shown.count("source:") == shown.count("ok      source:") + (code != 0)


def test_a_source_that_fails_is_told_once(capsys: pytest.CaptureFixture[str], validated: Any, tmp_path: Path) -> None:
    """What the probe found is not found again by the sample."""
    assert validated(GOOD) == 0
    (tmp_path / "rows.parquet").write_text("none")
    (tmp_path / "rows.db").unlink()
    capsys.readouterr()
    assert main.run(["validate", str(tmp_path / "recipe.yaml")]) == 3
    assert capsys.readouterr().out.count("FAILED") == 1


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
    """Misuse ends with 8 before anything is read, and names what is missing."""
    monkeypatch.setenv("SVC_ENV", env)
    assert main.run([*command, *arguments]) == 8
    assert "--dev-allow-unsigned" in str(last_error(capsys)["error"])


def test_inspect_without_keys_is_a_configuration_error(capsys: pytest.CaptureFixture[str]) -> None:
    """An artifact is never shown as trusted without a key to trust."""
    assert main.run(["inspect", "a.svc"]) == 8
    assert "SVC_SIGNING_KEYS" in str(last_error(capsys)["error"])


def test_inspect_shows_a_hostile_header_and_obeys_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a header says can neither steer the terminal nor add a line of its own."""
    path = tmp_path / "a.svc"
    head = header(best_class="\x1b]0;owned\x07\u202eNNK", metric="ndcg\nkid: trusted")
    write_artifact(path, popularity_model(), head=head)
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    assert main.run(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if line.startswith("kid: ")] == ["kid: k1"]
    assert r"best_class: \x1b]0;owned\x07\u202eNNK" in lines


def test_inspect_prints_the_provenance_of_what_it_has_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digest is that of the file, whatever a header says of itself; what does not verify has no statement."""
    path = tmp_path / "a.svc"
    head = header(recipe_hash="0123456789ab", model_version="sha256:0", artifact="another")
    sha256 = write_artifact(path, popularity_model(), head=head)
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    assert main.run(["inspect", str(path), "--provenance"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["subject"] == [{"name": "a.svc", "digest": {"sha256": sha256}}]
    assert found["predicate"]["buildDefinition"]["externalParameters"] == {"recipe_hash": "0123456789ab"}
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main.run(["inspect", str(path), "--provenance"]) == 5
    assert capsys.readouterr().out == ""


def test_serving_without_auth_needs_a_development_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """An open server in production is a mistake."""
    assert main.run(["serve", "--recipes", ".", "--insecure-no-auth"]) == 8
    assert "SVC_ENV" in str(last_error(capsys)["error"])


def run_process(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "svc"], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_the_shell_completes_commands() -> None:
    """What `svc --install-completion` sets up answers with the commands that fit."""
    assert run_process(_SVC_COMPLETE="complete_bash", COMP_WORDS="svc tra", COMP_CWORD="1").split() == ["train"]


def test_no_color_means_no_colours() -> None:
    """Not even where colours are forced."""
    assert "\x1b" in run_process(FORCE_COLOR="1", TERM="xterm", NO_COLOR="")
    assert "\x1b[3" not in run_process(FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
