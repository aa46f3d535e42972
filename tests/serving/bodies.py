"""What a body means: to one call of the parser of small bodies, and to the reader of large ones."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from svc.errors import ValidationFailed
from svc.serving.large_bodies import Longest, read_large

ROOMY = Longest(items=1000, names=1000, at_top={})


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


def found(body: bytes, longest: Longest = ROOMY) -> str | None:
    try:
        return repr(read_large(body, longest))
    except ValidationFailed:
        return None
