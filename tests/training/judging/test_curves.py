"""The figures that only a report shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.judging.test_measurements import header_of
from tests.training.test_run import Make


def test_a_report_has_the_metrics_at_other_cutoffs(make_recipe: Make, tmp_path: Path) -> None:
    """Cutoffs beyond the number of items are left out. Those of the search agree with its score."""
    head = header_of(make_recipe, report=tmp_path / "page.html")
    found = head["evaluation"]["cutoffs"]
    assert list(found) == ["5", "10", "20"]
    assert found["5"]["ndcg"] == pytest.approx(head["best_score"], abs=1e-9)
    assert found["20"]["recall"] >= found["5"]["recall"]
