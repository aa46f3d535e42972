"""The value of a JSON body, by one `from_json` call and by the parser of large bodies."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from svc.errors import ValidationFailed
from svc.serving.api.bodies.large_bodies import LargeBody


def expected(body: bytes) -> str | None:
    """Return the `repr` of the object in a body, or None if the body must be refused. A repeated key is refused too."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError

    try:
        value = from_json(body)
        json.loads(body, object_pairs_hook=once)
    except ValueError:
        return None
    return repr(value) if isinstance(value, dict) else None


def several(document: bytes, least: int) -> bytes:
    """Return a body of at least this many bytes that repeats a document."""
    return b'{"a":[%b]}' % b",".join([document] * (least // (len(document) + 1) + 1))


def read(body: bytes, step: int = 1 << 16) -> dict[str, Any]:
    """Parse a large body in parts of `step` bytes. Raises ValidationFailed."""
    large = LargeBody()
    for start in range(0, len(body), step):
        large.feed(body[start : start + step])
        work(large)
    large.end()
    work(large)
    return large.result()


def work(large: LargeBody) -> None:
    """Parse the received bytes as far as possible."""
    while not large.hungry:
        large.work()


def found(body: bytes, step: int = 1 << 16) -> str | None:
    try:
        return repr(read(body, step))
    except ValidationFailed:
        return None
