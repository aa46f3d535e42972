"""The incumbent, the model that is live before a training, and the change of the data since it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.artifact.store import open_store, read_verified
from svc.errors import ArtifactError, ArtifactReadError, DataChangedTooMuch
from svc.model.load_model import load_model
from svc.model.model import Model
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import MaxChange
from svc.settings import Settings
from svc.training.data.interactions import Interactions

COUNTS = ("n_rows", "n_users", "n_items")


@dataclass(frozen=True, slots=True)
class Incumbent:
    """A live artifact. Its `header` and `payload` have been verified, `sha256` is that of the file."""

    header: Mapping[str, Any]
    sha256: str
    payload: memoryview

    def model(self, settings: Settings) -> Model:
        """Return the model as a server would load it. Raise ArtifactError if it cannot be loaded."""
        name = str(self.header.get("recipe_name"))
        return load_model(self.header, self.payload, name=name, allow_skew=settings.allow_version_skew)

    @property
    def data_stats(self) -> Mapping[str, Any]:
        stats = self.header.get("data_stats")
        return stats if isinstance(stats, Mapping) else {}


def read_incumbent(loaded: LoadedRecipe, keys: SigningKeys, settings: Settings) -> Incumbent | None:
    """Return the live model of the recipe, or None after an event with the reason if none can be verified.

    Raise ArtifactReadError if the store has a live version but cannot read it. A training then stops, rather than
    replace a model without a comparison.
    """
    store = open_store(loaded.output_uri, settings)
    try:
        store.marker()
        blob, parsed = read_verified(loaded.output_uri, keys, settings)
        return Incumbent(parsed.header, blob.sha256, parsed.payload)
    except FileNotFoundError:
        reason = "there is no earlier model"
    except ArtifactReadError as error:
        target = store.live()
        if target is None or store.has_version(target):
            raise
        reason = error.message
    except ArtifactError as error:
        reason = error.message
    logs.emit(events.INCUMBENT_NOT_COMPARABLE, recipe=loaded.recipe.name, reason=reason)
    return None


def counts(interactions: Interactions) -> dict[str, int]:
    """Return the numbers of rows, users and items of the cleansed data, under the names of `data_stats`."""
    values = (len(interactions), len(interactions.user_ids), len(interactions.item_ids))
    return dict(zip(COUNTS, values, strict=True))


def check_data_change(before: Mapping[str, Any], interactions: Interactions, bounds: MaxChange) -> None:
    """Raise DataChangedTooMuch if a count rose or fell by more than its bound since `before`."""
    after = counts(interactions)
    moved = []
    for name in COUNTS:
        bound, old = getattr(bounds, name), before.get(name)
        if bound is None or not isinstance(old, int) or old < 1:
            continue
        change = after[name] / old - 1.0
        if abs(change) > bound:
            moved.append(f"{name} from {old:,} to {after[name]:,} ({change:+.0%}; max_change allows {bound:.0%})")
    if moved:
        raise DataChangedTooMuch(
            f"since the last training the data changed: {', '.join(moved)}. Look at the source; a change that is "
            "meant: train once with --accept-data-change, or raise cleansing.max_change",
            fields={"before": {name: before.get(name) for name in COUNTS}, "after": after},
        )
