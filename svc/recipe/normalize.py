"""Normalization of a recipe: shorthand keys move into their blocks, and `encoding` becomes `kind`."""

from __future__ import annotations

from typing import Any

from svc.errors import RecipeError

SHORTHAND = {"algorithms": "training", "metric": "training", "split": "training", "versioning": "output"}


def normalize(tree: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a normalized copy of `tree`, and the shorthand keys that `tree` had."""
    result = dict(tree)
    used = frozenset(SHORTHAND) & tree.keys()
    for key in sorted(used):
        block = SHORTHAND[key]
        inner = result.get(block)
        if inner is not None and not isinstance(inner, dict):
            continue
        if key in (inner or {}):
            raise RecipeError(f"{key}: given both at the top level and under `{block}`; keep one")
        result[block] = {**(inner or {}), key: result.pop(key)}
    if isinstance(features := result.get("features"), dict):
        result["features"] = {side: _side(f"features.{side}", block) for side, block in features.items()}
    return result, used


def merge_trees(tree: Any, overrides: Any) -> Any:
    """Return a copy of `tree` with the values of `overrides`. Mappings are merged key by key."""
    if not isinstance(tree, dict) or not isinstance(overrides, dict):
        return overrides
    return {**tree, **{key: merge_trees(tree.get(key), value) for key, value in overrides.items()}}


def _side(where: str, block: Any) -> Any:
    if not isinstance(block, dict) or not isinstance(block.get("columns"), list):
        return block
    columns = [_column(f"{where}.columns[{index}]", column) for index, column in enumerate(block["columns"])]
    return {**block, "columns": columns}


def _column(where: str, column: Any) -> Any:
    if not isinstance(column, dict) or "encoding" not in column:
        return column
    if "kind" in column:
        raise RecipeError(f"{where}: gives both `kind` and `encoding`, which mean the same; keep one")
    return {"kind" if key == "encoding" else key: value for key, value in column.items()}
