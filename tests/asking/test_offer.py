"""An offer permits the items of its filter and its list."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from svc.asking.offer import Offer
from svc.model.ranking.item_sets import ItemSet


def items(*columns: int) -> ItemSet:
    return ItemSet.of_columns(np.array(columns, np.int32), 4)


def test_an_answer_may_contain_the_items_that_all_restrictions_permit() -> None:
    """Without any restriction, all items are permitted."""
    nothing = cast(Any, None)
    assert Offer(model=nothing).allowed_items() is None
    offer = Offer(model=nothing, available=items(0, 1, 2), always=items(1, 2, 3))
    permitted = [offer.allowed_items(own) for own in (None, items(0, 2))]
    assert [some.columns().tolist() for some in permitted if some is not None] == [[1, 2], [2]]
