"""How much does hiding what a user rated low gain, asked over HTTP?

    python -m benchmarks.hide ratings.csv --user user_id --item item_id --time ts --rating rating --like 7

The last fifth of each user's rows by time is held out. Two recipes are trained on the rest, one with `cleansing.where`
alone and one with `cleansing.hide` beside it, and a server answers `:batch-recommend` for every user. ndcg@20 is over
the held-out likes of users and items that the model knows; the difference is paired over users, and its interval holds
for 95 of 100 draws of them. Users of fewer than `--min-rows` rows and items of fewer than `--min-users` are left out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.common import origin
from benchmarks.order import CUTOFF, KEY, SEED, ranks, server, train
from svc.training.judging.intervals import interval, paired_change
from svc.training.judging.metrics import user_scores

HELD_OUT = 0.2


def split(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows to train on, and the last fifth of each user's rows."""
    table = table.sort_values(["user", "time"], kind="stable")
    position, size = table.groupby("user").cumcount(), table.groupby("user")["item"].transform("size")
    is_late = position >= size - np.floor(size * HELD_OUT)
    return table[~is_late], table[is_late]


def frequent(table: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """The rows of frequent items, and of these the rows of active users."""
    table = table[table.groupby("item")["user"].transform("size") >= options.min_users]
    return table[table.groupby("user")["item"].transform("size") >= options.min_rows]


def judged(pages: list[list[str]], users: list[str], likes: pd.DataFrame) -> NDArray[np.float64]:
    """(users,) ndcg of each page; `likes` has the held-out ones."""
    columns = {
        item: column for column, item in enumerate(sorted({*likes["item"], *(i for page in pages for i in page)}))
    }
    row_of = {user: row for row, user in enumerate(users)}
    pairs = (likes["user"].map(row_of).to_numpy(), likes["item"].map(columns).to_numpy())
    truth = sparse.csr_matrix((np.ones(len(likes)), pairs), shape=(len(users), len(columns)))
    truth.sort_indices()
    return user_scores([[columns[item] for item in page] for page in pages], truth)["ndcg"]


def measure(filters: Mapping[str, Any], kept: pd.DataFrame, users: list[str], options: argparse.Namespace) -> Any:
    """The pages of a recipe with these filters."""
    training = {"algorithms": options.algorithms, "split": {"scheme": "time_user", "heldout_ratio": HELD_OUT}}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        kept.to_csv(folder / "kept.csv", index=False)
        header = train(folder, training, options, cleansing=filters)
        with server(folder) as address:
            return header, ranks(address, users, {})


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the options of a program that reads ratings."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ratings", type=Path)
    for name in ("user", "item", "time", "rating"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--like", type=float, required=True)
    parser.add_argument("--min-rows", type=int, default=1)
    parser.add_argument("--min-users", type=int, default=1)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--algorithms", nargs="+", default=["IALS"])
    return parser


def held_out(options: argparse.Namespace) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, list[str]]:
    """Return rows to train on, the low ones of these, held-out likes of known users and items, and their users."""
    columns = {getattr(options, name): name for name in ("user", "item", "time", "rating")}
    table = pd.read_csv(options.ratings, usecols=list(columns), dtype={options.user: str, options.item: str})
    kept, late = split(frequent(table.rename(columns=columns), options))
    liked, low = kept[kept["rating"] >= options.like], kept[kept["rating"] < options.like]
    is_known = late["user"].isin(set(liked["user"])) & late["item"].isin(set(liked["item"]))
    likes = late[is_known & (late["rating"] >= options.like)]
    return kept, low, likes, sorted(set(likes["user"]))


def main() -> None:
    """Print one line a recipe, and their difference."""
    parser = arguments(__doc__)
    options = parser.parse_args()
    os.environ.setdefault(KEY, f"benchmark:{os.urandom(32).hex()}")
    kept, low, likes, users = held_out(options)
    print(*origin(), sep="\n")
    print(f"{kept['user'].nunique():,} users, {len(kept):,} rows, {len(low):,} low; {len(users):,} users judged")
    where, disliked = {"where": {"rating": {"gte": options.like}}}, set(zip(low["user"], low["item"], strict=True))
    scores = []
    for name, filters in (("where", where), ("where, hide", {**where, "hide": {"rating": {"lt": options.like}}})):
        header, pages = measure(filters, kept, users, options)
        scores.append(judged(pages, users, likes))
        ends = interval(scores[-1], seed=SEED)
        n_low = sum((user, item) in disliked for user, page in zip(users, pages, strict=True) for item in page)
        share = n_low / sum(map(len, pages))
        print(
            f"{name:12} ndcg@{CUTOFF} {scores[-1].mean():.4f} ({ends[0]:.4f} to {ends[1]:.4f})  "
            f"rated low before: {share:.1%} of the page  own score {header['best_score']:.4f} {header['best_class']}",
            flush=True,
        )
    change = paired_change(scores[1], scores[0], seed=SEED, relative=True)
    print(f"hide against where alone: {change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})")


if __name__ == "__main__":
    main()
