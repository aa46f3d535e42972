"""What do 100,000 refused requests a minute of one key cost the clients with other keys?

    python -m benchmarks key_refusals                     # a minute

Eight clients with a key of their own ask without pause, in turns alone and beside a client whose key may ask nothing or
one request an hour. It sends 100,000 requests a minute over 500 connections, as long as one of them waits for nothing.
Ratios are medians of those within a round. `CPU µs` is what the server used, for all, by each answer of the others. The
flood comes from a process of the same machine, so what it takes of the two cores is part of its cost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.common import origin
from benchmarks.hostile import address_of
from benchmarks.http import Running
from benchmarks.overload import Load
from benchmarks.probing import Address
from svc.serving.api.authentication import hash_api_key, new_api_key
from tests.e2e.server import Server, make_home
from tests.serving.artifacts import factor_model

A_SECOND = 100_000 / 60
CLIENTS, FLOODERS = 8, 500
POLICIES = "scoped: {recipes: []}\nlimited: {rate: 1/h, burst: 1}\n"
KINDS = ("scoped", "limited")


def request(key: str, user: int) -> bytes:
    body = f'{{"user_id":"u{user}"}}'
    head = (
        f"POST /v1/recipes/a:recommend HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def _flood(address: Address, asked: list[bytes], sent: Connection) -> None:
    load = Load(address, asked, FLOODERS)
    sent.send("ready")
    while True:
        load.open(A_SECOND, 1.0, warm_s=0.0)
        sent.send(len(load.refused))


@contextmanager
def flood(address: Address, key: str) -> Iterator[Connection]:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_flood, args=(address, [request(key, user) for user in range(100)], there))
    process.start()
    here.recv()
    try:
        yield here
    finally:
        process.kill()
        process.join()


def rate(server: Running, asked: list[bytes], seconds: float) -> tuple[float, float]:
    """Answers a second, and microseconds of the server's processor time by each."""
    load = Load(address_of(server.url), asked, CLIENTS)
    before_s = server.cpu_s()
    try:
        return load.closed(seconds, warm_s=0.5).rate, (server.cpu_s() - before_s) / load.answers * 1e6
    finally:
        load.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    print("\n".join(origin()) + "\n")
    keys = {kid: new_api_key() for kid in (*KINDS, "other")}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = make_home(folder, "a", factor_model(2_000, 5_000, 64))
        (folder / "policies.yaml").write_text(POLICIES)
        env = {
            "SVC_API_KEYS": ",".join(f"{kid}:{hash_api_key(key)}" for kid, key in keys.items()),
            "SVC_API_KEY_POLICIES": str(folder / "policies.yaml"),
        }
        started = stack.enter_context(Server(home, env=env))
        server = Running(started.url, started.process.pid)
        asked = [request(keys["other"], user) for user in range(2_000)]
        by_kind: dict[str, list[tuple[float, float]]] = {name: [] for name in ("alone", *KINDS)}
        refused: dict[str, list[int]] = {name: [] for name in KINDS}
        for _ in range(options.rounds):
            by_kind["alone"].append(rate(server, asked, options.seconds))
            for kind in KINDS:
                with flood(address_of(server.url), keys[kind]) as told:
                    time.sleep(0.5)
                    by_kind[kind].append(rate(server, asked, options.seconds))
                    while told.poll():
                        last = told.recv()
                    refused[kind].append(last)
    print("| beside | requests/s of the others | of their rate alone | CPU µs | of that alone | refused |")
    print("|---|---|---|---|---|---|")
    for name, rounds in by_kind.items():
        shares = [
            median(round_of[k] / alone[k] for round_of, alone in zip(rounds, by_kind["alone"], strict=True))
            for k in (0, 1)
        ]
        rates, costs = (median(round_of[k] for round_of in rounds) for k in (0, 1))
        last = median(refused.get(name, [0]))
        print(f"| {name} | {rates:,.0f} | {shares[0]:.0%} | {costs:,.0f} | {shares[1]:.0%} | {last:,.0f} |")


if __name__ == "__main__":
    main()
