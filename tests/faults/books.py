"""The recipe, table and environment that all fault tests share, and a function that runs a command in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli import main

KEYS = "k1:" + "1f" * 32
ITEMS = [f"i{item}" for item in range(20)]
RECIPE = """
name: books
source: {type: csv, path: books.csv}
schema: {user_column: user, item_column: item}
training: {algorithms: [TopPop], n_trials: 1, cutoff: 5, split: {heldout_ratio: 0.3}}
output: {path: out/books.svc, versioning: append_sha, keep: 4}
"""


def write_interactions(folder: Path, n_users: int = 30) -> None:
    """Write `books.csv`: each user chose two thirds of the items."""
    rows = [f"u{user},{name}" for user in range(n_users) for item, name in enumerate(ITEMS) if (user + item) % 3]
    (folder / "books.csv").write_text("user,item\n" + "\n".join(rows) + "\n", encoding="utf-8")


def set_environment(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Set keys, state and locks of `folder`, and remove other variables that the commands read."""
    for name in ("SVC_ENV", "SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_VERIFY_KEYS"):
        patch.delenv(name, raising=False)
    patch.setenv("SVC_SIGNING_KEYS", KEYS)
    patch.setenv("SVC_STATE_DIR", str(folder / "state"))
    patch.setenv("SVC_LOCK_DIR", str(folder / "locks"))
    patch.setenv("COLUMNS", "200")


def run(command: str, folder: Path, older: str = "") -> int:
    """Run a command line on files in `folder`, with `older` in place of OLDER, and return its exit code."""
    name, *rest = command.replace("OLDER", older).split()
    return main.run([name, *(str(folder / text) if "." in text and ":" not in text else text for text in rest)])
