"""How many exact answers a second are there in the shapes of Oryx 2's published table, the only one of its kind?

    python -m benchmarks.published_shapes [--components 50 250] [--seconds 6]

One million items, 50 and 250 factors. The table (its project's documentation, a machine of 32 cores) has 70 and 24
requests a second when every item is looked at, and 437 and 160 with an approximate search that looks at 30% of them.
Here every answer is exact. Two kinds of data: `tastes` are the vectors that iALS finds in generated interactions;
`random` are normal numbers, for which no item can be left out, since all norms are alike. The server is asked over
HTTP by wrk, which shares its cores, at one connection and at 16; requests together are scored together.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sps

from benchmarks.common import Shape, ids, origin
from benchmarks.http import RECOMMEND, costed, prepare, running_svc, script, write_served
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import SVDScorer
from svc.training.fitting.export import to_history

PUBLISHED = {50: (70, 437), 250: (24, 160)}
"""Requests a second by number of factors: exact, and approximate. Of 32 cores."""
N_USERS, N_ITEMS, N_INTERACTIONS = 50_000, 1_000_000, 2_500_000
CONNECTIONS = (1, 16)


def prepare_random(components: int, folder: Path) -> None:
    """Write a model of normal random vectors, whose users have no history."""
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((count, components), dtype=np.float32) for count in (N_USERS, N_ITEMS))
    model = Model(
        user_ids=IdTable.from_ids(ids("u", N_USERS)),
        item_ids=IdTable.from_ids(ids("i", N_ITEMS)),
        history=to_history(sps.csr_matrix((N_USERS, N_ITEMS))),
        scorer=SVDScorer(users, FactorIndex.build(items), None),
        features=None,
    )
    model.ready()
    write_served(model, "TruncatedSVDRecommender", folder)


def measure(components: int, kind: str, seconds: int) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if kind == "random":
            prepare_random(components, folder)
        else:
            prepare(Shape(kind, N_USERS, N_ITEMS, N_INTERACTIONS, components), folder)
        server = running_svc(stack, folder).asked(RECOMMEND)
        lua = script(folder, N_USERS)
        exact, approximate = PUBLISHED[components]
        for connections in CONNECTIONS:
            costed(server, connections, 2, lua)
            found, cpu_s = costed(server, connections, seconds, lua)
            figures = f"{found.rate:,.0f} | {found.p99_ms:,.0f} | {cpu_s * 1e3:.1f} | {exact} | {approximate}"
            print(f"| {components} | {kind} | {connections} | {figures} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--components", type=int, nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    print("\n".join(origin()))
    print(f"\n{os.cpu_count()} cores, {N_ITEMS:,} items; published of 32 cores\n")
    print("| factors | data | connections | svc, exact requests/s | p99 ms | CPU ms | exact | approximate |")
    print("|---|---|---|---|---|---|---|---|")
    for components in options.components:
        for kind in ("tastes", "random"):
            measure(components, kind, options.seconds)


if __name__ == "__main__":
    main()
