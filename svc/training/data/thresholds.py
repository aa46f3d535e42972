"""The least data that a training needs: `cleansing.min_*`, and the minimum of any model."""

from __future__ import annotations

from typing import Protocol

from svc.errors import MinDataViolation
from svc.training.data.interactions import Interactions

_MODEL_NEEDS = {"rows": 1, "users": 1, "items": 2}


class _Cleansing(Protocol):
    @property
    def min_rows(self) -> int | None: ...
    @property
    def min_users(self) -> int | None: ...
    @property
    def min_items(self) -> int | None: ...


def check_thresholds(interactions: Interactions, cleansing: _Cleansing) -> None:
    """Raise MinDataViolation below `cleansing.min_*`.

    One row, one user and two items are required in any case.
    """
    counts = {
        "n_rows": len(interactions),
        "n_users": len(interactions.user_ids),
        "n_items": len(interactions.item_ids),
    }
    least = {
        f"min_{counted}": minimum if (minimum := getattr(cleansing, f"min_{counted}")) is not None else model_needs
        for counted, model_needs in _MODEL_NEEDS.items()
    }
    short = [
        f"{counts[f'n_{counted}']} {counted} where {_at_least(counted, least[f'min_{counted}'], model_needs)}"
        for counted, model_needs in _MODEL_NEEDS.items()
        if counts[f"n_{counted}"] < max(least[f"min_{counted}"], model_needs)
    ]
    if short:
        raise MinDataViolation(
            f"the cleaned data has {', '.join(short)}. {_what_to_do(interactions)}", fields={**counts, **least}
        )


def _at_least(counted: str, minimum: int, model_needs: int) -> str:
    if minimum >= model_needs:
        return f"at least {minimum} are needed"
    return f"cleansing.min_{counted} asks for {minimum}, but a model needs at least {model_needs}"


def _what_to_do(interactions: Interactions) -> str:
    """Return the advice for too little data.

    If most rows were dropped, the advice is to fix them. Else it is to get more data or lower the minimum.
    """
    lost = [
        f"{count} dropped {'by cleansing.where' if reason == 'where' else f'as {reason}'}"
        for reason, count in interactions.dropped.items()
    ]
    cause = f"Of {len(interactions) + interactions.drop_count} rows {', '.join(lost)}. " if lost else ""
    cause += "".join(f"{reason[0].upper()}{reason[1:]}. " for reason in interactions.reasons.values())
    if not len(interactions) and interactions.dropped_by_where:
        return f"{cause}Correct cleansing.where, which keeps no row that a model can be trained on."
    if interactions.n_unusable > len(interactions):
        return f"{cause}Mend these rows, or the columns and the unit that the recipe names."
    return (
        f"{cause}Provide more data, or lower cleansing.min_rows, min_users or min_items "
        "(a model needs at least one user and two items)."
    )
