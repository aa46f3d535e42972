"""Requests of commands to a running server."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from svc.errors import SvcError, UsageError

TIMEOUT_S = 10.0


class ServerUnreachable(SvcError):
    """Nothing at the URL answers as an svc server does, or it refuses the key."""

    code = "server_unreachable"


def base_url(url: str) -> str:
    """`url` without a trailing slash; anything but http(s) with a host is a `UsageError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"URL: {url!r} is not the address of a server, such as http://127.0.0.1:8080")
    return url.rstrip("/")


def not_answering(url: str, error: Exception) -> str:
    """The message for a server that does not answer, with advice."""
    return f"{url} does not answer: {error}. Start one with `svc serve --recipes FOLDER`, or check host and port"


def get_json(url: str, path: str, key: str | None, *, accept: Collection[int] = (200,)) -> dict[str, Any]:
    """GET `path` and return its JSON object. Another status than `accept` is a `ServerUnreachable`."""
    import httpx

    headers = {"X-API-Key": key} if key else {}
    try:
        answer = httpx.get(base_url(url) + path, headers=headers, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachable(not_answering(url, error)) from None
    if answer.status_code == 401:
        way_out = "it does not know the key that was given" if key else "set SVC_CLIENT_KEY or give --client-key"
        raise ServerUnreachable(f"{url} asks for an API key (401 Unauthorized): {way_out}")
    try:
        body = answer.json()
    except ValueError:
        raise ServerUnreachable(f"{url}{path} answers {answer.status_code}, not JSON: is it svc?") from None
    if answer.status_code not in accept or not isinstance(body, dict):
        raise ServerUnreachable(f"{url}{path} answers {answer.status_code}: is it an svc server?")
    return body
