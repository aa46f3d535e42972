"""Commands in this process, independent of the machine's settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's settings. Standard error counts as a pipe."""
    for name in ("SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_ENV", "SVC_SIGNING_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def last_error(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return dict(json.loads(capsys.readouterr().err.splitlines()[-1]))


KEY = "a:" + "11" * 32


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a recipe with versions over a small table."""
    for name in ("SVC_ENV", "SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_VERIFY_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_SIGNING_KEYS", KEY)
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"u{user},i{item}" for user in range(30) for item in range(20) if (user + item) % 3]
    (tmp_path / "books.csv").write_text("user,item\n" + "\n".join(rows) + "\n", encoding="utf-8")
    path = tmp_path / "books.yaml"
    path.write_text(
        """
name: books
source: {type: csv, path: books.csv}
schema: {user_column: user, item_column: item}
training: {algorithms: [TopPop], n_trials: 1, cutoff: 5, split: {heldout_ratio: 0.3}}
output: {path: out/books.svc, versioning: append_sha, keep: 4}
""",
        encoding="utf-8",
    )
    return path


def history(recipe: Path, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    capsys.readouterr()
    assert main.run(["history", str(recipe), "--json"]) == 0
    return list(json.loads(capsys.readouterr().out)["versions"])


def train(recipe: Path, run_id: str) -> int:
    return main.run(["train", str(recipe), "--quiet", "--run-id", run_id])
