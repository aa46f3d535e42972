"""Skipped tests are listed with the reason, and pytest alone tells how to run the fast tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import pytest_report_header

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


@pytest.mark.parametrize("field", ["", "file_or_dir", "markexpr", "keyword"])
def test_pytest_alone_tells_how_to_run_the_fast_tests(
    field: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header has the command, unless files, markers or names are given."""
    for name in ("file_or_dir", "markexpr", "keyword"):
        monkeypatch.setattr(request.config.option, name, "system" if name == field else "")
    told = pytest_report_header(request.config)
    assert (told is None) == bool(field)
    assert told is None or 'pytest -m "not integration and not system"' in told
