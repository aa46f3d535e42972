"""The base of every deliberate error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class SvcError(Exception):
    """Base of all deliberate errors.

    `fields` are extra values for the structured record of the error, such as observed counts.
    """

    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = dict(fields or {})
