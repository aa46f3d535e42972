"""The Python examples of the documentation, for type checkers: one module for each page that imports svc.

python -m tests.project.python_examples FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.pages import ROOT, blocks

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def cells(kind: str) -> list[str]:
    """Return the source of the notebook's cells of this kind, `code` or `markdown`."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def examples() -> dict[str, str]:
    """Return the program of each page by the name of its module.

    A program has all Python blocks of the page, in order.
    """
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    programs = {
        "_".join(page.relative_to(ROOT).with_suffix("").parts): "\n".join(
            block.text for block in blocks(page) if block.language == "python"
        )
        for page in pages
    }
    programs["docs_tutorial_notebook"] = "\n".join(cells("code"))
    return {name.lower(): program for name, program in programs.items() if "import svc" in program}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in examples().items():
        (folder / f"{name}.py").write_text(program, encoding="utf-8")
