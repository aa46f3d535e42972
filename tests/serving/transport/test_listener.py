"""The addresses on which the server may listen."""

from __future__ import annotations

import socket

import pytest

from svc.errors import ConfigError
from svc.serving.transport.listener import bind, check_exposure, listen, stop


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    """No other machine can reach it."""
    check_exposure(host, has_api_keys=False, insecure_no_auth=False)


def test_other_addresses_need_keys_or_the_flag() -> None:
    """The refusal names the setting and the way out."""
    with pytest.raises(ConfigError, match="SVC_API_KEYS"):
        check_exposure("0.0.0.0", has_api_keys=False, insecure_no_auth=False)
    check_exposure("0.0.0.0", has_api_keys=True, insecure_no_auth=False)
    check_exposure("0.0.0.0", has_api_keys=False, insecure_no_auth=True)


def test_port_zero_takes_any_free_one() -> None:
    """Clients are refused until the socket listens."""
    with bind("127.0.0.1", 0, unread_timeout_s=30) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert listen(listener) == ("127.0.0.1", port)
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_port_in_use_is_one_clear_error() -> None:
    """The message has the address and the reason."""
    with bind("127.0.0.1", 0, unread_timeout_s=30) as listener:
        _, port = listen(listener)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: address already in use"):
            bind("127.0.0.1", port, unread_timeout_s=30)


def test_of_two_servers_that_start_together_only_one_listens() -> None:
    """Both can bind while neither listens. The second one to listen raises the error."""
    with bind("127.0.0.1", 0, unread_timeout_s=30) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port, unread_timeout_s=30) as second:
            listen(first)
            with pytest.raises(ConfigError, match="address already in use"):
                listen(second)


def test_a_host_that_does_not_exist_is_a_configuration_error() -> None:
    """It is not a traceback."""
    with pytest.raises(ConfigError, match="cannot be resolved"):
        bind("host.invalid", 0, unread_timeout_s=30)


def test_stop_accepts_connected_clients_and_refuses_later_ones() -> None:
    """Later clients are refused at once."""
    with bind("127.0.0.1", 0, unread_timeout_s=30) as listener:
        address = listen(listener)
        listener.setblocking(False)
        with socket.create_connection(address) as client:
            (accepted,) = stop(listener)
            with accepted:
                accepted.sendall(b"well")
                assert client.recv(4) == b"well"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
