"""What does a line a request cost?

    python -m benchmarks access_log            # half a minute; needs wrk

Three servers of one model, one for each value of SVC_ACCESS_LOG, are asked in turns over 16 connections. Shown is the
processor time of the server for each request: medians, and the median of the differences to `off` within a round. The
lines go to /dev/null, so what a disk or a collector takes comes on top.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common import SHAPES, origin
from benchmarks.http import costed, prepare, running_svc, script

MODES = ("off", "errors", "all")
CONNECTIONS = 16
STATUS = {"known": 200, "unknown": 404}
"""By kind of user: the status of the answers."""


def measure(rounds: int, seconds: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of processor time a request, by kind of user and mode, one value a round."""
    shape = SHAPES["a"]
    found: dict[tuple[str, str], list[float]] = {(kind, mode): [] for kind in STATUS for mode in MODES}
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        prepare(shape, folder)
        servers = {}
        for mode in MODES:
            os.environ["SVC_ACCESS_LOG"] = mode
            servers[mode] = running_svc(stack, folder).asked("/v1/recipes/m:recommend")
        known = script(folder, shape.n_users)
        unknown = folder / "unknown.lua"
        unknown.write_text(known.read_text(encoding="utf-8").replace("\"u'", "\"nobody'"), encoding="utf-8")
        for lua in (known, unknown):
            costed(servers["off"], CONNECTIONS, 1, lua)
        for _ in range(rounds):
            for kind, lua in (("known", known), ("unknown", unknown)):
                for mode, server in servers.items():
                    found[kind, mode].append(costed(server, CONNECTIONS, seconds, lua)[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    options = parser.parse_args()
    print("\n".join(origin()))
    found = measure(options.rounds, options.seconds)
    print("\n| user | status | SVC_ACCESS_LOG | processor time a request | more than off |\n|---|---|---|---|---|")
    for (kind, mode), values in found.items():
        more = median(value - off for value, off in zip(values, found[kind, "off"], strict=True))
        print(
            f"| {kind} | {STATUS[kind]} | {mode} | {median(values) * 1e6:.0f} µs | {more * 1e6:+.0f} µs |", flush=True
        )


if __name__ == "__main__":
    main()
