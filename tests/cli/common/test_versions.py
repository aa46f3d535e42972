"""`svc history`, `svc promote` and `svc rollback` with real trainings."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from svc.artifact.keys import parse_signing_keys, public_entry
from svc.cli import main
from tests.cli.conftest import KEY, history, train


def test_impossible_requests_end_with_5_8_or_2(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No earlier version, an unknown version and one of another recipe end with 5, no signing key with 8, no versions
    with 2.
    """
    monkeypatch.setenv("SVC_ARTIFACT_SIGNATURE", "ed25519")
    train(recipe, "r1")
    pointer = (recipe.parent / "out/books.svc").read_text()
    assert main.run(["rollback", str(recipe)]) == 5
    assert main.run(["rollback", str(recipe), "--to", "00000000"]) == 5
    assert main.run(["promote", str(recipe), "nothex"]) == 5
    sha8, text = pointer.split(".")[-2], recipe.read_text()
    recipe.write_text(text.replace("name: books", "name: films"))
    assert main.run(["promote", str(recipe), sha8]) == 5
    recipe.write_text(text)
    assert train(recipe, "r2") == 0
    files = {path: path.read_bytes() for path in recipe.parent.rglob("books*")}
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    assert main.run(["rollback", str(recipe)]) == 8
    monkeypatch.setenv("SVC_VERIFY_KEYS", public_entry(*parse_signing_keys(KEY).active))
    assert main.run(["history", str(recipe)]) == 0
    for command in (["promote", str(recipe), sha8], ["rollback", str(recipe)]):
        assert main.run(command) == 8
    assert {path: path.read_bytes() for path in recipe.parent.rglob("books*")} == files
    monkeypatch.setenv("SVC_SIGNING_KEYS", KEY)
    text = recipe.read_text().replace(", versioning: append_sha, keep: 4", "")
    recipe.write_text(text, encoding="utf-8")
    assert main.run(["history", str(recipe)]) == 2


def test_a_recipe_without_keep_and_promotion_writes_no_log_before_a_rollback(recipe: Path) -> None:
    """After the first rollback the trainings of such a recipe write lines too."""
    recipe.write_text(recipe.read_text().replace(", keep: 4", ""), encoding="utf-8")
    out = recipe.parent / "out"
    for run in range(2):
        assert train(recipe, f"r{run}") == 0
    assert {path.suffix for path in out.iterdir()} <= {".svc", ".lock"}
    assert main.run(["rollback", str(recipe)]) == 0
    assert train(recipe, "r2") == 0
    assert len((out / "books.svc.log.jsonl").read_text().splitlines()) == 2


@pytest.mark.integration
def test_commands_killed_at_random_moments_leave_a_valid_store(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pointer names an existing version, and every line of the log is whole and signed."""
    for run in range(4):
        assert train(recipe, f"r{run}") == 0
    versions = [version["sha8"] for version in history(recipe, capsys)]
    moments, folder = random.Random(7), recipe.parent / "out"
    script = "import sys; from svc.cli.main import run; sys.exit(run(sys.argv[1:]))"
    for turn in range(40):
        target = versions[turn % len(versions)]
        command = ["promote", str(recipe), target] if turn % 2 else ["rollback", str(recipe), "--to", target, "--hold"]
        process = subprocess.Popen([sys.executable, "-c", script, *command], stdout=subprocess.PIPE, env=os.environ)
        time.sleep(moments.uniform(0.2, 0.8))
        process.kill()
        process.communicate()
        name = (folder / "books.svc").read_text()
        assert name.endswith(".svc\n")
        assert (folder / name.strip()).is_file()
    assert main.run(["promote", str(recipe), versions[0]]) == 0
    assert main.run(["history", str(recipe), "--verify"]) == 0
