"""Tests that are skipped without an optional package are listed with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
OPTIONAL = {
    ("e2e/access/test_console.py", "playwright.sync_api"): "the module is collected, not run, by sessions without it",
    ("project/test_deploy.py", "helm_python"): "has wheels for x86-64 alone",
    ("training/fitting/algorithms/test_bprfm.py", "lightfm"): "has wheels for Python 3.12 and 3.13 alone",
    ("training/judging/test_task.py", "lightfm"): "has wheels for Python 3.12 and 3.13 alone",
    ("training/search/test_same_bytes.py", "lightfm"): "has wheels for Python 3.12 and 3.13 alone",
    ("training/fitting/test_export.py", "lightfm"): "has wheels for Python 3.12 and 3.13 alone",
    ("training/test_item_order.py", "lightfm"): "has wheels for Python 3.12 and 3.13 alone",
}


def optional_imports() -> Iterator[tuple[str, str]]:
    """Yield file and package of each test that is skipped without an optional package."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "importorskip(" in text or "find_spec(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                "importorskip",
                "find_spec",
            ):
                package = node.args[0]
                assert isinstance(package, ast.Constant), f"{path}:{node.lineno}: name the package"
                if package.value != "rotel":  # a program, looked up like nginx
                    yield str(path.relative_to(TESTS)), package.value


def test_no_test_is_skipped_for_a_package_that_its_session_could_install() -> None:
    """Only the listed tests are skipped if an optional package is missing."""
    assert set(optional_imports()) == set(OPTIONAL)
