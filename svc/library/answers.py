"""Rankings as DataFrames: one row per item, with the facts that the API gives about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from svc.library.questions import Answerer
from svc.library.tables import id_series
from svc.model.explain import POPULAR, Because, Disliked, Popular, Reasons
from svc.model.ranking.query import Ranking

if TYPE_CHECKING:
    from numpy.typing import NDArray


def frame_of(answerer: Answerer, pages: Sequence[Ranking]) -> pd.DataFrame:
    """Return the items of the pages, one page after another.

    The columns are:

    - `item_id` and `score`
    - `reason`, a list, if any item is new, moved by a rule, or shown for its popularity, which has no score
    - `because`, `in_spite_of` and `rest`, if explanations were requested
    - the columns of the items
    """
    items = answerer.items
    columns: NDArray[np.int32] = np.concatenate([np.empty(0, np.int32), *(page.items for page in pages)])
    frame = pd.DataFrame(
        {
            "item_id": id_series([answerer.item_id(column) for column in columns.tolist()]),
            "score": np.concatenate([np.empty(0), *map(_scores, pages)]),
        }
    )
    if any(page.popular or page.reasons for page in pages):
        frame["reason"] = pd.Series(list(chain.from_iterable(map(_reasons, pages))), dtype=object)
    if any(page.because for page in pages):
        because = list(chain.from_iterable(page.because or (None,) * len(page.items) for page in pages))
        shown = [None if reasons is None else _because(answerer, reasons) for reasons in because]
        against = [None if reasons is None else _reasons_of(answerer, reasons.in_spite_of) for reasons in because]
        frame["because"] = pd.Series(shown, dtype=object)
        frame["in_spite_of"] = pd.Series(against, dtype=object)
        frame["rest"] = [math.nan if reasons is None else reasons.rest for reasons in because]
    if items is not None and len(items.frame.columns):
        frame = pd.concat([frame, items.of(columns)], axis=1)
    return frame


def reasons_frame(answerer: Answerer, ranking: Ranking) -> pd.DataFrame:
    """Return the reasons for the items of an explained ranking, one per row. The last one of an item is `rest`."""
    name_of = answerer.item_id
    rows = []
    for rank, (item, score, because) in enumerate(
        zip(ranking.items.tolist(), ranking.scores.tolist(), ranking.because, strict=True), start=1
    ):
        rows += [
            (rank, name_of(item), score, name_of(reason) if isinstance(reason, int) else reason, share, share < 0)
            for reason, share in [*because.reasons, *because.in_spite_of, ("rest", because.rest)]
        ]
    frame = pd.DataFrame(rows, columns=["rank", "item_id", "score", "reason", "share", "in_spite_of"])
    return frame.astype({"item_id": "str"})


def _scores(page: Ranking) -> NDArray[np.float64]:
    return np.full(len(page.items), np.nan) if page.popular else page.scores


def _reasons(page: Ranking) -> list[list[str]]:
    own = page.reasons or ((),) * len(page.items)
    return [[*(("popular",) if page.popular else ()), *reasons] for reasons in own]


def _because(answerer: Answerer, because: Because) -> list[dict[str, Any]]:
    if because is POPULAR:
        return [{"reason": "popular"}]
    return _reasons_of(answerer, because.reasons)


def _reasons_of(answerer: Answerer, reasons: Reasons) -> list[dict[str, Any]]:
    items = answerer.items
    return [
        {
            "item_id": answerer.item_id(reason),
            "share": share,
            **({"disliked": True} if isinstance(reason, Disliked) else {}),
            **({} if items is None else items.facts(reason)),
        }
        if isinstance(reason, int)
        else {"reason" if isinstance(reason, Popular) else "feature": str(reason), "share": share}
        for reason, share in reasons
    ]
