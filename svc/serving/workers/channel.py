"""Messages between the parent and its workers, over pairs of connected Unix sockets.

The parent sends pickles, which a worker may unpickle because it trusts its parent. The parent must not trust a worker,
which handles input of clients. So a worker sends short JSON lists, and the parent accepts only those of `FROM_WORKER`.
"""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import trio

from svc.processes import SealedMemory

INLINE_BYTES = 1 << 15
"""Longest message to a worker that is sent through the socket. The content of longer messages is a memory file."""
FROM_WORKER_BYTES = 1024
"""Longest message from a worker."""
MOST_FILES = 8
"""Maximum number of memory files in one message."""
FROM_WORKER: tuple[list[type], ...] = ([int], [int, str, str])
"""Types of the messages that a worker may send.

A message is the number of an executed order, or a query. A query has a number that its answer repeats, a kind, and the
name of a recipe."""
PAUSE_S = 0.1
"""Pause before a retry, after the system lacked descriptors or memory."""
Received = tuple[Any, tuple[SealedMemory, ...]]
"""A message from the parent: the unpickled value, and the memory files that were sent with it."""
T = TypeVar("T")


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected, non-blocking sockets. Each `recv` returns exactly one message (SOCK_SEQPACKET)."""
    # Datagram sockets keep the limits of messages too, but do not show that the other process has ended.
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


async def retry(
    call: Callable[[], T], wait: Callable[[], Awaitable[None]], error: type[OSError] = BlockingIOError
) -> T:
    """Return the result of `call`. While `call` raises `error`, awaits `wait` and calls it again."""
    while True:
        with suppress(error):
            return call()
        await wait()


async def send(end: socket.socket, value: object, files: tuple[SealedMemory, ...] = ()) -> None:
    """Send a message to a worker. Waits while the system lacks descriptors. Raises OSError if the worker has ended."""
    data = pickle.dumps(value, protocol=5)
    form = b"i"
    if len(data) > INLINE_BYTES:
        content = await retry(partial(SealedMemory.of, [data]), partial(trio.sleep, PAUSE_S), OSError)
        files, data, form = (*files, content), b"", b"f"
    descriptors = [file.descriptor for file in files]
    call = partial(socket.send_fds, end, [form, data], descriptors)
    await retry(call, partial(trio.lowlevel.wait_writable, end))


async def receive(end: socket.socket) -> Received | None:
    """Return the next message from the parent, or None if the parent has ended."""
    call = partial(socket.recv_fds, end, 1 + INLINE_BYTES, MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    data, descriptors, _, _ = await retry(call, partial(trio.lowlevel.wait_readable, end))
    if not data:
        return None
    files = tuple(SealedMemory.adopt(descriptor) for descriptor in descriptors)
    if data[:1] == b"f":
        return pickle.loads(memoryview(files[-1])), files[:-1]
    return pickle.loads(data[1:]), files


def tell(end: socket.socket, *message: int | str) -> None:
    """Send a message to the parent. Raises OSError if the parent has ended.

    Does not wait, because a worker sends so few and short messages that the socket's buffer always has room.
    """
    end.send(json.dumps(message).encode())


async def hear(end: socket.socket) -> list[Any] | None:
    """Return the next message from a worker, or None if the worker has ended.

    Raises ValueError if the message is invalid, or ConnectionError if the worker has ended with unread messages.
    """
    data = await retry(partial(end.recv, FROM_WORKER_BYTES + 1), partial(trio.lowlevel.wait_readable, end))
    return parse_message(data) if data else None


def parse_message(data: bytes) -> list[Any]:
    """Return a message from a worker. Raises ValueError if it is none of FROM_WORKER."""
    if len(data) > FROM_WORKER_BYTES:
        raise ValueError("the message is too long")
    try:
        message = json.loads(data)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if not isinstance(message, list) or [type(value) for value in message] not in FROM_WORKER:
        raise ValueError("the message is of no kind that a worker sends")
    return message
