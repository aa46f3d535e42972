"""What does a learned order of the first page gain on choices that came after the training, and what does it cost?

    python -m benchmarks.ranker ratings.csv --user user_id --item item_id --time ts --items movies.csv \
        --labels genres --numbers year

The latest 12.5% of all rows are hidden. Each variant trains on the others, and every user with hidden items that the
model knows, and that the user had not chosen before, is recommended 20 items: by the winner alone, and with its ranker.
Changes are relative to the winner; their intervals hold for 95 of 100 draws of the users. A request is one ranking of
10 items, in processor time, the fastest of five rounds.
"""

from __future__ import annotations

import argparse
import json
import shutil
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

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.model.load_model import load_model
from svc.model.model import Model
from svc.progress import Progress
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.training.judging.intervals import paired_change
from svc.training.judging.metrics import user_scores
from svc.training.run import TrainOptions, train

CUTOFF, HIDDEN, LIMIT, ROUNDS, SEED = 20, 0.125, 10, 5, 42
VARIANTS: Mapping[str, list[str]] = {
    "single": ["IALS", "RP3beta"],
    "blend": ["IALS", "RP3beta", "Blend"],
    "blend with popularity": ["IALS", "RP3beta", "TopPop", "Blend"],
}


def trained(folder: Path, algorithms: list[str], options: argparse.Namespace) -> tuple[Mapping[str, Any], Model]:
    """Header and model of a training on `kept.csv`."""
    names = {"user_column": options.user, "item_column": options.item, "time_column": options.time}
    recipe: dict[str, Any] = {
        "name": "pages",
        "source": {"type": "csv", "path": "kept.csv", "dtype": {options.user: "str", options.item: "str"}},
        "schema": {**names, "time_unit": "s"},
        "training": {
            "algorithms": algorithms,
            "n_trials": options.trials,
            "cutoff": CUTOFF,
            "ranker": "search",
            "split": {"scheme": options.scheme, "heldout_ratio": HIDDEN},
        },
        "output": {"path": "pages.svc"},
    }
    if options.items is not None:
        shutil.copy(options.items, folder / "items.csv")
        columns = [{"name": name, "kind": "multi_label"} for name in options.labels]
        columns += [{"name": name, "kind": "numerical"} for name in options.numbers]
        source = {"type": "csv", "path": "items.csv", "dtype": {options.item: "str"}}
        recipe["item_metadata"] = {"source": source, "id_column": options.item, "filter_fields": columns}
    (folder / "pages.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    loaded = load_recipe(folder / "pages.yaml", {}, settings=Settings())
    result = train(loaded, TrainOptions(run_id="benchmark", dev_unsigned=True, quiet=True), Settings(), Progress())
    parsed = read_verified(str(result.artifact), development_keys(), Settings())[1]
    return parsed.header, load_model(parsed.header, parsed.payload, name="pages", allow_skew=False)


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


def scores(model: Model, rows: list[int], truth: sparse.csr_matrix) -> dict[str, NDArray[np.float64]]:
    """(users,) each metric."""
    pages = [page.items.tolist() for page in model.rank([model.known_user(row, limit=CUTOFF) for row in rows])]
    found = user_scores(pages, truth)
    held = [set(truth[user].indices.tolist()) for user in range(len(rows))]
    ranks = [
        next((place for place, item in enumerate(page, start=1) if item in own), np.inf)
        for page, own in zip(pages, held, strict=True)
    ]
    return {"ndcg": found["ndcg"], "recall": found["recall"], "mrr": 1 / np.array(ranks, dtype=np.float64)}


def microseconds(model: Model, rows: list[int]) -> float:
    """Processor time of one ranking by itself."""
    queries = [model.known_user(row, limit=LIMIT) for row in rows[:: max(1, len(rows) // 300)]]
    rounds = []
    with threadpool_limits(limits=1, user_api="blas"):
        for _ in range(ROUNDS):
            began = time.thread_time()
            for query in queries:
                model.rank([query])
            rounds.append((time.thread_time() - began) / len(queries))
    return 1e6 * min(rounds)


def main() -> None:
    """Print a line for each variant, by the winner and with its ranker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ratings", type=Path)
    parser.add_argument("--user", required=True)
    parser.add_argument("--item", required=True)
    parser.add_argument("--time", required=True)
    parser.add_argument("--items", type=Path)
    parser.add_argument("--labels", nargs="*", default=[])
    parser.add_argument("--numbers", nargs="*", default=[])
    parser.add_argument("--scheme", default="time_global")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    options = parser.parse_args()
    table = pd.read_csv(options.ratings, dtype={options.user: str, options.item: str})
    is_late = table[options.time] > table[options.time].quantile(1 - HIDDEN)
    hidden = table[is_late].rename(columns={options.user: "user", options.item: "item"})
    for variant in options.variants:
        with tempfile.TemporaryDirectory() as name:
            table[~is_late].to_csv(Path(name) / "kept.csv", index=False)
            began = time.process_time()
            header, model = trained(Path(name), VARIANTS[variant], options)
            rows, truth = judged(model, hidden)
            told, ranker = header.get("ranker", {}), model.ranker
            print(
                f"{variant}: {header['best_class']}, {len(rows)} users, {time.process_time() - began:.0f} s of a core"
            )
            print(f"  in training: {told}")
            with_ranker, cost = scores(model, rows, truth), microseconds(model, rows)
            model.ranker = None
            alone, cost_alone = scores(model, rows, truth), microseconds(model, rows)
            for metric, own in with_ranker.items():
                change = paired_change(own, alone[metric], seed=SEED, relative=True)
                print(
                    f"  {metric}@{CUTOFF}: winner {alone[metric].mean():.4f}, ranker {own.mean():.4f},"
                    f" {change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})"
                )
            print(f"  a request: winner {cost_alone:.0f} us, ranker {cost:.0f} us, ships: {ranker is not None}")


if __name__ == "__main__":
    main()
