"""Weigh the history of a request by its events, and tell which of its items the answer leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from svc.asking.fields import invalid
from svc.model.history import History
from svc.model.ranking.query import EventKind, EventOfItem, Interaction, Query


def by_event(
    history: Sequence[Interaction | EventOfItem], kinds: Sequence[EventKind]
) -> tuple[Sequence[Interaction], Sequence[str]]:
    """Return the history with weights by event, and the ids of the items that the answer leaves out.

    An element without an event keeps its weight, and its item is left out. `kinds` are the events of the model. Raises
    ValidationFailed for any other event.
    """
    # Without events the validated list itself is returned, so plain histories cost no copy.
    if not any(isinstance(element, EventOfItem) for element in history):
        return cast(Sequence[Interaction], history), [element.item_id for element in history]
    events, weighed, seen = {kind.event: kind for kind in kinds}, [], []
    for position, element in enumerate(history):
        kind = events.get(element.event) if isinstance(element, EventOfItem) else None
        if isinstance(element, EventOfItem) and kind is None:
            listed = f"the model has {', '.join(events)}" if events else "the model was trained without events"
            raise invalid(["history", position, "event"], f"unknown event; {listed}", "unknown_event")
        weighed.append(Interaction(element.item_id, element.weight * (1.0 if kind is None else kind.weight)))
        if kind is None or kind.seen:
            seen.append(element.item_id)
    return weighed, seen


def not_seen(query: Query, history: History, user: int, seen: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the columns of the query's seeds that may be recommended. `seen` are those that the request leaves out.

    If the seeds include the training history of a user, in row `user`, so do those that are left out.
    """
    if query.of_trained_user:
        seen = np.concatenate([seen, history.seen_items(user)])
    return np.setdiff1d(query.seeds, seen)
