"""What does a learned order of the first page gain on choices that came after the training, and what does it cost?

    python -m benchmarks ranker ratings.csv --user user_id --item item_id --time ts --items movies.csv \\
        --labels genres --numbers year
    python -m benchmarks ranker sessions.csv --user session_id --item item_id --time time --last
    python -m benchmarks ranker --generated

The latest 12.5% of all rows are hidden, with `--last` the last row of each user. Each variant trains on the others, and
a server answers `:batch-recommend` with 20 items for every user with hidden items that the model knows, and that the
user had not chosen before. The same pages come from the model in this process, which also ranks without its ranker.
Changes are relative to the winner, and to the row `blend`. Their intervals hold for 95 of 100 draws of the users. A
request is one ranking of 10 items, in processor time, the fastest of five rounds.

`--generated` makes 3,000 users who choose about 40 of 1,200 films within some months, by genre and age of the film.
`--plot FILE.svg` draws ndcg@20 of each variant, with and without the ranker. It needs matplotlib.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import origin
from benchmarks.page import KEY, hide_last, ranks, server, train
from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import read_verified
from svc.asking.offer import Offer
from svc.asking.plan import known_user
from svc.model.load_model import load_model
from svc.model.model import Model
from svc.settings import Settings
from svc.training.judging.intervals import paired_change
from svc.training.judging.metrics import user_scores

CUTOFF, HIDDEN, LIMIT, ROUNDS, SEED = 20, 0.125, 10, 5, 42
VARIANTS: Mapping[str, list[str]] = {
    "single": ["IALS", "RP3beta"],
    "blend": ["IALS", "RP3beta", "Blend"],
    "blend with popularity": ["IALS", "RP3beta", "TopPop", "Blend"],
}
N_USERS, N_ITEMS, N_GENRES, DAYS, DAY_S = 3_000, 1_200, 18, 200, 86_400


def generated() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Choices and films: users like three genres, and films lose half of their choices in 60 days."""
    rng = np.random.default_rng(SEED)
    genres = [rng.choice(N_GENRES, rng.integers(1, 4), replace=False) for _ in range(N_ITEMS)]
    released = rng.uniform(-200, DAYS, N_ITEMS)
    fame = rng.permutation(np.arange(1, N_ITEMS + 1) ** -0.7)
    has_genre = np.zeros((N_ITEMS, N_GENRES))
    for item, own in enumerate(genres):
        has_genre[item, own] = 1 / len(own)
    rows = []
    for user in range(N_USERS):
        day, taste = rng.uniform(0, DAYS), rng.choice(N_GENRES, 3, replace=False)
        chances = fame * 0.5 ** ((day - released) / 60) * (released < day) * (0.1 + has_genre[:, taste].sum(axis=1))
        n = min(int(rng.geometric(1 / 40)) + 4, int((chances > 0).sum()))
        items = rng.choice(N_ITEMS, n, replace=False, p=chances / chances.sum())
        times = np.sort(day + rng.exponential(60, n)) * DAY_S
        rows += [(f"u{user}", f"i{item}", int(when)) for item, when in zip(items, times, strict=True)]
    words = ["|".join(f"g{genre}" for genre in own) for own in genres]
    films = pd.DataFrame({"item": [f"i{item}" for item in range(N_ITEMS)], "genres": words, "year": released.round()})
    return pd.DataFrame(rows, columns=["user", "item", "time"]), films


def trained(folder: Path, algorithms: list[str], options: argparse.Namespace) -> tuple[Mapping[str, Any], Model]:
    """Header and model of a training on `kept.csv`."""
    columns = [{"name": name, "kind": "multi_label"} for name in options.labels]
    columns += [{"name": name, "kind": "numerical"} for name in options.numbers]
    source = {"type": "csv", "path": "items.csv", "dtype": {"item": "str"}}
    blocks = {"item_metadata": {"source": source, "id_column": "item", "filter_fields": columns}} if columns else {}
    split = {"scheme": "leave_one_out"} if options.last else {"scheme": options.scheme, "heldout_ratio": HIDDEN}
    header = train(folder, {"algorithms": algorithms, "ranker": "search", "split": split}, options, **blocks)
    parsed = read_verified(str(folder / "order.svc"), parse_signing_keys(os.environ[KEY]), Settings())[1]
    return header, load_model(parsed.header, parsed.payload, name="order", allow_skew=False)


def judged(model: Model, hidden: pd.DataFrame) -> tuple[list[int], sparse.csr_matrix]:
    """Rows of the users to judge, and their hidden items, (users, items)."""
    users, items = model.user_ids.indices(hidden["user"].tolist()), model.item_ids.indices(hidden["item"].tolist())
    is_known = (users >= 0) & (items >= 0)
    pairs = sorted(set(zip(users[is_known].tolist(), items[is_known].tolist(), strict=True)))
    pairs = [(user, item) for user, item in pairs if item not in model.history.items(user)]
    rows = sorted({user for user, _ in pairs})
    place = {user: position for position, user in enumerate(rows)}
    at = [place[user] for user, _ in pairs], [item for _, item in pairs]
    return rows, sparse.csr_matrix((np.ones(len(pairs)), at), shape=(len(rows), model.n_items))


def pages_of(model: Model, rows: list[int]) -> list[list[int]]:
    """The CUTOFF items of each user, ranked in this process."""
    return [
        page.items.tolist() for page in model.rank([known_user(Offer(model=model), row, limit=CUTOFF) for row in rows])
    ]


def scores(pages: list[list[int]], truth: sparse.csr_matrix) -> dict[str, NDArray[np.float64]]:
    """(users,) each metric."""
    found = user_scores(pages, truth)
    held = [set(truth[user].indices.tolist()) for user in range(len(pages))]
    firsts = [
        next((place for place, item in enumerate(page, start=1) if item in own), np.inf)
        for page, own in zip(pages, held, strict=True)
    ]
    return {"ndcg": found["ndcg"], "recall": found["recall"], "mrr": 1 / np.array(firsts, dtype=np.float64)}


def microseconds(model: Model, rows: list[int]) -> float:
    """Processor time of one ranking by itself."""
    queries = [known_user(Offer(model=model), row, limit=LIMIT) for row in rows[:: max(1, len(rows) // 300)]]
    rounds = []
    with threadpool_limits(limits=1, user_api="blas"):
        for _ in range(ROUNDS):
            began = time.thread_time()
            for query in queries:
                model.rank([query])
            rounds.append((time.thread_time() - began) / len(queries))
    return 1e6 * min(rounds)


def told(name: str, of_users: Mapping[str, NDArray[np.float64]], base: Mapping[str, NDArray[np.float64]] | None) -> str:
    """One line: each metric, and its change from `base`."""
    figures = []
    for metric, own in of_users.items():
        change = None if base is None else paired_change(own, base[metric], seed=SEED, relative=True)
        by = "" if change is None else f" {change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})"
        figures.append(f"{metric}@{CUTOFF} {own.mean():.4f}{by}")
    return f"  {name}: " + ", ".join(figures)


def compare(
    kept: pd.DataFrame, hidden: pd.DataFrame, films: pd.DataFrame | None, options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Print the lines of each variant. Return the ndcg of each variant, by the winner and with its ranker."""
    blend, ndcg = None, {}
    for variant in options.variants:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            kept.to_csv(folder / "kept.csv", index=False)
            if films is not None:
                films.to_csv(folder / "items.csv", index=False)
            began = time.monotonic()
            header, model = trained(folder, VARIANTS[variant], options)
            seconds = time.monotonic() - began
            rows, truth = judged(model, hidden)
            with server(folder) as address:
                answers = ranks(address, [model.user_ids.at(row) for row in rows], {})
        over_http = [model.item_ids.indices(page).tolist() for page in answers]
        told_in_training, ranker = header.get("ranker", {}), model.ranker
        print(f"{variant}: {header['best_class']}, {len(rows)} users, trained in {seconds:.0f} s")
        print(f"  in training: { ({**told_in_training, 'features': len(told_in_training.get('features', ()))}) }")
        print(f"  pages over HTTP as in this process: {over_http == pages_of(model, rows)}")
        cost = microseconds(model, rows)
        model.ranker = None
        alone, cost_alone = scores(pages_of(model, rows), truth), microseconds(model, rows)
        blend = alone if variant == "blend" else blend
        print(told("winner alone, from blend", alone, blend))
        ordered = scores(over_http, truth)
        ndcg[variant] = float(alone["ndcg"].mean()), float(ordered["ndcg"].mean())
        print(told("with its ranker, from the winner", ordered, alone))
        print(f"  a request: winner {cost_alone:.0f} us, ranker {cost:.0f} us, ships: {ranker is not None}", flush=True)
    return ndcg


def plot(ndcg: Mapping[str, tuple[float, float]], path: Path) -> None:
    """Draw two bars for each variant: its winner alone, and with the ranker."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "svc"
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 0.8 + 0.8 * len(ndcg)))
    places = np.arange(len(ndcg))
    kinds = ((-0.18, "winner alone"), (0.18, "with the ranker"))
    for (shift, label), values in zip(kinds, zip(*ndcg.values(), strict=True), strict=True):
        bars = axis.barh(places + shift, values, height=0.34, label=label)
        axis.bar_label(bars, fmt="%.3f", padding=3)
    axis.set_yticks(places, list(ndcg))
    axis.invert_yaxis()
    axis.set_xlabel(f"ndcg@{CUTOFF} of later choices")
    axis.margins(x=0.15)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ratings", type=Path, nargs="?")
    parser.add_argument("--generated", action="store_true")
    parser.add_argument("--user", default="user")
    parser.add_argument("--item", default="item")
    parser.add_argument("--time", default="time")
    parser.add_argument("--items", type=Path)
    parser.add_argument("--labels", nargs="*", default=[])
    parser.add_argument("--numbers", nargs="*", default=[])
    parser.add_argument("--last", action="store_true", help="hide the last row of each user")
    parser.add_argument("--scheme", default="time_global")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    os.environ.setdefault(KEY, f"benchmark:{os.urandom(32).hex()}")
    print("\n".join(origin()))
    names = {options.user: "user", options.item: "item", options.time: "time"}
    films = None
    if options.generated:
        table, films = generated()
        options.labels, options.numbers = ["genres"], ["year"]
    else:
        table = pd.read_csv(options.ratings, usecols=list(names), dtype={options.user: str, options.item: str})
        if options.items is not None:
            films = pd.read_csv(options.items, dtype={options.item: str}).rename(columns={options.item: "item"})
    table = table.rename(columns=names)
    if options.last:
        kept, wanted = hide_last(table, repeats=False)
        hidden = pd.DataFrame(wanted.items(), columns=["user", "item"])
    else:
        is_late = table["time"] > table["time"].quantile(1 - HIDDEN)
        kept, hidden = table[~is_late], table[is_late]
    ndcg = compare(kept, hidden, films, options)
    if options.plot is not None:
        plot(ndcg, options.plot)
