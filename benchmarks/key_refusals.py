"""What do 100,000 refused requests a minute of one key cost the clients with other keys?

    python -m benchmarks key_refusals                     # a minute

Eight clients with a key of their own ask without pause, in turns alone and beside a client whose key may ask nothing or
one request an hour, which sends 100,000 requests a minute whatever comes back. Ratios are medians of those within a
round. The flood comes from a process of the same machine, so what it takes of the two cores is part of its cost.
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
from benchmarks.overload import Load
from benchmarks.probing import Address
from svc.serving.api.api_keys import hash_api_key, new_api_key
from tests.e2e.server import Server, make_home
from tests.serving.artifacts import factor_model

A_SECOND = 100_000 / 60
CLIENTS, FLOODERS = 8, 16
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


def rate(address: Address, asked: list[bytes], seconds: float) -> float:
    load = Load(address, asked, CLIENTS)
    try:
        return load.closed(seconds, warm_s=0.5).rate
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
        address = address_of(stack.enter_context(Server(home, env=env)).url)
        asked = [request(keys["other"], user) for user in range(2_000)]
        rates: dict[str, list[float]] = {name: [] for name in ("alone", *KINDS)}
        refused: dict[str, list[int]] = {name: [] for name in KINDS}
        for _ in range(options.rounds):
            rates["alone"].append(rate(address, asked, options.seconds))
            for kind in KINDS:
                with flood(address, keys[kind]) as told:
                    time.sleep(0.5)
                    rates[kind].append(rate(address, asked, options.seconds))
                    while told.poll():
                        last = told.recv()
                    refused[kind].append(last)
    print("| beside | requests/s of the others | of their rate alone | refused |\n|---|---|---|---|")
    for name, found in rates.items():
        ratio = median(one / alone for one, alone in zip(found, rates["alone"], strict=True))
        print(f"| {name} | {median(found):,.0f} | {ratio:.0%} | {median(refused.get(name, [0])):,.0f} |")


if __name__ == "__main__":
    main()
