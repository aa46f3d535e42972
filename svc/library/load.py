"""`svc.load`: verify an artifact as a server does, and make a recommender of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from svc import logs
from svc.env_file import environment
from svc.export.run import OpenedArtifact, open_artifact
from svc.library.items import item_table
from svc.library.keys import Keys, signing_keys
from svc.library.new_items import ids_with, new_items_of
from svc.library.recommender import Recommender
from svc.recipe.serving_schema import NEW_ITEMS_SHARE
from svc.settings import Settings


def load(
    artifact: str | Path,
    keys: Keys = None,
    *,
    items: Any = None,
    new_items: Any = None,
    new_items_share: float | None = NEW_ITEMS_SHARE,
    new_items_min_share: float = 0.0,
) -> Recommender:
    """Read an artifact, verify its signature as a server does, and return a recommender.

    Args:
        artifact: Path or URI (`s3://`, `gs://`, `az://`, `https://`) of an artifact, or of the pointer to one.
        keys: Keys that may have signed it: text as in `SVC_SIGNING_KEYS`, the default, or a mapping from kid to 64
            hex characters.
        items: A DataFrame with one row per item, to filter by and to join to answers. Ids stand in the item column of
            the training, or in `item_id`. Cells of labels are lists, or text with `|` between labels.
        new_items: A DataFrame with ids and the columns of `features.item`, for `recommend`.
        new_items_share: The largest share of new items among the first n places, for every n, 0 to 1. None: no bound.
        new_items_min_share: The smallest such share, as long as new items are left.

    Raises:
        svc.errors.UsageError: An argument is invalid.
        svc.errors.FeaturesNotSupported: There are new items, and the model was trained without features of items.
        svc.errors.ConfigError: There are no keys, or they cannot be parsed.
        svc.errors.ArtifactError: The artifact cannot be read, trusted or used.
    """
    settings = Settings.from_env(environment(Path()))
    logs.configure_for_library()
    opened = open_artifact(str(artifact), signing_keys(keys, settings, str(artifact)), settings)
    new = new_items_of(new_items, opened, new_items_share, new_items_min_share)
    ids = ids_with(opened.model.item_ids, new)
    return Recommender(opened, None if items is None else item_table(items, ids, id_column_of(opened)), new=new)


def id_column_of(opened: OpenedArtifact) -> str:
    """Return the column of item ids that the training named."""
    recipe = opened.header.get("recipe") or {}
    return str((recipe.get("schema") or {}).get("item_column", "item_id"))
