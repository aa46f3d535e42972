"""Items that a user rated low are not recommended to this user, by exports or in Python, even after a refit."""

from __future__ import annotations

import pandas as pd
import pytest

import svc
from tests.e2e.conftest import SIGNING_KEYS, Shop

pytestmark = pytest.mark.system
LOW = frozenset(f"i{4 * place}" for place in range(10))
"""The items that `u0` rates low. Without the rule they would fill its page."""
BLOCKS = "cleansing: {where: {stars: {gte: 4}}, hide: {stars: {lt: 4}}}\n"
REPEATS = "\n  repeats: true\n  n_trials"
PLAIN = "\n  n_trials"


def rate(shop: Shop) -> None:
    """Give every sale four stars, and `u0` ten low ratings and a high one of another group."""
    sales = pd.read_csv(shop.folder / "sales.csv").assign(stars=4)
    own = [{"user_id": "u0", "item_id": item, "ts": 1_600_000_000, "stars": 1} for item in sorted(LOW)]
    like = [{"user_id": "u0", "item_id": "i1", "ts": 1_600_000_001, "stars": 5}]
    table = pd.concat([sales[sales["user_id"] != "u0"], pd.DataFrame(own + like)])
    table.to_csv(shop.folder / "sales.csv", index=False)


@pytest.mark.parametrize("repeats", [False, True])
def test_hidden_items_are_shown_only_with_include_seen(repeats: bool, shop: Shop) -> None:
    """The items stay hidden with `repeats: true` and after a refit."""
    rate(shop)
    shop.recipe.write_text(shop.recipe.read_text() + BLOCKS)
    if repeats:
        shop.edit(PLAIN, REPEATS)
    for arguments in ((), ("--refit",)):
        trained = shop.train(*arguments)
        assert trained.code == 0, trained.err
        assert trained.record("data_cleansed")["hidden_by_rule"] == len(LOW)
        model = svc.load(shop.artifact, keys=SIGNING_KEYS)
        shown = set(model.recommend("u0", limit=40)["item_id"])
        assert len(shown) == 30 - (not repeats)
        assert not LOW & shown
        assert set(model.recommend("u0", limit=40, include_seen=True)["item_id"]) >= LOW
    written = shop.folder / "all.csv"
    exported = shop.svc("recommend", str(shop.artifact), "--output", str(written), "--limit", "40")
    assert exported.code == 0, exported.err
    rows = pd.read_csv(written)
    assert set(rows.loc[rows["user_id"] == "u0", "item_id"]) == shown
