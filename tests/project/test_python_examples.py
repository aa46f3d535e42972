"""Type checkers see exactly the public names of svc, and the documentation's examples use only these."""

from __future__ import annotations

import ast
import re

import svc
from tests.pages import ROOT
from tests.project.python_examples import examples


def test_examples_use_what_is_public() -> None:
    """The examples are those of README, pages and notebook."""
    programs = examples()
    assert {"readme", "docs_howto_notebook", "docs_tutorial_notebook"} <= programs.keys()
    for page, program in programs.items():
        assert set(re.findall(r"\bsvc\.([a-zA-Z]\w*)", program)) - {"svc"} <= set(dir(svc)), page


def test_the_stub_declares_what_svc_offers() -> None:
    """svc imports its names on first use, so their types come from the stub only."""
    stub = ast.parse((ROOT / "svc" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(svc.__all__)
