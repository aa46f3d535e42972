"""`svc.load`: verify an artifact as a server does, by the keys that a caller gives, and make a recommender of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from svc import logs
from svc.artifact.keys import SigningKeys, load_signing_keys, parse_signing_keys
from svc.artifact.store import require_file
from svc.env_file import environment, keys_hint
from svc.errors import ConfigError
from svc.export.run import OpenedArtifact, open_artifact
from svc.key_files import key_list
from svc.library.items import ids_with, item_table, new_items_of
from svc.library.recommender import Recommender
from svc.recipe.serving_schema import NEW_ITEMS_SHARE
from svc.settings import Settings

Keys = str | Mapping[str, str] | None
"""`kid:hex64` entries separated by commas, as in SVC_SIGNING_KEYS, or hex64 by kid. None: SVC_SIGNING_KEYS itself."""


def keys_text(keys: Keys, settings: Settings, artifact: str | None = None) -> str:
    """Return the keys in the form of SVC_SIGNING_KEYS.

    Raises ConfigError if there are none or they are malformed, and ArtifactReadError if there are none and the local
    file `artifact` does not exist.
    """
    if keys is None:
        text = key_list(settings.signing_keys, settings.signing_keys_file, "SVC_SIGNING_KEYS")
    elif isinstance(keys, str):
        text = keys
    else:
        text = ",".join(f"{kid}:{key}" for kid, key in keys.items())
    if not text.strip():
        if artifact is not None:
            require_file(artifact)
        raise ConfigError(
            "no signing keys: give `keys`, or set SVC_SIGNING_KEYS to those that the artifact is signed with"
            f"{'' if artifact is None else keys_hint(artifact)}"
        )
    if keys is not None:
        parse_signing_keys(text, "keys")
    return text


def signing_keys(keys: Keys, settings: Settings, artifact: str | None = None) -> SigningKeys:
    """Return the parsed `keys`. If `keys` is None, return those of SVC_SIGNING_KEYS and SVC_VERIFY_KEYS.

    Raises ConfigError, whose message contains no key.
    """
    if keys is None and settings.verify_keys:
        return load_signing_keys(settings)
    return parse_signing_keys(keys_text(keys, settings, artifact))


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
