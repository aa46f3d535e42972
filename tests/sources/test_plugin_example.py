"""The example package of docs/, installed and used as a stranger would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "plugin-example"
USE = """
from pathlib import Path
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source, check_spec
loaded = load_recipe(Path("recipe.yaml"), {}, settings=Settings(), check_source=check_spec)
ids = frozenset({"user_id", "item_id"})
context = SourceContext(loaded.base_dir, Settings(), ("user_id", "item_id"), ids, "interactions", {}, None)
source = build_source(loaded.recipe.source, context)
print(source.probe()[0].rpartition(": ")[2])
frame = source.fetch()
print(frame["user_id"].tolist(), frame["item_id"].tolist(), frame["user_id"].dtype.name)
"""
RECIPE = """
name: lines
source: {type: jsonl, path: ratings.jsonl}
schema: {user_column: user_id, item_column: item_id}
output: {path: lines.svc}
"""


@pytest.mark.integration
def test_an_installed_package_brings_a_source(tmp_path: Path) -> None:
    """Its type is known to recipes, its options are checked, its rows arrive."""
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(EXAMPLE)]
    subprocess.run(install, check=True, timeout=150)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "ratings.jsonl").write_text('{"user_id": 1, "item_id": "a"}\n{"user_id": 2, "item_id": "b"}\n')
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    run = [sys.executable, "-c", USE]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["readable, has the fields user_id, item_id", "['1', '2'] ['a', 'b'] category"]


def test_without_the_package_the_type_is_refused(tmp_path: Path) -> None:
    """The message lists what is installed."""
    from svc.errors import RecipeError
    from svc.recipe.load import load_recipe
    from svc.settings import Settings
    from svc.sources.base import check_spec

    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(RecipeError, match=r"source\.type: 'jsonl' is no installed source; .*csv, parquet"):
        load_recipe(tmp_path / "recipe.yaml", {}, settings=Settings(), check_source=check_spec)
