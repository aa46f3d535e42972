"""The lists of ten users that the report shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.winner.samples import sample_recommendations
from tests.serving.client import N_ITEMS, model


@pytest.mark.parametrize("state", ["there", "gone", "denied"])
def test_ten_users_with_what_they_chose_and_are_recommended(
    make_recipe: Callable[..., LoadedRecipe], tmp_path: Path, state: str
) -> None:
    """By title where the table can be read, else by id; nobody is recommended what they chose."""
    rows = [f"i{item},Story {item}" for item in range(N_ITEMS)]
    (tmp_path / "titles.csv").write_text("\n".join(["item_id,title", *rows]), encoding="utf-8")
    metadata: dict[str, Any] = {
        "source": {"type": "csv", "path": "titles.csv"},
        "id_column": "item_id",
        "fields": ["title"],
    }
    loaded = make_recipe(item_metadata=metadata)
    if state == "gone":
        (tmp_path / "titles.csv").unlink()
    settings = Settings(metadata_field_deny=("title",)) if state == "denied" else Settings()
    samples = sample_recommendations(loaded, model(), settings, {})
    assert len({sample["user"] for sample in samples}) == 10
    assert samples == sample_recommendations(loaded, model(), settings, {})
    for sample in samples:
        assert 1 <= len(sample["chosen"]) <= 3 and len(sample["recommended"]) == 3
        assert not set(sample["chosen"]) & set(sample["recommended"])
        named = "Story " if state == "there" else "i"
        assert all(name.startswith(named) for name in (*sample["chosen"], *sample["recommended"]))
