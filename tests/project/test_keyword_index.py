"""`pytest -k` imports only modules that may have a matching test, and loses no test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.keyword_index import words_of

ROOT = Path(__file__).parents[2]
CONFTEST = """\
import sys
sys.path.insert(0, {root!r})
from tests.project.keyword_index import KeywordIndex
def pytest_configure(config):
    config.pluginmanager.register(KeywordIndex(config))
"""


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", []),
        ("Ties", ["ties"]),
        ("ties or pins", ["ties", "pins"]),
        ("(ties and pins)", ["ties", "pins"]),
        ("ties and not pins", []),
        ("brand[x-1]", ["brand[x-1]"]),
    ],
)
def test_a_selected_test_has_one_of_the_words_of_an_expression(expression: str, words: list[str]) -> None:
    """An expression with `not` or without words has no such words, so all modules are imported."""
    assert words_of(expression) == words


@pytest.mark.system
def test_modules_without_the_word_are_not_imported_until_they_change(tmp_path: Path) -> None:
    """Words also match names of classes, parameters and markers."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # else the folder may lie in that of another configuration
    (tmp_path / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    write_module(tmp_path / "test_fruit.py", "def test_apple(): pass")
    write_module(
        tmp_path / "test_tools.py",
        "import pytest\n@pytest.mark.parametrize('x', ['saw'])\nclass TestCut:\n    def test_it(self, x): pass",
    )
    (tmp_path / "shed").mkdir()
    write_module(tmp_path / "shed" / "conftest.py", "")
    write_module(tmp_path / "shed" / "test_rakes.py", "def test_rake(): pass")
    shed = {"conftest", "test_rakes"}
    assert run(tmp_path) == (3, {"test_fruit", "test_tools", *shed})
    assert run(tmp_path, "-k", "rake") == (1, shed)
    assert run(tmp_path, "-k", "Apple") == (1, {"test_fruit"})
    assert run(tmp_path, "-k", "saw") == (1, {"test_tools"})
    assert run(tmp_path, "-k", "cut or saw") == (1, {"test_tools"})
    assert run(tmp_path, "-k", "parametrize") == (1, {"test_tools"})
    assert run(tmp_path, "-k", "not apple") == (2, {"test_fruit", "test_tools", *shed})
    write_module(tmp_path / "test_tools.py", "def test_apple_press(): pass")
    assert run(tmp_path, "-k", "apple") == (2, {"test_fruit", "test_tools"})


def write_module(path: Path, tests: str) -> None:
    path.write_text(f"with open('imported.txt', 'a') as file: file.write(__name__ + '\\n')\n{tests}\n")


def run(folder: Path, *arguments: str) -> tuple[int, set[str]]:
    """Return how many tests passed, and the modules that were imported."""
    imported = folder / "imported.txt"
    imported.write_text("")
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.rpartition(" passed")[0].split()[-1]), set(imported.read_text().split())
