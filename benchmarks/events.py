"""What are `cleansing.seen` and `training.target` worth in a shop with views, carts and purchases? What do they cost?

    python -m benchmarks events

A made log (seeded): users browse the items of a few tastes. Of the views, some lead to a cart, and of these some to a
purchase, at once or days later. Of two in five purchases, view and cart are missing. The last purchase of each user is
cut off with all later rows, and is the one to find.

Recipes are trained on the rest, and asked in Python for ten items of each of at most 5,000 of these users.

- `before`: the recipe of the documentation before, in which all events hide their items and are judged
- `seen`: with `seen: [purchase]`
- `both`: with `target: [purchase]` too

A purchase is `met` if its user had viewed the item or put it into the cart before. Times are those of one training, and
of one request of a known user in this process, for `both`, and for a table with the same rows of one event.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import svc
from benchmarks.common import origin
from svc.training.judging.intervals import interval

N_USERS, N_ITEMS, N_TASTES, LIMIT, MOST_USERS = 6_000, 1_000, 40, 10, 5_000
ALGORITHMS = ["CosineKNN", "RP3beta", "DenseSLIM"]
KEYS = "bench:" + "5a" * 32
WEIGHTS = {"view": 1, "cart": 3, "purchase": 10}
SEEN, TARGET = {"seen": ["purchase"]}, {"target": ["purchase"]}


def shop(seed: int = 7) -> pd.DataFrame:
    """Return the log, in the order of time."""
    rng = np.random.default_rng(seed)
    taste_of = rng.integers(N_TASTES, size=N_ITEMS)
    popular = rng.pareto(1.2, N_ITEMS) + 0.05
    by_taste = [np.flatnonzero(taste_of == taste) for taste in range(N_TASTES)]
    chances = [popular[items] / popular[items].sum() for items in by_taste]
    rows: list[tuple[int, int, float, str]] = []
    for user in range(N_USERS):
        own, at = rng.integers(N_TASTES, size=3), rng.uniform(0, 60)
        for _ in range(int(rng.integers(2, 7))):
            at += rng.exponential(6.0)
            taste = int(rng.choice(own))
            for step in range(int(rng.geometric(0.18))):
                item, began = int(rng.choice(by_taste[taste], p=chances[taste])), at + step / 500
                is_carted = rng.random() < 0.2
                is_bought = is_carted and rng.random() < 0.45
                if not (is_bought and rng.random() < 0.4):  # else the visit was on another device
                    rows.append((user, item, began, "view"))
                    rows += [(user, item, began + 0.0005, "cart")] if is_carted else []
                if is_bought:
                    later = 0.3 + rng.exponential(3.0) if rng.random() < 0.3 else 0.1
                    rows.append((user, item, began + later, "purchase"))
                elif is_carted and rng.random() < 0.4:
                    rows.append((user, item, began + 0.2 + rng.exponential(2.0), "view"))
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "day", "event"])
    frame["ts"] = 1_700_000_000 + (frame.pop("day") * 86_400).astype(int)
    return frame.sort_values("ts", kind="stable", ignore_index=True)


def cut(log: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows before the last purchase of each user, and these purchases."""
    last = log[log["event"] == "purchase"].drop_duplicates("user_id", keep="last")
    at = log["user_id"].map(pd.Series(last.index, index=last["user_id"]))
    return log[at.isna() | (log.index < at)], last


def trained(
    folder: Path, rows: pd.DataFrame, cleansing: dict[str, Any], **training: Any
) -> tuple[svc.Recommender, Any]:
    rows.to_csv(folder / "log.csv", index=False)
    schema = {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"}
    split = {"scheme": "leave_one_out"}
    recipe = {
        "name": "shop",
        "source": {"type": "csv", "path": str(folder / "log.csv")},
        "schema": {**schema, "event_column": "event"},
        "cleansing": cleansing,
        "training": {"cutoff": LIMIT, "n_trials": 8, "seed": 1, "split": split, "algorithms": ALGORITHMS, **training},
        "output": {"path": str(folder / "shop.svc")},
    }
    (folder / "shop.yaml").write_text(json.dumps(recipe))
    result = svc.train(folder / "shop.yaml", keys=KEYS, progress=False)
    return svc.load(result.artifact, keys=KEYS), result


def judged(model: svc.Recommender, rows: pd.DataFrame, last: pd.DataFrame) -> list[dict[str, Any]]:
    """Return HR and ndcg at LIMIT with intervals, for all users, and by whether the item was met before."""
    had = set(zip(rows["user_id"].astype(str), rows["item_id"].astype(str), strict=True))
    bought = set(
        zip(*(rows.loc[rows["event"] == "purchase", key].astype(str) for key in ("user_id", "item_id")), strict=True)
    )
    pairs = list(zip(last["user_id"].astype(str), last["item_id"].astype(str), strict=True))
    there = set(model.users())
    pairs = [pair for pair in pairs if pair[0] in there and pair not in bought][:MOST_USERS]
    pages = model.recommend_many([user for user, _ in pairs], limit=LIMIT).groupby("user_id")["item_id"].agg(list)
    places = [pages[user].index(item) if item in pages[user] else None for user, item in pairs]
    hit = np.array([place is not None for place in places], dtype=np.float64)
    gain = np.array([0.0 if place is None else 1 / np.log2(2 + place) for place in places])
    met = np.array([pair in had for pair in pairs])
    figures = []
    for name, which in (("all", np.ones(len(met), bool)), ("met", met), ("new", ~met)):
        spans = [[round(float(end), 4) for end in interval(values[which], seed=1)] for values in (hit, gain)]
        means = [round(float(values[which].mean()), 4) for values in (hit, gain)]
        figures.append({"part": name, "n": int(which.sum()), "hr": means[0], "hr_interval": spans[0]})
        figures[-1] |= {"ndcg": means[1], "ndcg_interval": spans[1]}
    return figures


def request_us(model: svc.Recommender, n: int = 2_000) -> float:
    """Return the median microseconds of a ranking for a known user."""
    from svc.training.judging.rankers import rank_ms

    return round(1000 * float(np.median([rank_ms(model.model) for _ in range(n // 32)])), 1)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    log = shop(arguments.seed)
    rows, last = cut(log)
    found: dict[str, Any] = {"events": log["event"].value_counts().to_dict(), "n_cut": len(last)}
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "before": ({"event_weights": WEIGHTS, "dedup": "keep_last"}, {}),
        "before, max": ({"event_weights": WEIGHTS}, {}),
        "seen": ({"event_weights": WEIGHTS, **SEEN}, {}),
        "both": ({"event_weights": WEIGHTS, **SEEN}, TARGET),
        "one event": ({"event_weights": {"view": 1}}, {}),
    }
    for name, (cleansing, training) in cases.items():
        table = rows.assign(event="view") if name == "one event" else rows
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            model, result = trained(Path(folder), table, cleansing, **training)
            own = {"train_s": round(time.monotonic() - began, 1), "request_us": request_us(model)}
            own |= {"best_class": result.best_class, "own_score": round(result.header["best_score"], 4)}
            found[name] = own | {"figures": judged(model, rows, last)}
            print(name, json.dumps(found[name]), flush=True)
    return found


def main(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    print("\n".join(origin()))
    print(json.dumps(run(arguments), indent=1))
