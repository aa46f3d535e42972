"""What do dislikes, a seed and items shown before cost, and which order of users finds those who take an item?

    python -m benchmarks.page ratings.csv --user user_id --item item_id --time ts --rating rating --like 7

The last fifth of each user's rows by time is held out, as in benchmarks.hide; one recipe with `cleansing.hide` is
trained on the rest and asked over HTTP. A loss is the relative change of ndcg@20, paired over users.

- dislikes: each user rejects the first item of the page. How many of the five items of the page that the server finds
  most related to it stay, and how many of the others. The loss is that of the user's latest low rating sent as a
  dislike.
- seven days: how many different items a user is shown on seven pages of 20, with a seed of each day, or with all pages
  before as `shown`. The loss is the mean over the days.
- users: the share of the first 100 users for an item who chose it in the held-out rows, for the `--items` items that
  most of them chose.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.common import origin
from benchmarks.hide import HELD_OUT, arguments, held_out, judged
from benchmarks.order import KEY, SEED, pages_of, ranks, server, train
from svc.training.judging.intervals import paired_change

DAYS = 7
RELATED = 5
N_USERS = 100
Pages = list[list[str]]


def loss(scores: NDArray[np.float64], base: NDArray[np.float64]) -> str:
    """The relative change of ndcg with its interval."""
    change = paired_change(scores, base, seed=SEED, relative=True)
    return f"ndcg {change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})"


def reject_first(address: str, users: list[str], base: Pages, weight: float) -> tuple[float, float]:
    """The shares of a page that stay when its first item is rejected: of the related items, and of the others."""
    with httpx.Client(base_url=address, timeout=60) as client:
        related = []
        for page in base:
            body = {"seed_items": page[:1], "include_items": page[1:], "limit": RELATED}
            answer = client.post("/v1/recipes/order:recommend-related", json=body).raise_for_status()
            related.append({item["item_id"] for item in answer.json()["items"]})
    asked = [
        {"user_id": user, "dislikes": [{"item_id": page[0], "weight": weight}]}
        for user, page in zip(users, base, strict=True)
    ]
    after = pages_of(address, asked)
    stay = [len(near & set(page)) / len(near) for near, page in zip(related, after, strict=True)]
    others = [
        len((set(old[1:]) - near) & set(page)) / len(set(old[1:]) - near)
        for near, old, page in zip(related, base, after, strict=True)
    ]
    return float(np.mean(stay)), float(np.mean(others))


def week(
    users: list[str], ask: Callable[[int, list[Counter[str]]], Pages], score: Callable[[Pages], NDArray[np.float64]]
) -> tuple[float, NDArray[np.float64]]:
    """The mean number of different items that a user is shown in DAYS pages, and the mean score of each user."""
    shown: list[Counter[str]] = [Counter() for _ in users]
    scores = np.zeros(len(users))
    for day in range(DAYS):
        pages = ask(day, shown)
        scores += score(pages) / DAYS
        for counter, page in zip(shown, pages, strict=True):
            counter.update(page)
    return float(np.mean([len(counter) for counter in shown])), scores


def users_for_items(address: str, likes: pd.DataFrame, n_items: int) -> None:
    """Print the precision of each order."""
    wanted = {item: set(rows) for item, rows in likes.groupby("item")["user"]}
    items = sorted(wanted, key=lambda item: (-len(wanted[item]), item))[:n_items]
    with httpx.Client(base_url=address, timeout=60) as client:
        for order in ("score", "lift", "balanced"):
            found = []
            for item in items:
                body = {"item_id": item, "limit": N_USERS, "order": order}
                answer = client.post("/v1/recipes/order:recommend-users", json=body).raise_for_status()
                found.append(len(wanted[item] & {user["user_id"] for user in answer.json()["users"]}) / N_USERS)
            print(f"users by {order:9} precision@{N_USERS} {np.mean(found):.4f} over {len(items)} items", flush=True)


def measure(address: str, users: list[str], low: pd.DataFrame, likes: pd.DataFrame) -> None:
    """Print the six rows of trade-offs."""

    def score(pages: Pages) -> NDArray[np.float64]:
        return judged(pages, users, likes)

    base = ranks(address, users, {})
    plain = score(base)
    print(f"plain: ndcg@20 {plain.mean():.4f}", flush=True)
    latest = low.sort_values("time").drop_duplicates("user", keep="last").set_index("user")["item"].to_dict()
    for weight in (1.0, 3.0, 10.0):
        near, others = reject_first(address, users, base, weight)
        asked: list[dict[str, Any]] = [
            {"user_id": user, "dislikes": [{"item_id": latest[user], "weight": weight}] if user in latest else []}
            for user in users
        ]
        told = loss(score(pages_of(address, asked)), plain)
        print(f"dislike of weight {weight:g}: {near:.0%} of the related stay, {others:.0%} of the others; {told}")
    for share in (0.25, 0.5):

        def of_seed(day: int, _: list[Counter[str]], share: float = share) -> Pages:
            return pages_of(
                address, [{"user_id": user, "seed": f"{user} {day}"[-64:], "shuffle": share} for user in users]
            )

        def of_shown(_: int, shown: list[Counter[str]], share: float = share) -> Pages:
            lists = [[{"item_id": item, "times": n} for item, n in counter.items()] for counter in shown]
            asked = [{"user_id": u, "shown": seen, "rotation": share} for u, seen in zip(users, lists, strict=True)]
            return pages_of(address, asked)

        for name, ask in (("seed, shuffle", of_seed), ("shown, rotation", of_shown)):
            n_items, scores = week(users, ask, score)
            print(f"{name} {share:g}: {n_items:.1f} items in {DAYS} days; {loss(scores, plain)}", flush=True)


def main() -> None:
    """Train, serve, and print one line a measurement."""
    parser = arguments(__doc__)
    parser.add_argument("--items", type=int, default=100)
    options = parser.parse_args()
    os.environ.setdefault(KEY, f"benchmark:{os.urandom(32).hex()}")
    os.environ.setdefault("SVC_MAX_QUEUE_SECONDS", "60")  # batches of many items shown are long
    kept, low, likes, users = held_out(options)
    known_items = set(kept["item"][kept["rating"] >= options.like])
    print(*origin(), sep="\n")
    filters = {"where": {"rating": {"gte": options.like}}, "hide": {"rating": {"lt": options.like}}}
    training = {"algorithms": options.algorithms, "split": {"scheme": "time_user", "heldout_ratio": HELD_OUT}}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        kept.to_csv(folder / "kept.csv", index=False)
        header = train(folder, training, options, cleansing=filters, serving={"users": True})
        print(f"{kept['user'].nunique():,} users, {len(users):,} judged; {header['best_class']}", flush=True)
        with server(folder) as address:
            measure(address, users, low[low["item"].isin(known_items)], likes)
            users_for_items(address, likes, options.items)


if __name__ == "__main__":
    main()
