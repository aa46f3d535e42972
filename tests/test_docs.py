"""The documentation tells what the code does: pages follow the tables, links lead somewhere, blocks run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from svc.metrics import METRICS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DEPLOY = DOCS / "deploy"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(#[^)]*)?\)")
BLOCK = re.compile(r"^```bash runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", DOCS / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["environment.md", "events.md", "metrics.md", "exit-codes.md", "cli.md"])
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    """Stale? Run: python docs/reference_pages.py"""
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == load_generator().PAGES[name]()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_links_lead_to_files(page: Path) -> None:
    """No page sends a reader into the void."""
    targets = [page.parent / match[1] for match in LINK.finditer(page.read_text(encoding="utf-8"))]
    assert [str(target) for target in targets if not target.exists()] == []


def test_every_dependency_has_its_reason() -> None:
    """docs/dependencies.md names every package that svc brings along."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (DOCS / "dependencies.md").read_text()
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in project["dependencies"]]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", page)] == []
    assert [extra for extra in project["optional-dependencies"] if extra != "all" and f"`{extra}`" not in page] == []


def metrics_in(text: str) -> set[str]:
    found = set(re.findall(r"\bsvc_[a-z0-9_]+\b", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


@pytest.mark.parametrize("file", ["prometheus/rules.yml", "grafana/svc.json"])
def test_alerts_and_dashboard_use_metrics_that_exist(file: str) -> None:
    """A renamed metric would leave an alert that never fires."""
    assert metrics_in((DEPLOY / file).read_text()) - METRICS.keys() <= {"svc_a", "svc_b"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_alert_rules_hold_their_own_tests() -> None:
    """promtool accepts the rules, and the alerts fire when they should."""
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_structured_files_parse() -> None:
    """YAML and JSON under docs/deploy can be read."""
    for path in DEPLOY.rglob("*.y*ml"):
        assert list(yaml.safe_load_all(path.read_text())), path
    for path in DEPLOY.rglob("*.json"):
        assert json.loads(path.read_text()), path


@pytest.fixture
def shell_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which `svc` is this project, and nothing of the machine's own settings is left."""
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "svc"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m svc "$@"\n')
    launcher.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    environment |= {"PATH": f"{launcher.parent}:{environment['PATH']}", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    yield environment


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))], ids=lambda p: p.name
)
def test_runnable_blocks_run(page: Path, tmp_path: Path, shell_environment: dict[str, str]) -> None:
    """All blocks of a page, in order, in one shell that stops at the first failure."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(blocks)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=shell_environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
