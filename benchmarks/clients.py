"""The attacks of `hostile`, each a function that goes on until `over()`; and the process that one of them runs in."""

from __future__ import annotations

import multiprocessing
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from benchmarks.servers import HEALTH, PATIENCE_S, Address, connect
from svc.serving.api.authentication import new_api_key

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
