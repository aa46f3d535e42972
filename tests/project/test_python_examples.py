"""What type checkers see of svc is what it offers, and the examples of the documentation use nothing else."""

from __future__ import annotations

import ast
import re

import svc
from tests.pages import ROOT
from tests.project.python_examples import examples


def test_examples_use_what_is_public() -> None:
    """Those of README, of the pages and of the notebook."""
    programs = examples()
    assert {"readme", "docs_howto_notebook", "docs_tutorial_notebook"} <= programs.keys()
    for page, program in programs.items():
        assert set(re.findall(r"\bsvc\.([a-zA-Z]\w*)", program)) - {"svc"} <= set(dir(svc)), page


def test_the_stub_declares_what_svc_offers() -> None:
    """Names that are imported with their first use have no types but those of the stub."""
    stub = ast.parse((ROOT / "svc" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(svc.__all__)
