"""The notebook of the documentation runs from its first cell to its last."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.project.python_examples import NOTEBOOK, cells


def test_the_notebook_is_stored_without_results() -> None:
    """Diffs of the notebook show only its source."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in found if cell.get("outputs") or cell.get("execution_count")] == []


def test_links_of_the_notebook_lead_to_files() -> None:
    """Links are relative to the documentation."""
    targets = [target for text in cells("markdown") for target in re.findall(r"\]\((?!https?://)([^)#]+)", text)]
    assert targets
    assert [target for target in targets if not (NOTEBOOK.parent / target).exists()] == []


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_a_real_kernel_runs_it_and_shows_progress(tmp_path: Path) -> None:
    """In Jupyter's own kernel, no cell fails, frames are tables, and the training shows one bar."""
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=where, coalesce_streams=True).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    shown = [output["data"].get("text/plain", "") for output in outputs if "data" in output]
    assert any("svc.TrainResult: trained " in text for text in shown)
    progress, mistake = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert re.fullmatch(r"█+ writing the artifact \[\d\d:\d\d, 4/4 trials, best [\d.]+ \(\w+\)\]\n", progress)
    assert mistake.startswith("UNKNOWN_USER")
    assert sum("<table" in output.get("data", {}).get("text/html", "") for output in outputs) >= 6
