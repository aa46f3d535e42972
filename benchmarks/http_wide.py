"""What does a request to a blend of 680 factors cost, beside a narrow iALS and beside one connection?

    python -m benchmarks.http_wide [--rounds 5] [--seconds 6]

The servers run at once and are loaded in turn, as in `http`, without kept answers: shape (d), blended with RP3beta, as
numpy alone scans it (numpy) and with the extra `fast` (fast), and an iALS of shape (b) (narrow). Medians of the rounds
are shown; `CPU µs` is what the server's process used for a request. Clients share the cores with the servers.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.blend import with_rp3beta
from benchmarks.common import SHAPES, ids, interactions, origin
from benchmarks.http import RECOMMEND, Load, costed, prepare, running_svc, script, write_served
from benchmarks.wide_model import wide_factors
from svc.training.fitting.export import assemble, to_history

CONNECTIONS = (1, 16, 64)


def prepare_wide(folder: Path) -> None:
    """Write the blend of shape (d) as an artifact with its recipe."""
    shape = SHAPES["d"]
    matrix = interactions(shape)
    blend = with_rp3beta(wide_factors(matrix, shape.components), matrix, to_history(matrix))
    users, items = ids("u", shape.n_users), ids("i", shape.n_items)
    model = assemble(blend, user_ids=users, item_ids=items, X=matrix, features=None)
    write_served(model, "IALSRecommender", folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    print("\n".join(origin()))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        wide, narrow, hidden = (Path(name) / part for part in ("wide", "narrow", "hidden"))
        for folder in (wide, narrow, hidden):
            folder.mkdir()
        prepare_wide(wide)
        prepare(SHAPES["b"], narrow)
        (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['numkong'] = None\n", encoding="utf-8")
        servers = {
            "numpy": running_svc(stack, wide, PYTHONPATH=str(hidden)).asked(RECOMMEND),
            "fast": running_svc(stack, wide).asked(RECOMMEND),
            "narrow": running_svc(stack, narrow).asked(RECOMMEND),
        }
        lua = script(Path(name), SHAPES["d"].n_users)
        print("\n| connections | server | requests/s | CPU µs | p99 ms |\n|---|---|---|---|---|")
        for connections in CONNECTIONS:
            taken: dict[str, list[tuple[Load, float]]] = {server: [] for server in servers}
            for number in range(-1, options.rounds):  # the first round only warms up
                for server, running in servers.items():
                    measured = costed(running, connections, options.seconds, lua)
                    if number >= 0:
                        taken[server].append(measured)
            for server, loads in taken.items():
                if failed := sum(load.failed for load, _ in loads):
                    print(f"{failed} answers of {server} were errors")
                rate, p99 = median(load.rate for load, _ in loads), median(load.p99_ms for load, _ in loads)
                cpu = median(cost for _, cost in loads) * 1e6
                print(f"| {connections} | {server} | {rate:,.0f} | {cpu:,.0f} | {p99:.1f} |", flush=True)


if __name__ == "__main__":
    main()
