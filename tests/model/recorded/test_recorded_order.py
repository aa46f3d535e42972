"""A recorded model of an earlier version, which gives the same bytes for ever. Its ties stay in training order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from svc.model import codec
from svc.model.model import Model
from tests import planned

RECORDED = Path(__file__).parent


def test_items_of_equal_score_keep_training_order_in_older_models() -> None:
    """Items and bits agree alone and in a batch, although more than half of the items score 0."""
    model = cast(Model, codec.decode(memoryview((RECORDED / "in_training_order.payload").read_bytes())))
    model.ready()
    recorded = json.loads((RECORDED / "in_training_order.json").read_text())
    queries = [
        planned.recommend(model, user_id=user, user_features=None, limit=model.n_items).query for user in recorded
    ]
    alone = [model.rank([query])[0] for query in queries]
    for rankings in (alone, model.rank(queries)):
        for ranking, answer in zip(rankings, recorded.values(), strict=True):
            items = [model.item_ids.at(column) for column in ranking.items.tolist()]
            assert [[item, score.hex()] for item, score in zip(items, ranking.scores.tolist(), strict=True)] == answer
    assert any(score == (0.0).hex() for answer in recorded.values() for _, score in answer[:-10])
