"""Only items of the events in `cleansing.seen` are left out: in HTTP answers, workers, exports, Python and a refit."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest

import svc
from tests.e2e.conftest import SIGNING_KEYS, Shop
from tests.e2e.server import Server

pytestmark = pytest.mark.system
BLOCKS = """
cleansing: {event_weights: {view: 1, cart: 3, buy: 10, no: exclude}, seen: [buy]}
serving: {users: true}
"""
N_ITEMS = 40


def sell(shop: Shop) -> pd.DataFrame:
    """Give each sale an event, and each user a rejected item. Return the rows."""
    sales = pd.read_csv(shop.folder / "sales.csv")
    rng = np.random.default_rng(3)
    sales = sales.assign(event=rng.choice(["view", "cart", "buy"], len(sales)))
    again = sales.sample(frac=0.4, random_state=1).assign(event="view")
    rejected = sales.drop_duplicates("user_id").assign(event="no", item_id="i39")
    table = pd.concat([sales, again.assign(ts=again["ts"] + 1), rejected])
    table.to_csv(shop.folder / "sales.csv", index=False)
    return table


def test_only_items_of_seen_events_are_left_out(shop: Shop) -> None:
    """A request names events too. A later view does not bring back a purchase."""
    table = sell(shop)
    left_out, met = defaultdict(set), defaultdict(set)
    for row in table.itertuples():
        met[row.user_id].add(row.item_id)
        if row.event in {"buy", "no"}:
            left_out[row.user_id].add(row.item_id)
    text = shop.recipe.read_text().replace("time_unit: s", "time_unit: s, event_column: event")
    text = text.replace("cutoff: 5", "cutoff: 5\n  target: [buy]")
    shop.recipe.write_text(text.replace(", TopPop]", "]") + BLOCKS)
    for arguments in ((), ("--refit",)):
        trained = shop.train(*arguments)
        assert trained.code == 0, trained.err
    head = json.loads(shop.svc("inspect", str(shop.artifact), "--json").out)
    assert [(kind["event"], kind["weight"], kind["seen"], kind["target"]) for kind in head["events"]] == [
        ("view", 1.0, False, False),
        ("cart", 3.0, False, False),
        ("buy", 10.0, True, True),
    ]
    assert "events: view (1), cart (3), buy (10, seen, target)" in shop.svc("inspect", str(shop.artifact)).out
    parts = {(row["group"], row["part"]) for row in head["evaluation"]["breakdown"]}
    assert {("met_before", "yes"), ("met_before", "no")} <= parts
    model = svc.load(shop.artifact, keys=SIGNING_KEYS)
    items, users = set(model.items()), sorted(met)
    pages = model.recommend_many(users, limit=N_ITEMS).groupby("user_id")["item_id"].agg(set)
    assert pages.to_dict() == {user: items - left_out[user] for user in users}
    written = shop.folder / "all.csv"
    assert shop.svc("recommend", str(shop.artifact), "--output", str(written), "--limit", "40").code == 0
    assert pd.read_csv(written).groupby("user_id")["item_id"].agg(set).to_dict() == pages.to_dict()
    env = {"SVC_SIGNING_KEYS": SIGNING_KEYS, "SVC_WORKERS": "2"}
    with Server(shop.folder, env=env) as server:
        described = server.get("/v1/recipes/shop").json()
        assert [kind["event"] for kind in described["events"]] == ["view", "cart", "buy"]

        def asked(verb: str = "recommend", **fields: object) -> set[str]:
            answer = server.client.post(f"/v1/recipes/shop:{verb}", json={"limit": N_ITEMS, **fields})
            assert answer.status_code == 200, answer.text
            body = answer.json()
            return (
                {entry["user_id"] for entry in body["users"]}
                if verb == "recommend-users"
                else {entry["item_id"] for entry in body["items"]}
            )

        user = users[0]
        other = next(item for item in model.items() if item not in met[user])
        for name in users[:6]:
            assert asked(user_id=name) == items - left_out[name]
        assert asked(user_id=user, include_seen=True) == items - {"i39"}
        viewed = [{"item_id": other, "event": "view"}]
        assert asked(user_id=user, history=viewed) == items - left_out[user]
        assert asked(user_id=user, history=[{"item_id": other, "event": "buy"}]) == items - left_out[user] - {other}
        assert asked(user_id=user, history=[other]) == items - left_out[user] - {other}
        assert asked(history=viewed) == items
        assert asked(history=[*viewed, {"item_id": other, "event": "buy"}]) == items - {other}
        owners = {name for name in users if other in left_out[name]}
        assert asked("recommend-users", item_id=other, limit=1000) == set(users) - owners
        refused = server.client.post(
            "/v1/recipes/shop:recommend", json={"history": [{"item_id": other, "event": "no"}]}
        )
        assert refused.status_code == 422
        assert "view, cart, buy" in refused.json()["detail"]
