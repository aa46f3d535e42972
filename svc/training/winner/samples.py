"""What some users are recommended by the final model, beside what they chose: the samples of the report.

Scores say how good a model is, not whether its lists look right: a person who knows the items sees that at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from svc.errors import DataSourceError
from svc.model.model import Model
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source

N_USERS = 10
N_ITEMS = 3


def sample_recommendations(
    loaded: LoadedRecipe, model: Model, settings: Settings, variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """For ten users, drawn with the seed of the recipe: `user`, `chosen` and `recommended`, at most three titles each.

    A title is the first field of the item metadata; an item without one is named by its id.
    """
    model.ready()
    counts = np.diff(model.history.offsets)
    rng = np.random.default_rng([loaded.recipe.training.seed, 31])
    active = np.flatnonzero(counts)
    users = sorted(rng.choice(active, size=min(N_USERS, len(active)), replace=False).tolist())
    rankings = model.rank([model.known_user(user, limit=N_ITEMS) for user in users])
    rows = [
        (user, model.history.items(user)[:N_ITEMS].tolist(), ranking.items.tolist())
        for user, ranking in zip(users, rankings, strict=True)
    ]
    ids = {column: model.item_ids.at(column) for _, chosen, recommended in rows for column in (*chosen, *recommended)}
    titles = _titles(loaded, set(ids.values()), settings, variables)
    names = {column: titles.get(item_id, item_id) for column, item_id in ids.items()}
    return [
        {
            "user": model.user_ids.at(user),
            "chosen": [names[column] for column in chosen],
            "recommended": [names[column] for column in recommended],
        }
        for user, chosen, recommended in rows
    ]


def _titles(loaded: LoadedRecipe, ids: set[str], settings: Settings, variables: Mapping[str, str]) -> dict[str, str]:
    """The titles of `ids`; none where the recipe names no metadata, or its table cannot be read now."""
    declared = loaded.recipe.item_metadata
    fields = [] if declared is None else [name for name in declared.fields if name not in settings.metadata_field_deny]
    if declared is None or not fields:
        return {}
    columns = (declared.id_column, fields[0])
    context = SourceContext.for_served_table(loaded.base_dir, settings, variables, declared.id_column, columns)
    try:
        frame = build_source(declared.source, context).fetch()
    except DataSourceError:  # a report is no reason for a training to fail
        return {}
    titled = frame[frame[declared.id_column].isin(ids)].dropna()
    return dict(zip(titled[declared.id_column].astype(str), titled[fields[0]].astype(str), strict=True))
