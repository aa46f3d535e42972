"""What do the order of histories and the controls of a page gain and lose?"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.common import origin
from svc.training.judging.intervals import interval, paired_change
from svc.training.judging.metrics import user_scores

CUTOFF, SEED, AT_ONCE = 20, 42, 256
KNOWS_ORDER = ("recency", "with order")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "popularity": {"algorithms": ["TopPop"], "n_trials": 1},
    "without order": {"algorithms": ["IALS", "RP3beta", "Blend"], "recency": "off"},
    "recency": {"algorithms": ["IALS", "RP3beta", "Blend"]},
    "with order": {"algorithms": ["IALS", "RP3beta", "Transitions", "Blend"]},
}
"""The training block of each variant; what is not named here is as for all."""
KEY = "SVC_SIGNING_KEYS"


def hide_last(table: pd.DataFrame, *, repeats: bool) -> tuple[pd.DataFrame, dict[str, str]]:
    """The table without the last row of each user of several rows, and the hidden item of each user to judge.

    With `repeats` it may be one that the user has chosen before.
    """
    table = table.sort_values(["user", "time"], kind="stable")
    is_last = ~table.duplicated("user", keep="last") & table.duplicated("user", keep="first")
    kept, hidden = table[~is_last], table[is_last]
    hidden = hidden[hidden["item"].isin(set(kept["item"]))]
    chosen = set() if repeats else set(zip(kept["user"], kept["item"], strict=True))
    hidden = hidden[[pair not in chosen for pair in zip(hidden["user"], hidden["item"], strict=True)]]
    return kept, dict(zip(hidden["user"], hidden["item"], strict=True))


def train(
    folder: Path, training: Mapping[str, Any], options: argparse.Namespace, **blocks: Mapping[str, Any]
) -> dict[str, Any]:
    """Train the recipe of one variant, with further `blocks`; what `svc inspect` says of its artifact."""
    recipe = {
        "name": "order",
        "source": {"type": "csv", "path": "kept.csv", "dtype": {"user": "str", "item": "str"}},
        "schema": {"user_column": "user", "item_column": "item", "time_column": "time", "time_unit": "s"},
        "training": {
            "n_trials": options.trials,
            "cutoff": CUTOFF,
            "split": {"scheme": "leave_one_out"},
            **training,
        },
        "output": {"path": "order.svc"},
        **blocks,
    }
    (folder / "order.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    svc = [sys.executable, "-m", "svc"]
    subprocess.run([*svc, "train", "order.yaml", "--quiet"], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    said = subprocess.run([*svc, "inspect", "--json", "order.svc"], cwd=folder, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server over the recipes of the folder; its address."""
    command = [sys.executable, "-m", "svc", "serve", "--recipes", ".", "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "SVC_LOG_FORMAT": "json"}
    ) as process:
        assert process.stderr is not None
        try:
            started = next(json.loads(line) for line in process.stderr if '"serve_started"' in line)
            yield f"http://{started['host']}:{started['port']}"
        finally:
            process.terminate()
            process.stderr.read()


def ranks(address: str, users: list[str], more: Mapping[str, Any]) -> list[list[str]]:
    """The CUTOFF items that each user is recommended; every request says `more`."""
    return pages_of(address, [{"user_id": user, **more} for user in users])


def pages_of(address: str, requests: list[dict[str, Any]]) -> list[list[str]]:
    """The CUTOFF items that answer each request."""
    pages: list[list[str]] = []
    with httpx.Client(base_url=address, timeout=120) as client:
        for start in range(0, len(requests), AT_ONCE):
            asked = [{"limit": CUTOFF, **request} for request in requests[start : start + AT_ONCE]]
            answer = client.post("/v1/recipes/order:batch-recommend", json={"requests": asked}).raise_for_status()
            results = answer.json()["results"]
            pages += [[item["item_id"] for item in result.get("items", [])] for result in results]
    return pages


def places(pages: list[list[str]], wanted: list[str]) -> NDArray[np.float64]:
    """(users,) the position of each hidden item, from 0; infinite where it is not on the page."""
    found = [page.index(item) if item in page else np.inf for page, item in zip(pages, wanted, strict=True)]
    return np.array(found, dtype=np.float64)


def told(name: str, header: Mapping[str, Any], scores: Mapping[str, NDArray[np.float64]]) -> str:
    """One line a variant: each metric with its interval, and what won."""
    figures = []
    for metric, of_users in scores.items():
        low, high = interval(of_users, seed=SEED)
        figures.append(f"{metric}@{CUTOFF} {of_users.mean():.4f} ({low:.4f} to {high:.4f})")
    won = {"recency": header.get("recency", 0.0), **header["best_params"]}
    return f"{name:14} {'  '.join(figures)}  {header['best_class']} {json.dumps(won)}"


def compare_orders(options: argparse.Namespace) -> None:
    """Print one line a variant."""
    columns = {options.user: "user", options.item: "item", options.time: "time"}
    table = pd.read_csv(options.ratings, usecols=list(columns), dtype={options.user: str, options.item: str})
    kept, hidden = hide_last(table.rename(columns=columns), repeats=options.repeats)
    users, wanted = list(hidden), list(hidden.values())
    print(
        f"{kept['user'].nunique():,} users, {kept['item'].nunique():,} items, {len(kept):,} rows; {len(users):,} judged"
    )
    os.environ.setdefault(KEY, f"benchmark:{os.urandom(32).hex()}")
    for name in options.variants:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            kept.to_csv(folder / "kept.csv", index=False)
            knows_repeats = options.repeats and name in KNOWS_ORDER
            header = train(folder, {**VARIANTS[name], "repeats": knows_repeats}, options)
            more = {"include_seen": True} if options.repeats and not knows_repeats else {}
            with server(folder) as address:
                at = places(ranks(address, users, more), wanted)
        scores = {
            "recall": (at < np.inf).astype(np.float64),
            "ndcg": 1.0 / np.log2(at + 2.0),
            "mrr": 1.0 / (at + 1.0),
        }
        print(told(name, header, scores), flush=True)


def order(parser: argparse.ArgumentParser) -> None:
    """How much does the order of histories gain? Next item, full ranking, asked over HTTP.

        python -m benchmarks page order sessions.csv --user session_id --item item_id --time time [--repeats]

    The last row of each user is hidden. Each variant trains a plain recipe (`leave_one_out`, 40 trials) on what is
    left, and a server answers `:batch-recommend` for every user. recall@20, ndcg@20 and mrr@20 are means over the
    users whose hidden item can be recommended: the model knows it, and the user has not chosen it before. Users of one
    row are not judged. Intervals hold for 95 of 100 draws of the users.

    With `--repeats` hidden items count although their users have chosen them before. Models that know of order are
    then trained with `training.repeats`; the others are asked with `include_seen`, as is all that they can do.
    """
    parser.add_argument("ratings", type=Path)
    for name in ("user", "item", "time"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--repeats", action="store_true", help="hidden items may be chosen again")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    print(*origin(), sep=chr(10))
    compare_orders(options)


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


def hidden_pages(filters: Mapping[str, Any], kept: pd.DataFrame, users: list[str], options: argparse.Namespace) -> Any:
    """The pages of a recipe with these filters."""
    training = {"algorithms": options.algorithms, "split": {"scheme": "time_user", "heldout_ratio": HELD_OUT}}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        kept.to_csv(folder / "kept.csv", index=False)
        header = train(folder, training, options, cleansing=filters)
        with server(folder) as address:
            return header, ranks(address, users, {})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a case that reads ratings."""
    parser.add_argument("ratings", type=Path)
    for name in ("user", "item", "time", "rating"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--like", type=float, required=True)
    parser.add_argument("--min-rows", type=int, default=1)
    parser.add_argument("--min-users", type=int, default=1)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--algorithms", nargs="+", default=["IALS"])


def held_out(options: argparse.Namespace) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, list[str]]:
    """Return rows to train on, the low ones of these, held-out likes of known users and items, and their users."""
    columns = {getattr(options, name): name for name in ("user", "item", "time", "rating")}
    table = pd.read_csv(options.ratings, usecols=list(columns), dtype={options.user: str, options.item: str})
    kept, late = split(frequent(table.rename(columns=columns), options))
    liked, low = kept[kept["rating"] >= options.like], kept[kept["rating"] < options.like]
    is_known = late["user"].isin(set(liked["user"])) & late["item"].isin(set(liked["item"]))
    likes = late[is_known & (late["rating"] >= options.like)]
    return kept, low, likes, sorted(set(likes["user"]))


def hiding(parser: argparse.ArgumentParser) -> None:
    """How much does hiding what a user rated low gain, asked over HTTP?

        python -m benchmarks page hide ratings.csv --user user_id --item item_id --time ts --rating rating --like 7

    The last fifth of each user's rows by time is held out. Two recipes are trained on the rest, one with
    `cleansing.where` alone and one with `cleansing.hide` beside it, and a server answers `:batch-recommend` for every
    user. ndcg@20 is over the held-out likes of users and items that the model knows; the difference is paired over
    users, and its interval holds for 95 of 100 draws of them. Users of fewer than `--min-rows` rows and items of fewer
    than `--min-users` are left out.
    """
    add_arguments(parser)
    options = parser.parse_args()
    os.environ.setdefault(KEY, f"benchmark:{os.urandom(32).hex()}")
    kept, low, likes, users = held_out(options)
    print(*origin(), sep="\n")
    print(f"{kept['user'].nunique():,} users, {len(kept):,} rows, {len(low):,} low; {len(users):,} users judged")
    where, disliked = {"where": {"rating": {"gte": options.like}}}, set(zip(low["user"], low["item"], strict=True))
    scores = []
    for name, filters in (("where", where), ("where, hide", {**where, "hide": {"rating": {"lt": options.like}}})):
        header, pages = hidden_pages(filters, kept, users, options)
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


def controls(parser: argparse.ArgumentParser) -> None:
    """What do dislikes, a seed and items shown before cost, and which order of users finds those who take an item?

        python -m benchmarks page ratings.csv --user user_id --item item_id --time ts --rating rating --like 7

    The last fifth of each user's rows by time is held out, as in `hide`; one recipe with `cleansing.hide` is
    trained on the rest and asked over HTTP. A loss is the relative change of ndcg@20, paired over users.

    - dislikes: each user rejects the first item of the page. How many of the five items of the page that the server
      finds most related to it stay, and how many of the others. The loss is that of the user's latest low rating sent
      as a dislike.
    - seven days: how many different items a user is shown on seven pages of 20, with a seed of each day, or with all
      pages before as `shown`. The loss is the mean over the days.
    - users: the share of the first 100 users for an item who chose it in the held-out rows, for the `--items` items
      that most of them chose.
    """
    add_arguments(parser)
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


CASES = {"controls": controls, "order": order, "hide": hiding}
