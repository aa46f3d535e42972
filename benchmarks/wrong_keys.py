"""Do floods of wrong keys slow clients with a good one, and does the time of a refusal tell anything about a key?

    python -m benchmarks wrong_keys                       # a good minute; needs wrk
    python -m benchmarks wrong_keys --pairs 10000         # timing to a finer grain

Throughput: wrk asks over eight connections with a key that the server remembers, in turns without and under each flood,
which comes over 64 connections from a process of its own. Ratios are medians of those within a round.

Timing: wrong keys one after the other over one connection, of two kinds in random order: the first half that of a real
key, or all random. Shown is the difference of the medians with the interval that holds it in 95 of 100 resamplings, and
the p-value of a rank test. A difference would let a key be guessed piece by piece. The attempts stay below the rate
from which refusals are slowed down. The program ends with 1 if a flood leaves less than 80% of the rate, or if the two
kinds differ.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import mannwhitneyu

from benchmarks.common import origin
from benchmarks.hostile import Watch, watched
from benchmarks.hostile_clients import HEAD, attack
from benchmarks.http import load
from benchmarks.probing import connect
from svc.serving.api.authentication import REFUSALS_PER_S, new_api_key

FLOODS = ("wrong_keys", "malformed_keys")
CONNECTIONS = 8
RESAMPLINGS = 2000
KEPT = 0.8
"""The share of its throughput that a remembered client keeps under a flood."""


def throughput(watch: Watch, rounds: int, seconds: int) -> bool:
    """Print the table of the floods; True when every remembered client kept its share."""
    with tempfile.TemporaryDirectory() as folder:
        lua = Path(folder) / "load.lua"
        lua.write_text(
            'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
            f'wrk.headers["X-API-Key"] = "{watch.key}"\n'
            "request = function() return wrk.format(nil, nil, nil, "
            "'{\"user_id\":\"u' .. math.random(0, 1999) .. '\"}') end\n"
        )
        url = watch.server.url + "/v1/recipes/a:recommend"
        load(url, CONNECTIONS, 1, lua)
        rates: dict[str, list[float]] = {name: [] for name in ("quiet", *FLOODS)}
        for _ in range(rounds):
            rates["quiet"].append(load(url, CONNECTIONS, seconds, lua).rate)
            for flood in FLOODS:
                with attack(flood, watch.key, watch.address):
                    time.sleep(1)
                    rates[flood].append(load(url, CONNECTIONS, seconds, lua).rate)
    print("| flood | requests/s of the remembered client | of its quiet rate |\n|---|---|---|")
    good = True
    for name, found in rates.items():
        ratio = median(rate / quiet for rate, quiet in zip(found, rates["quiet"], strict=True))
        good &= ratio >= KEPT
        print(f"| {name} | {median(found):,.0f} | {ratio:.0%} |", flush=True)
    return good


def refusal_s(client: socket.socket, key: str) -> float:
    began = time.perf_counter()
    client.sendall(HEAD + b"X-API-Key: %b\r\nContent-Length: 0\r\n\r\n" % key.encode())
    answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 401"), answer
    return time.perf_counter() - began


def timing(watch: Watch, pairs: int) -> bool:
    """Print what the times of refusals say; True when the two kinds cannot be told apart."""
    chance = random.Random(0)
    kinds = {"half right": watch.key[:21], "random": ""}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    with connect(watch.address) as client:
        for number in range(-20, pairs):
            for kind, start in chance.sample(list(kinds.items()), 2):
                began = time.monotonic()
                taken = refusal_s(client, start + new_api_key()[len(start) :])
                if number >= 0:
                    seconds[kind].append(taken)
                time.sleep(max(0.0, began + 1.5 / REFUSALS_PER_S - time.monotonic()))
    half, whole = (np.array(seconds[kind]) * 1e6 for kind in kinds)
    low, high = _interval(half, whole)
    p = mannwhitneyu(half, whole).pvalue
    print(f"\n{pairs:,} pairs of refusals")
    print(f"median: {np.median(half):,.0f} us half right, {np.median(whole):,.0f} us random")
    print(f"difference: {np.median(half) - np.median(whole):+.1f} us, in 95 of 100 from {low:+.1f} to {high:+.1f}")
    print(f"rank test: p = {p:.2f}")
    return low <= 0 <= high or p > 0.01


def _interval(own: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Where the difference of the medians lies in 95 of 100 resamplings."""
    rng = np.random.default_rng(0)
    differences = [
        np.median(rng.choice(own, len(own))) - np.median(rng.choice(other, len(other))) for _ in range(RESAMPLINGS)
    ]
    low, high = np.quantile(differences, (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement of throughput")
    parser.add_argument("--pairs", type=int, default=2000)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this benchmark loads the server with wrk: apt-get install wrk")
    print("\n".join(origin()) + "\n")
    with watched() as watch:
        kept = throughput(watch, options.rounds, options.seconds)
    with watched() as watch:
        told = timing(watch, options.pairs)
    sys.exit(0 if kept and told else 1)


if __name__ == "__main__":
    main()
