"""Guarded HTTP: caps, redirects, addresses, certificates and faults, against real servers on loopback."""

from __future__ import annotations

import io
import ipaddress
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from svc import net
from svc.errors import FetchError, FetchForbidden, FetchStatus, FetchTimedOut, FetchTooLarge
from svc.net import HttpRules, exchange
from tests.artifact.conftest import web_server

RULES = HttpRules(timeout_s=5, allow_private=True)
Answer = Callable[[BaseHTTPRequestHandler], None]


def reply(handler: BaseHTTPRequestHandler, body: bytes = b"", status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def get(url: str, cap: int = 1000, rules: HttpRules = RULES, **options: Any) -> bytes:
    with exchange("GET", url, rules, **options) as response:
        response.require(200)
        return b"".join(response.chunks(cap))


def test_a_body_up_to_the_cap_is_read() -> None:
    """A body of exactly the cap is read whole. A longer one is refused by its declared length."""
    with web_server(lambda h: reply(h, b"x" * 1000)) as base:
        assert get(base, 1000) == b"x" * 1000
        with pytest.raises(FetchTooLarge, match="has 1000 bytes") as caught:
            get(base, 999)
    assert caught.value.fields == {"bytes_read": 0, "cap": 999}


def test_a_body_without_length_is_cut_off_at_the_cap() -> None:
    """The server sends without end, and reading stops soon after the cap."""

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        with pytest.raises(OSError):
            while True:
                handler.wfile.write(b"x" * 65536)
        handler.close_connection = True

    with web_server(endless) as base, pytest.raises(FetchTooLarge) as caught:
        get(base, 100_000)
    assert caught.value.fields["bytes_read"] < 1_000_000


def test_compressed_bodies_are_never_expanded() -> None:
    """The bytes stay as they were sent, so a server cannot send a decompression bomb."""
    with web_server(lambda h: reply(h, b"\x1f\x8bbytes", Content_Encoding="gzip")) as base:
        assert get(base) == b"\x1f\x8bbytes"


def test_the_request_asks_for_plain_bytes_and_names_the_host() -> None:
    """The Host header has the host name of the URL, not the connected address."""
    seen: dict[str, str] = {}

    def note(handler: BaseHTTPRequestHandler) -> None:
        seen.update(handler.headers)
        reply(handler)

    with web_server(note) as base:
        get(base.replace("127.0.0.1", "localhost"))
    assert seen["Host"].startswith("localhost:")
    assert seen["Accept-Encoding"] == "identity"


def chain(length: int) -> Answer:
    """Return a handler that redirects /n to /n+1, up to `length`."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        step = int(handler.path.strip("/") or 0)
        if step < length:
            reply(handler, status=302, Location=f"/{step + 1}?token=SECRET")
        else:
            reply(handler, b"arrived")

    return answer


def test_five_redirects_are_followed_and_reported() -> None:
    """Each redirect is reported with both URLs, without their queries."""
    heard: list[tuple[str, str, int]] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.path = handler.path.partition("?")[0]
        chain(5)(handler)

    with web_server(answer) as base:
        assert get(f"{base}/0", on_redirect=lambda *hop: heard.append(hop)) == b"arrived"
        assert heard == [(f"{base}/{n}", f"{base}/{n + 1}", 302) for n in range(5)]


def test_a_sixth_redirect_is_refused() -> None:
    """A loop of redirects ends with this error. The refused redirect is reported too."""
    heard: list[int] = []
    with (
        web_server(lambda h: reply(h, status=307, Location="/again")) as base,
        pytest.raises(FetchForbidden, match="more than 5"),
    ):
        get(base, on_redirect=lambda *hop: heard.append(hop[2]))
    assert heard == [307] * 6


@pytest.mark.parametrize(
    "target", ["https://127.0.0.1/", "ftp://127.0.0.1/", "file:///etc/passwd", "http://u:p@127.0.0.1/"]
)
def test_redirects_stay_in_their_scheme_and_carry_no_credentials(target: str) -> None:
    """A redirect to another scheme or with user-info is refused. The error hides the user-info."""
    with web_server(lambda h: reply(h, status=301, Location=target)) as base, pytest.raises(FetchForbidden) as caught:
        get(base)
    assert "u:p" not in str(caught.value)


def test_a_redirect_without_a_target_is_an_error() -> None:
    """The error says that the redirect leads nowhere."""
    with web_server(lambda h: reply(h, status=302)) as base, pytest.raises(FetchError, match="nowhere"):
        get(base)


def test_redirects_of_writes_are_not_followed() -> None:
    """The redirect is the answer to a PUT, so its body is sent to no other URL."""
    with (
        web_server(lambda h: reply(h, status=307, Location="/other")) as base,
        exchange("PUT", base, RULES, body=io.BytesIO(b"x")) as response,
        pytest.raises(FetchStatus, match="status 307"),
    ):
        response.require(200)


def test_private_destinations_are_refused_on_every_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public host cannot redirect to a private address."""
    closed = HttpRules(timeout_s=5, allow_private=False)
    with web_server(lambda h: reply(h, status=302, Location="http://169.254.169.254/latest")) as base:
        with pytest.raises(FetchForbidden, match="SVC_HTTP_ALLOW_PRIVATE"):
            get(base, rules=closed)
        public = net.is_public
        monkeypatch.setattr(net, "is_public", lambda address: address == "127.0.0.1" or public(address))
        with pytest.raises(FetchForbidden, match=r"169\.254\.169\.254 is private"):
            get(base, rules=closed)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"),
        *("10.1.2.3", "[fe80::1]", "[fec0::1]", "[64:ff9b:1::a00:1]", "[::127.0.0.1]", "192.0.0.192"),
    ],
)
def test_other_spellings_of_private_hosts_are_refused(host: str) -> None:
    """The resolved address decides, not the spelling of the host.

    Addresses that some versions of Python call global are refused, too.
    """
    with pytest.raises(FetchForbidden, match="private"):
        get(f"http://{host}:1/", rules=HttpRules(timeout_s=1, allow_private=False))


PUBLIC = ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")


@pytest.mark.parametrize("address", [*PUBLIC, "fe80::1%eth0", "100.64.0.1"])
def test_public_and_private_addresses_are_distinguished(address: str) -> None:
    """Only addresses outside the special networks are public, also inside IPv6 addresses."""
    assert net.is_public(address) is (address in PUBLIC)


CLOSED_NETWORKS = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4"),
    *("240.0.0.0/4", "::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "100::/64", "2001:db8::/32", "3fff::/20"),
    *("5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "4000::/3", "8000::/1"),
)


@pytest.mark.parametrize("network", CLOSED_NETWORKS)
def test_no_address_of_a_special_network_is_public(monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    """First, last and random addresses are tried, also inside IPv6. Python's `is_global` does not affect the result."""
    for of in (ipaddress.IPv4Address, ipaddress.IPv6Address):
        monkeypatch.setattr(of, "is_global", property(lambda _: True))
        monkeypatch.setattr(of, "is_private", property(lambda _: False))
    whole = ipaddress.ip_network(network)
    generator = random.Random(network)
    numbers = [0, whole.num_addresses - 1, *(generator.randrange(whole.num_addresses) for _ in range(100))]
    for address in (whole[number] for number in numbers):
        assert not net.is_public(str(address))
        if isinstance(address, ipaddress.IPv4Address):
            hexadecimal = f"{int(address) >> 16:x}:{int(address) & 0xFFFF:x}"
            for form in (f"::ffff:{address}", f"::{address}", f"64:ff9b::{hexadecimal}", f"2002:{hexadecimal}::1"):
                assert not net.is_public(form), form


@pytest.mark.parametrize("length", [net.MAX_LOCATION_CHARACTERS + 1, 60_000])
def test_a_redirect_to_a_very_long_address_is_refused_at_once(length: int) -> None:
    """Only its length is checked, and the message does not repeat it."""
    with web_server(lambda h: reply(h, status=302, Location="a" * length)) as base:
        began = time.process_time()
        with pytest.raises(FetchError, match=f"an address of {length} characters") as caught:
            get(base)
    assert time.process_time() - began < 2
    assert len(str(caught.value)) < 200


def test_the_checked_address_is_the_connected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name is resolved once, so a second answer of DNS cannot replace the checked address."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def rebinding(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "rebind.example":
            asked.append(host)
            host = "127.0.0.1" if len(asked) == 1 else "127.0.0.99"
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with web_server(lambda h: reply(h, b"first")) as base:
        assert get(base.replace("127.0.0.1", "rebind.example")) == b"first"
    assert asked == ["rebind.example"]


def test_the_next_address_is_tried_when_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with several addresses is reached at the first one that accepts."""
    with web_server(lambda h: reply(h, b"x")) as base:
        port = int(base.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *_, **__: [entry for entry in found if host in ("many", entry[4][0])]
        )
        assert get(f"http://many:{port}/") == b"x"


@pytest.mark.parametrize(
    "url", ["ftp://h/x", "http:///x", "nothing", "http://[bad", "http://h:99999999/", "http://u:SECRET@h/"]
)
def test_malformed_urls_are_refused(url: str) -> None:
    """Other schemes, missing hosts, broken ports and user-info are refused. The error shows no secret of the URL."""
    with pytest.raises(FetchError) as caught:
        get(url)
    assert "SECRET" not in str(caught.value)


def test_refused_connections_unknown_hosts_and_cut_bodies_are_clear_errors() -> None:
    """Each fault names the URL without its query."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:\d+/x cannot be fetched: ConnectError") as caught:
            get(f"http://127.0.0.1:{unused.getsockname()[1]}/x?token=SECRET")
    assert "SECRET" not in str(caught.value)
    with pytest.raises(FetchError, match="no address"):
        get("http://nowhere.invalid/")
    with (
        web_server(lambda h: reply(h, b"half", Content_Length="8", Connection="close")) as base,
        pytest.raises(FetchError, match="RemoteProtocolError"),
    ):
        get(base)


def test_a_silent_server_causes_a_timeout() -> None:
    """A request without an answer ends after its timeout."""
    rules = HttpRules(timeout_s=0.1, allow_private=True)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(FetchTimedOut):
        get(f"http://127.0.0.1:{silent.getsockname()[1]}/", rules=rules)


def test_a_slow_trickle_causes_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that arrives below the minimum rate ends with a timeout."""
    clock = iter(range(0, 10_000, 3))
    monkeypatch.setattr(net.time, "monotonic", lambda: float(next(clock)))

    class Trickle(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b"x"

    response = net.RemoteResponse(httpx.Response(200, stream=Trickle()), httpx.URL("http://h/"), RULES)
    with pytest.raises(FetchTimedOut, match="too slow"):
        for _ in response.chunks(10_000):
            pass


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a private certificate authority that this process trusts through SSL_CERT_FILE."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return authority


def tls_for(authority: Any, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_tls_is_checked_against_the_name_although_the_address_is_pinned(authority: Any) -> None:
    """A certificate for the host's name is accepted. One for another name is refused."""
    with web_server(lambda h: reply(h, b"private"), context=tls_for(authority, "localhost")) as base:
        assert get(base.replace("127.0.0.1", "localhost")) == b"private"
        with pytest.raises(FetchError, match="CERTIFICATE_VERIFY_FAILED"):
            get(base)


def test_trusted_authorities_are_read_once_for_each_value_of_their_variables(
    authority: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them takes 20 ms. A process that changes SSL_CERT_FILE or SSL_CERT_DIR reads the new authorities."""
    made: list[None] = []

    def trusting() -> ssl.SSLContext:
        made.append(None)
        return ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))

    monkeypatch.setattr(httpx, "create_ssl_context", trusting)
    with web_server(lambda h: reply(h, b"private"), context=tls_for(authority, "localhost")) as base:
        for number, name in enumerate(("SSL_CERT_FILE", "SSL_CERT_DIR"), start=1):
            monkeypatch.setenv(name, str(tmp_path / name))
            for _ in range(2):
                assert get(base.replace("127.0.0.1", "localhost")) == b"private"
            assert len(made) == number


def test_an_unknown_authority_is_not_trusted(authority: Any) -> None:
    """A certificate that such an authority signed is refused."""
    with (
        web_server(lambda h: reply(h, b"x"), context=tls_for(trustme.CA(), "localhost")) as base,
        pytest.raises(FetchError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        get(base.replace("127.0.0.1", "localhost"))
