"""How good is svc on sequences, beside published transformers?"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd

import svc
from benchmarks.common import origin
from svc import logs
from svc.settings import Settings
from svc.training.judging.intervals import mean_interval

CUTOFF = 10


def read(path: Path, user: str, item: str, order: str) -> pd.DataFrame:
    """Rows of user, item and place, in order. A .txt has a user and then the items of this user in each line."""
    if path.suffix == ".txt":
        lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        rows = [(words[0], chosen, place) for words in lines for place, chosen in enumerate(words[1:])]
        return pd.DataFrame(rows, columns=["user", "item", "place"])
    table = pd.read_csv(path, dtype={user: str, item: str}).sort_values(order, kind="stable")
    table = table.drop_duplicates([user, item], keep="last")
    return pd.DataFrame({"user": table[user], "item": table[item], "place": table.groupby(user).cumcount()})


def main(parser: argparse.ArgumentParser) -> None:
    """How good is svc on sequences, beside published transformers?

        python -m benchmarks sequences Beauty.txt [--algorithms Transitions] [--trials 8]
        python -m benchmarks.sequences ratings.csv --user user_id --item item_id --time ts

    Leave one out, as in papers on sequences: the last item of each user is the test item, and the item before it is
    known when the user is ranked, but not trained on. All items are ranked but those that the user had. The search
    judges by the item before that one. Prints recall@10 and ndcg@10 with their 95% intervals over the users.
    """
    parser.add_argument("file", type=Path)
    parser.add_argument("--user", default="user_id", help="column of user ids")
    parser.add_argument("--item", default="item_id", help="column of item ids")
    parser.add_argument("--time", default="ts", help="column of times")
    parser.add_argument("--algorithms", nargs="+", default=["Transitions"])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    logs.configure(Settings(log_format="json", log_level="error"))
    print("\n".join(origin()), flush=True)
    rows = read(options.file, options.user, options.item, options.time)
    left = rows.groupby("user").place.transform("max") - rows.place
    began = time.monotonic()
    shop = svc.train(
        rows[left >= 2],
        user="user",
        item="item",
        time="place",
        time_unit="s",
        algorithms=options.algorithms,
        n_trials=options.trials,
        training={"seed": options.seed, "cutoff": CUTOFF, "split": {"scheme": "leave_one_out", "seed": options.seed}},
    ).recommender
    print(f"{options.file.name}: trained in {time.monotonic() - began:.0f} s")
    known, last = (rows[left == place].set_index("user").item for place in (1, 0))
    scores = []
    for user in shop.users():
        page = shop.recommend(user, history=[known[user]], limit=CUTOFF).item_id.tolist() if user in known else []
        place = page.index(last[user]) if user in last and last[user] in page else None
        scores.append((0.0, 0.0) if place is None else (1.0, 1.0 / np.log2(place + 2)))
    for name, values in zip(("recall", "ndcg"), np.array(scores).T, strict=True):
        low, high = mean_interval(values, 0.95)
        print(f"{name}@{CUTOFF} {values.mean():.4f} ({low:.4f} to {high:.4f}), {len(values)} users")


if __name__ == "__main__":
    main(argparse.ArgumentParser("python -m benchmarks.sequences"))
