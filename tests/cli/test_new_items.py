"""New items in `svc validate` and in exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.artifact.keys import parse_signing_keys
from svc.asking.item_lists import new_items_of_recipe
from svc.cli.validate import check_new_items
from svc.errors import DataSourceError
from svc.export.request import ExportRequest
from svc.export.run import export, open_artifact
from svc.model.columns.text_column import TextColumn
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder
from svc.model.ids import IdTable
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from tests import planned
from tests.asking.test_item_lists import WITH_NEW_ITEMS
from tests.e2e.test_new_items import HEAD
from tests.planned import Restriction
from tests.serving.artifacts import SIGNING_KEYS, header, recipe, write_artifact
from tests.serving.client import model

SETTINGS = Settings.from_env({"SVC_SIGNING_KEYS": SIGNING_KEYS})


def recipe_with(folder: Path, listed: str, **more: Any) -> LoadedRecipe:
    """Return a recipe with a list of new items."""
    (folder / "titles.csv").write_text("item_id,title,year\n", encoding="utf-8")
    (folder / "new.csv").write_text(listed, encoding="utf-8")
    return recipe(folder, **{**WITH_NEW_ITEMS, **more})


def test_validate_counts_new_and_known_items(tmp_path: Path) -> None:
    """Items are counted with and without a model. A value that the model cannot use is named with its row."""
    shop = recipe_with(tmp_path, "item_id,tag,age\nx,a,1\ni3,b,2\n")

    def detail() -> tuple[bool, str]:
        (check,) = check_new_items(shop, SETTINGS, {})
        assert check.name == "serving.new_items"
        assert (check.exit_code, check.code) == ((0, "") if check.ok else (3, "data_source_error"))
        return check.ok, check.detail

    assert detail() == (True, f"2 items, not compared with a model: {tmp_path / 'a.svc'} does not exist")
    write_artifact(tmp_path / "a.svc", model(), head=HEAD)
    (without_keys,) = check_new_items(shop, Settings(), {})
    assert "2 items, not compared with a model: SVC_SIGNING_KEYS is not set" in without_keys.detail
    assert detail() == (True, "2 items: 1 are new, and the model knows 1")
    (tmp_path / "new.csv").write_text("item_id,tag,age\nx,Crime,1\ny,a,1\ni3,z,2\n", encoding="utf-8")
    unseen = (
        "of the 2 labels in column 'tag' of the new items it does not know 1, such as 'Crime': these have no effect"
    )
    assert detail() == (True, f"3 items: 2 are new, and the model knows 1; {unseen}")
    (tmp_path / "new.csv").write_text("item_id,tag,age\nx,a,old\n", encoding="utf-8")
    assert detail() == (
        False,
        "the model cannot use the list: data row 1, item 'x': feature 'age': a text is not a number; give one or null",
    )
    with pytest.raises(DataSourceError, match="the model cannot use the list of new items: data row 1, item 'x'"):
        new_items_of_recipe(shop, model(), SETTINGS, {})
    (tmp_path / "new.csv").write_text("item_id,tag,age\nx,a,1\nx,a,1\n", encoding="utf-8")
    assert detail()[0] is False


@pytest.mark.parametrize("min_share", [0.0, 0.2])
def test_an_export_has_the_new_items_that_a_server_would_recommend(tmp_path: Path, min_share: float) -> None:
    """Positions and scores are those of the server's answers, with the recipe's filters and shares."""
    serving = {"new_items": {**WITH_NEW_ITEMS["serving"]["new_items"], "min_share": min_share}}
    shop = recipe_with(tmp_path, "item_id,tag,age\nx,a,80\ni3,b,2\ny,b,12\n", serving=serving)
    write_artifact(tmp_path / "a.svc", model(), head=HEAD)
    opened = open_artifact(str(tmp_path / "a.svc"), parse_signing_keys(SIGNING_KEYS), SETTINGS)
    new = new_items_of_recipe(shop, opened.model, SETTINGS, {})
    assert new is not None
    output = tmp_path / "all.csv"
    export(ExportRequest(str(output), limit=60, new=new), opened, SETTINGS)
    rows = [line.split(",") for line in output.read_text(encoding="utf-8").splitlines()[1:]]
    assert {row[2] for row in rows} >= {"x", "y"}
    restriction = Restriction(new=new)
    asked = planned.recommend(opened.model, user_id="u4", user_features=None, limit=60, restriction=restriction)
    (ranking,) = opened.model.rank([asked.query])
    assert [float(row[3]) for row in rows if row[0] == "u4"] == ranking.scores.tolist()
    assert (ranking.items[4] >= opened.model.n_items) == (min_share == 0.2)


def test_validate_counts_unknown_words(tmp_path: Path) -> None:
    """Each word of the new items counts once."""
    item = {**WITH_NEW_ITEMS["features"]["item"], "columns": [{"name": "title", "kind": "text"}]}
    listed = "item_id,title\nx,The old sea\ny,The old man\ni3,a b c d\n"
    shop = recipe_with(tmp_path, listed, features={"item": item})
    known_words = IdTable.from_ids(["a", "old", "sea"])
    counts = np.array([2, 3, 2], dtype=np.int32)
    title = TextColumn("title", known_words, counts, n_items=9, max_words=8192, analyzer="word")
    described = model()
    described.features = FeatureState(FEATURE_VERSION, described.features.user, SideEncoder((title,)))
    sides = {"user": HEAD["features"]["user"], "item": {"dimension": 4, "columns": ["title"]}}
    write_artifact(tmp_path / "a.svc", described, head=header(features={"version": 1, "active": True, **sides}))
    (check,) = check_new_items(shop, SETTINGS, {})
    unknown = "of the 4 words in column 'title' of the new items it does not know 2"
    expected = f"3 items: 2 are new, and the model knows 1; {unknown}"
    assert (check.ok, check.detail) == (True, expected)
