"""HTTP and HTTPS clients for data, metadata and artifacts, limited to permitted addresses.

Every hop is resolved once, all its addresses are checked, and the connection goes to the address that was checked.
Redirects are followed by hand, for GET and HEAD only, within one scheme. Proxies of the environment are not used,
because svc cannot check addresses behind a proxy. Certificates are checked against the usual authorities, or against
the authorities in `SSL_CERT_FILE` or `SSL_CERT_DIR`.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, Final, NamedTuple

import httpx

from svc.errors import FetchError, FetchForbidden, FetchStatus, FetchTimedOut, FetchTooLarge
from svc.settings import Settings

MAX_REDIRECTS: Final = 5
LEAST_BYTES_PER_SECOND: Final = 1024
"""Lowest average speed of a body that takes longer than the timeout."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MAX_LOCATION_CHARACTERS: Final = 8192
"""A redirect to a longer address is refused before anything else looks at it."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""The IPv6 addresses of the open internet. All others are refused without being listed."""
_CLOSED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        # The special-purpose registries of IANA, listed here because Python's own table differs between its versions.
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "64:ff9b:1::/48", "100::/64", "::/96"),
        *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
)

OnRedirect = Callable[[str, str, int], None]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class HttpRules:
    """Limits of HTTP exchanges.

    `timeout_s` limits each step: connecting, one wait for bytes, or one write. `allow_private` permits addresses that
    are not of the open internet.
    """

    timeout_s: float
    allow_private: bool

    @classmethod
    def of(cls, settings: Settings) -> HttpRules:
        return cls(settings.http_timeout_s, settings.http_allow_private)


class _Request(NamedTuple):
    method: str
    headers: Mapping[str, str]
    body: BinaryIO | None


class RemoteResponse:
    """A final answer whose body has not been read yet. Use it inside the block of `exchange`."""

    def __init__(self, response: httpx.Response, url: httpx.URL, rules: HttpRules) -> None:
        self._response = response
        self._rules = rules
        self.url = plain(url)
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    @property
    def length(self) -> int | None:
        """Return the length of the body, or None if the server does not state it."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() else None

    def require(self, *statuses: int) -> None:
        """Raise FetchStatus unless the status is one of `statuses`."""
        if self.status not in statuses:
            raise FetchStatus(f"{self.url} answered with status {self.status}", fields={"status": self.status})

    def chunks(self, max_bytes: int) -> Iterator[bytes]:
        """Yield the body as it was sent, never decompressed.

        Raises FetchTooLarge before the first byte if the length is known, else at the chunk that exceeds the cap.
        Raises FetchTimedOut if the server is silent or too slow, and FetchError for a body that is cut.
        """
        if (self.length or 0) > max_bytes:
            raise self._too_large(0, max_bytes)
        read, started = 0, time.monotonic()
        with _naming_url(self.url):
            # Decompressed bytes would let a small answer fill the memory.
            for chunk in self._response.iter_raw():
                read += len(chunk)
                if read > max_bytes:
                    raise self._too_large(read, max_bytes)
                # The timeout of httpx limits one wait for bytes. A server that sends a byte each time would go on for
                # ever.
                elapsed = time.monotonic() - started
                if elapsed > self._rules.timeout_s and read < elapsed * LEAST_BYTES_PER_SECOND:
                    raise FetchTimedOut(f"{self.url} is too slow: {read} bytes in {elapsed:.0f} s")
                yield chunk

    def _too_large(self, read: int, cap: int) -> FetchTooLarge:
        told = f"has {self.length} bytes" if self.length is not None else f"goes on after {read} bytes"
        return FetchTooLarge(f"{self.url} {told}, but at most {cap} are read", fields={"bytes_read": read, "cap": cap})


@contextmanager
def exchange(
    method: str,
    url: str,
    rules: HttpRules,
    *,
    headers: Mapping[str, str] | None = None,
    body: BinaryIO | None = None,
    on_redirect: OnRedirect | None = None,
) -> Iterator[RemoteResponse]:
    """Send a request and yield its final answer.

    The connection is closed at the end of the block. `on_redirect(from_, to, status)` is called for each redirect,
    before it is checked. `body` is sent from its start. Raises FetchError or a subclass. Messages never hold a query or
    user-info.
    """
    timeout = httpx.Timeout(rules.timeout_s)
    asked, hop = _Request(method, headers or {}, body), _check(_parse(url))
    with httpx.Client(verify=_trust(), timeout=timeout, trust_env=False, follow_redirects=False) as client:
        for _ in range(MAX_REDIRECTS + 1):
            response = _send(client, asked, hop, rules)
            try:
                if response.status_code not in _REDIRECTS or method not in ("GET", "HEAD"):
                    yield RemoteResponse(response, hop, rules)
                    return
                hop = _next_hop(response, hop, on_redirect)
            finally:
                response.close()
    raise FetchForbidden(f"{plain(_parse(url))} was redirected more than {MAX_REDIRECTS} times")


def plain(url: httpx.URL) -> str:
    """Return the URL without its possibly secret parts: user-info, query and fragment."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def _parse(url: str) -> httpx.URL:
    try:
        return httpx.URL(url)
    except httpx.InvalidURL:
        raise FetchError("the text is not a URL") from None


def _check(url: httpx.URL) -> httpx.URL:
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchForbidden(f"{plain(url)} is not an http or https URL")
    if url.userinfo:
        raise FetchForbidden(f"{plain(url)} carries user-info, which is refused")
    return url


def _next_hop(response: httpx.Response, hop: httpx.URL, on_redirect: OnRedirect | None) -> httpx.URL:
    location = response.headers.get("location", "")
    if len(location) > MAX_LOCATION_CHARACTERS:
        raise FetchError(f"{plain(hop)} answered with a redirect to an address of {len(location)} characters")
    try:
        target = hop.join(location) if location else None
    except httpx.InvalidURL:
        target = None
    if target is None:
        raise FetchError(f"{plain(hop)} answered with a redirect to nowhere")
    if on_redirect is not None:
        on_redirect(plain(hop), plain(target), response.status_code)
    if target.scheme != hop.scheme:
        raise FetchForbidden(f"{plain(hop)} redirects to another scheme, {target.scheme[:20]!r}, which is refused")
    return _check(target)


def _send(client: httpx.Client, asked: _Request, url: httpx.URL, rules: HttpRules) -> httpx.Response:
    """Send the request to the first of the host's addresses that accepts a connection."""
    host = url.raw_host.decode("ascii")
    headers = {**asked.headers, "Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity", "User-Agent": "svc"}
    failure: FetchError | None = None
    for address in addresses(url, rules):
        if asked.body is not None:
            asked.body.seek(0)
        # The URL then has the address, so TLS gets the name for which the certificate must be.
        pinned = url.copy_with(host=address)  # a second lookup could return an address that nobody checked
        request = client.build_request(
            asked.method, pinned, headers=headers, content=asked.body, extensions={"sni_hostname": host}
        )
        try:
            with _naming_url(plain(url)):
                return client.send(request, stream=True)
        except FetchError as error:
            failure = error
            if not isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                break
    assert failure is not None, "a host without addresses has been refused"
    raise failure


def addresses(url: httpx.URL, rules: HttpRules) -> list[str]:
    """Return the addresses of the URL's host.

    Raises FetchForbidden if one is not public and the rules do not allow it, and FetchError if there are none.
    """
    try:
        entries = socket.getaddrinfo(url.raw_host.decode("ascii"), url.port or 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise FetchError(f"{plain(url)}: the host has no address") from None
    unique = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    for address in unique:
        if not rules.allow_private and not is_public(address):
            raise FetchForbidden(
                f"{plain(url)}: the host's address {address} is private, loopback or link-local; "
                "SVC_HTTP_ALLOW_PRIVATE=1 permits such addresses"
            )
    return unique


def is_public(address: str) -> bool:
    """Return whether an address belongs to the open internet. An IPv4 address that is embedded in IPv6 decides."""
    parsed: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo or (None, None))[1]
        if inner is None and parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if parsed not in _UNICAST:
            return False
    return parsed.is_global and not any(parsed in network for network in _CLOSED)


def _trust() -> ssl.SSLContext:
    return _trust_of(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)
def _trust_of(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Return a TLS context. It is cached for each pair of values of the two variables, because making one takes 20 ms.

    The arguments are only the key of the cache. httpx reads the variables itself.
    """
    return httpx.create_ssl_context()


@contextmanager
def _naming_url(url: str) -> Iterator[None]:
    """Turn exceptions of httpx into a FetchError that names `url`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise FetchTimedOut(f"{url} did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise FetchError(f"{url} cannot be fetched: {type(error).__name__}: {error}") from error
