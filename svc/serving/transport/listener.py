"""The listening socket, and the addresses that it may have."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket

from svc.errors import ConfigError

BACKLOG = 1024
_holding_lock = ctypes.PyDLL(None)


def check_exposure(host: str, *, has_api_keys: bool, insecure_no_auth: bool) -> None:
    """Raise `ConfigError` if other machines could use the server without an API key.

    `insecure_no_auth` permits that. The caller admits it in a development environment only.
    """
    if has_api_keys or insecure_no_auth or _is_loopback(host):
        return
    raise ConfigError(
        f"SVC_API_KEYS is empty, so only loopback may be bound, not {host}: set SVC_API_KEYS "
        "(`svc keygen --type api`) or bind 127.0.0.1; in development --insecure-no-auth lifts this"
    )


def _is_loopback(host: str) -> bool:
    return all(ipaddress.ip_address(address).is_loopback for _, address in _resolve(host, 0))


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"the host {host!r} cannot be resolved: {error.strerror}") from None
    addresses = [(family, str(address[0]).partition("%")[0]) for family, _, _, _, address in resolved]
    return sorted(addresses, key=lambda pair: pair[0] != socket.AF_INET)


def bind(host: str, port: int, *, unread_timeout_s: float) -> socket.socket:
    """Return a TCP socket bound to an address. Port 0 takes any free port. Raises `ConfigError`.

    The socket does not listen yet, so clients are refused at once instead of waiting for the models. A client that
    leaves an answer unread for `unread_timeout_s` loses its connection.
    """
    family, address = _resolve(host, port)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unread_timeout_s * 1000))
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise _unavailable(host, port, error) from None
    return listener


def listen(listener: socket.socket) -> tuple[str, int]:
    """Accept connections from now on, and return the address.

    Raises `ConfigError` if another process listens there.
    """
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise _unavailable(host, port, error) from None
    return host, port


def _unavailable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0).lower()}")


def stop(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections in the kernel's queue, and refuse all later ones.

    The calls keep the interpreter's lock. With Python's own calls a scoring thread may run for milliseconds between the
    last accept and the close, and the kernel resets clients that connect meanwhile.
    """
    number, accepted = listener.fileno(), []
    while (connected := _holding_lock.accept4(number, None, None, socket.SOCK_CLOEXEC)) >= 0:
        accepted.append(connected)
    _holding_lock.shutdown(number, socket.SHUT_RDWR)
    return [socket.socket(fileno=connected) for connected in accepted]
