"""How much does the order of histories gain? Next item, full ranking, asked over HTTP.

    python -m benchmarks.training_quality sessions.csv --order --user session_id --item item_id --time time [--repeats]

The last row of each user is hidden. Each variant trains a plain recipe (`leave_one_out`, 40 trials) on what is left,
and a server answers `:batch-recommend` for every user. recall@20, ndcg@20 and mrr@20 are means over the users whose
hidden item can be recommended: the model knows it, and the user has not chosen it before. Users of one row are not
judged. Intervals hold for 95 of 100 draws of the users.

With `--repeats` hidden items count although their users have chosen them before. Models that know of order are then
trained with `training.repeats`; the others are asked with `include_seen`, as is all that they can do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from svc.training.judging.intervals import interval

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
