"""What do hostile clients, floods of wrong keys and refused requests cost the others?"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.stats import mannwhitneyu

from benchmarks import overload
from benchmarks.common import forget_peak, origin, status_bytes
from benchmarks.servers import HEALTH, PATIENCE_S, Address, Running, address_of, connect, floor, load, p99, probing
from svc.serving.api.authentication import REFUSALS_PER_S, hash_api_key, new_api_key
from tests.e2e.load import Load, only_200
from tests.e2e.server import Server, make_home
from tests.serving.artifacts import factor_model

ANSWER_BYTES = 40
"""About those of `/v1/health`."""
COLUMNS = (
    *("attack", "bare p99 ms", "health p99 ms, quiet", "attacked", "others p99 ms, quiet", "attacked"),
    *("others answered", "failed", "memory above before, MB", "files open"),
)


MANY = 10_000
SOME = 500
BODY_BYTES = 128 << 20
LARGE_BODIES = 8
Over = Callable[[], bool]

HEAD = b"POST /v1/recipes/a:recommend HTTP/1.1\r\nHost: localhost\r\n"


def hold(address: Address, over: Over, count: int, words: bytes, drip: bytes = b"") -> None:
    """Keep `count` connections open that have said `words`, each saying `drip` twice a second; come again when cut."""
    held: list[socket.socket] = []
    while not over():
        while len(held) < count and not over():
            with suppress(OSError):
                client = connect(address)
                client.sendall(words)
                held.append(client)
        began = time.monotonic()
        for client in held if drip else []:
            try:
                client.sendall(drip)
            except OSError:
                client.close()
        held = [client for client in held if client.fileno() >= 0]
        time.sleep(max(0.0, began + 0.5 - time.monotonic()))


def idle(address: Address, over: Over) -> None:
    hold(address, over, MANY, b"")


def slow_headers(address: Address, over: Over) -> None:
    hold(address, over, SOME, HEAD, b"X")


def slow_bodies(address: Address, over: Over) -> None:
    hold(address, over, SOME, HEAD + b"X-API-Key: %b\r\nContent-Length: 1000000\r\n\r\n{" % _key(), b" ")


def half_closed(address: Address, over: Over) -> None:
    """Clients that say a part of a request and shut their sending side, again and again."""
    while not over():
        for words in (HEAD, HEAD + b"Content-Length: 100\r\n\r\n{", HEALTH):
            with suppress(OSError), connect(address) as client:
                client.sendall(words)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass


def unread(address: Address, over: Over) -> None:
    """Pipelined requests whose answers nobody takes."""
    body = b'{"user_id":"u1","limit":1000}'
    request = HEAD + b"X-API-Key: %b\r\nContent-Length: %d\r\n\r\n" % (_key(), len(body)) + body
    held: list[socket.socket] = []
    while not over():
        if len(held) < SOME // 10:
            client = connect(address)
            client.setblocking(False)
            held.append(client)
        for client in held:
            with suppress(OSError):
                client.send(request * 50)
        time.sleep(0.05)


def pipelined(address: Address, over: Over) -> None:
    """One connection that asks a hundred times at once, and reads."""
    with connect(address) as client:
        while not over():
            client.sendall(HEALTH * 100)
            answers = b""
            while answers.count(b'"status"') < 100:
                answers += client.recv(1 << 20)


def malformed(address: Address, over: Over) -> None:
    """Lengths in conflict, chunks that are none, headers without end, other protocols, noise."""
    chance = random.Random(0)
    kinds = [
        HEAD + b"Content-Length: 16\r\nContent-Length: 17\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000,
        HEAD + b"X-Big: " + b"x" * 1_000_000,
        HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)) + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        HEAD + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAM\r\n\r\n",
        chance.randbytes(4000) + b"\r\n\r\n",
    ]
    while not over():
        with suppress(OSError), connect(address) as client:
            client.settimeout(1)
            client.sendall(chance.choice(kinds))
            client.recv(65536)


def odd_json(address: Address, over: Over) -> None:
    """Deep, huge, doubled and undecodable values in bodies of ordinary size, from a client with a key."""
    kinds = [
        b'{"user_id":' + b"[" * 50_000,
        b'{"user_id":"u1","limit":' + b"9" * 50_000 + b"}",
        b'{"user_id":"u1","limit":1e999999}',
        b'{"user_id":"u1","limit":NaN}',
        b'{"user_id":"u1","user_id":"u2"}',
        b'{"user_features":{"a":' + b"1" * 60_000 + b"}}",
        '{"user_id":"u1"}'.encode("utf-16"),
        b'{"user_id":"\xff\xfe\xc0\x80"}',
        b'{"user_id":"\\ud800"}',
        b"\x1f\x8b\x08\x00" + bytes(1000),
    ]
    with connect(address) as client:
        while not over():
            for body in kinds:
                client.sendall(HEAD + b"X-API-Key: %b\r\nContent-Length: %d\r\n\r\n" % (_key(), len(body)) + body)
                client.recv(65536)


def bodies(address: Address, over: Over) -> None:
    """Eight bodies of 128 MiB at a time, from clients with a key: one long text, tiny values, spaces."""
    send_large(
        address,
        over,
        b'{"user_id":"' + b"x" * (BODY_BYTES - 20) + b'"}',
        b'{"requests":[' + b"{}," * (BODY_BYTES // 3 - 10) + b"{}]}",
        b'{"user_id":"u1","exclude_items":[' + b'"i",' * (BODY_BYTES // 4 - 10) + b'"i"]}',
        b'{"user_id":"u1"}' + b" " * (BODY_BYTES - 16),
    )


def crafted_bodies(address: Address, over: Over) -> None:
    """The same, of bodies that are refused only once they have been parsed."""
    send_large(address, over, b'{"user_id":"u1","exclude_items":["' + (b"x" * 200 + b'","') * 660_000 + b'"]}')


def send_large(address: Address, over: Over, *shapes: bytes) -> None:
    def send(number: int) -> None:
        body = shapes[number % len(shapes)]
        while not over():
            with suppress(OSError), connect(address) as client:
                client.sendall(HEAD + b"X-API-Key: %b\r\nContent-Length: %d\r\n\r\n" % (_key(), len(body)))
                client.sendall(body)
                client.recv(65536)

    _all_at_once(send, LARGE_BODIES)


def wrong_keys(address: Address, over: Over) -> None:
    """As many keys of the right form as are answered, from 64 connections."""
    ask_with(address, over, new_api_key)


def malformed_keys(address: Address, over: Over) -> None:
    """The same with values that are no keys."""
    ask_with(address, over, lambda: "x" * random.randint(1, 2000))


def ask_with(address: Address, over: Over, key: Callable[[], str]) -> None:
    def ask(_: int) -> None:
        while not over():
            with suppress(OSError), connect(address) as client:
                while not over():
                    client.sendall(HEAD + b"X-API-Key: %b\r\nContent-Length: 0\r\n\r\n" % key().encode())
                    if not client.recv(65536):
                        break

    _all_at_once(ask, 64)


def _all_at_once(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS: dict[str, Callable[[Address, Over], None]] = {
    attack.__name__: attack
    for attack in (
        idle,
        slow_headers,
        slow_bodies,
        half_closed,
        unread,
        pipelined,
        malformed,
        odd_json,
        bodies,
        crafted_bodies,
        wrong_keys,
        malformed_keys,
    )
}
_environment: dict[str, bytes] = {}


def _key() -> bytes:
    return _environment["key"]


def attacker(name: str, key: str, address: Address, ready: Callable[[], None], over: Over) -> None:
    """The body of the attacking process."""
    _environment["key"] = key.encode()
    most_files()
    ready()
    ATTACKS[name](address, over)


def most_files() -> int:
    """Raise this process's limit of open files, and say what it is now."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


@contextmanager
def attack(name: str, key: str, address: Address) -> Iterator[None]:
    """The attack, in a process of its own, for as long as the block."""
    context = multiprocessing.get_context("spawn")
    ready, over = context.Event(), context.Event()
    process = context.Process(target=attacker, args=(name, key, address, ready.set, over.is_set))
    process.start()
    ready.wait(PATIENCE_S)
    try:
        yield
    finally:
        over.set()
        process.join(2 * PATIENCE_S)
        process.kill()
        process.join()


class Seen(NamedTuple):
    """Of one span of time: milliseconds at the 99th percentile, and requests of the others."""

    health_ms: float
    others_ms: float
    answered: int
    failed: int
    connections: int


class Watch:
    """A server with a key, clients that use it, and what becomes of both."""

    def __init__(self, server: Server, key: str) -> None:
        self.server = server
        self.key = key
        self.address = address_of(server.url)

    def look(self, seconds: float, connections: int = 0) -> Seen:
        """What is seen for that long, and until there are that many connections, if that takes longer."""
        asked = [("/v1/recipes/a:recommend", {"user_id": f"u{number}"}) for number in range(4)]
        headers = {"X-API-Key": self.key}
        load = Load(self.server.url, asked, clients=4, judge=only_200, headers=headers, pause_s=0.05)
        most = 0
        with probing(self.address) as health, load:
            ends = time.monotonic() + seconds
            late = ends + PATIENCE_S
            while time.monotonic() < ends or (most < connections and time.monotonic() < late):
                time.sleep(0.5)
                most = max(most, self._connections())
        tally = load.tally
        return Seen(p99(health), p99(tally.seconds), tally.answered, len(tally.failures) + tally.refused, most)

    def _connections(self) -> int:
        return len(list(Path(f"/proc/{self.server.process.pid}/fd").iterdir()))

    def attacked(self, name: str, seconds: float) -> tuple[Seen, int]:
        """What was seen under the attack, and the peak of memory above the state before, in bytes."""
        pid = self.server.process.pid
        forget_peak(pid)
        before = status_bytes(pid, "VmRSS")
        with attack(name, self.key, self.address):
            seen = self.look(seconds, MANY if name == "idle" else 0)
        return seen, status_bytes(pid, "VmHWM") - before


@contextmanager
def watched() -> Iterator[Watch]:
    """A server of one model, with its default limits."""
    key = new_api_key()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recipes = make_home(folder, "a", factor_model(2_000, 5_000, 64))
        env = {"SVC_API_KEYS": f"hostile:{hash_api_key(key)}", "SVC_LOG_LEVEL": "info"}
        yield Watch(stack.enter_context(Server(recipes, env=env)), key)


def attacks(parser: argparse.ArgumentParser) -> None:
    """What do hostile clients cost a server, and do the others notice?

        python -m benchmarks hostile                          # every attack, some four minutes
        python -m benchmarks hostile --attacks idle,bodies --seconds 20

    For each attack, in one run: a quiet time, then as long under the attack, which comes from a process of its own.
    All the while four clients with a key ask for recommendations and `/v1/health` is asked a hundred times a second. A
    row says the 99th percentile of health quiet and attacked, the same of the others' answers, how many of those
    failed, the peak of the server's memory above what it had before, and its open connections at their most. Before it
    stands what the machine itself makes of a hundred requests a second: the 99th percentile of a bare ASGI application
    on the same HTTP library, asked by nobody else. The program ends with 1 if a request of the others failed or a
    server did not end with 0.
    """
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="some of them, separated by commas")
    parser.add_argument("--seconds", type=float, default=8.0, help="of quiet, and of each attack")
    options = parser.parse_args()
    print("\n".join(origin()))
    print(f"open files: at most {most_files():,} a process\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    failed = 0
    for name in options.attacks.split(","):
        with floor(ANSWER_BYTES) as bare, probing(address_of(bare.url)) as machine:
            time.sleep(options.seconds / 2)
        with watched() as watch:
            watch.look(1)
            quiet = watch.look(options.seconds)
            seen, peak = watch.attacked(name, options.seconds)
            failed += seen.failed + quiet.failed + (watch.server.stop() != 0)
        ms = (p99(machine), quiet.health_ms, seen.health_ms, quiet.others_ms, seen.others_ms)
        counts = (seen.answered, seen.failed, round(peak / 1e6), seen.connections)
        print(f"| {' | '.join([name, *(f'{one:.1f}' for one in ms), *map(str, counts)])} |", flush=True)
    sys.exit(1 if failed else 0)


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


def wrong_keys_and_times(parser: argparse.ArgumentParser) -> None:
    """Do floods of wrong keys slow clients with a good one, and does the time of a refusal tell anything about a key?

        python -m benchmarks hostile keys                       # a good minute; needs wrk
        python -m benchmarks hostile keys --pairs 10000         # timing to a finer grain

    Throughput: wrk asks over eight connections with a key that the server remembers, in turns without and under each
    flood, which comes over 64 connections from a process of its own. Ratios are medians of those within a round.

    Timing: wrong keys one after the other over one connection, of two kinds in random order: the first half that of a
    real key, or all random. Shown is the difference of the medians with the interval that holds it in 95 of 100
    resamplings, and the p-value of a rank test. A difference would let a key be guessed piece by piece. The attempts
    stay below the rate from which refusals are slowed down. The program ends with 1 if a flood leaves less than 80% of
    the rate, or if the two kinds differ.
    """
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement of throughput")
    parser.add_argument("--pairs", type=int, default=2000)
    options = parser.parse_args()
    print("\n".join(origin()) + "\n")
    with watched() as watch:
        kept = throughput(watch, options.rounds, options.seconds)
    with watched() as watch:
        told = timing(watch, options.pairs)
    sys.exit(0 if kept and told else 1)


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
    load = overload.Load(address, asked, FLOODERS)
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


def rate_and_cost(server: Running, asked: list[bytes], seconds: float) -> tuple[float, float]:
    """Answers a second, and microseconds of the server's processor time by each."""
    load = overload.Load(address_of(server.url), asked, CLIENTS)
    before_s = server.cpu_s()
    try:
        return load.closed(seconds, warm_s=0.5).rate, (server.cpu_s() - before_s) / load.answers * 1e6
    finally:
        load.close()


def refusals(parser: argparse.ArgumentParser) -> None:
    """What do 100,000 refused requests a minute of one key cost the clients with other keys?

        python -m benchmarks hostile refusals                     # a minute

    Eight clients with a key of their own ask without pause, in turns alone and beside a client whose key may ask
    nothing or one request an hour. It sends 100,000 requests a minute over 500 connections, as long as one of them
    waits for nothing. Ratios are medians of those within a round. `CPU µs` is what the server used, for all, by each
    answer of the others. The flood comes from a process of the same machine, so what it takes of the two cores is part
    of its cost.
    """
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
            by_kind["alone"].append(rate_and_cost(server, asked, options.seconds))
            for kind in KINDS:
                with flood(address_of(server.url), keys[kind]) as told:
                    time.sleep(0.5)
                    by_kind[kind].append(rate_and_cost(server, asked, options.seconds))
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


CASES = {"attacks": attacks, "keys": wrong_keys_and_times, "refusals": refusals}
