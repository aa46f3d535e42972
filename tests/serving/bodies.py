"""What a body means: to one call of the parser of small bodies, and to the reader of large ones."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from svc.errors import ValidationFailed
from svc.serving.api.bodies.large_bodies import LargeBody, Longest

ROOMY = Longest(items=10**7, names=10**7, at_top={})


def expected(body: bytes) -> str | None:
    """The value as Python writes it, or None for what must be refused: a key twice too."""

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
    """A body of at least so many bytes that holds a document again and again."""
    return b'{"a":[%b]}' % b",".join([document] * (least // (len(document) + 1) + 1))


def read(body: bytes, longest: Longest = ROOMY, step: int = 1 << 16) -> dict[str, Any]:
    """What a large body says that comes in parts of `step` bytes. Raises ValidationFailed."""
    large = LargeBody(longest)
    for start in range(0, len(body), step):
        large.feed(body[start : start + step])
        work(large)
    large.end()
    work(large)
    assert large.value is not None
    return large.value


def work(large: LargeBody) -> None:
    """All that can be done with what has come."""
    while not large.hungry:
        large.work()


def found(body: bytes, longest: Longest = ROOMY, step: int = 1 << 16) -> str | None:
    try:
        return repr(read(body, longest, step))
    except ValidationFailed:
        return None
