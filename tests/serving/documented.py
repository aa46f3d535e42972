"""A check of answers by the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema_rs

from svc import __version__
from svc.serving.api.pages.openapi import document


@cache
def _whole() -> dict[str, Any]:
    return document(__version__, has_keys=True, has_metrics=True)


@cache
def _paths() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    return [
        (re.compile(re.escape(path).replace(r"\{name\}", "[^/:]*")), rows) for path, rows in _whole()["paths"].items()
    ]


@cache
def _validator(schema: str) -> Any:
    """Return the validator of a part of the document, which is given as JSON."""
    return jsonschema_rs.validator_for({**json.loads(schema), "components": _whole()["components"]})


def operation(method: str, path: str) -> dict[str, Any] | None:
    """Return the operation of this request, or None for a page or an unknown path."""
    rows = next((rows for pattern, rows in _paths() if pattern.fullmatch(path)), {})
    found: dict[str, Any] | None = rows.get(method.lower())
    return found


def require_documented(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise AssertionError unless the server's document has this answer, by status, headers and body."""
    asked = operation(method, path)
    if asked is None:
        return
    answer = asked["responses"].get(str(status))
    assert answer is not None, f"{method} {path} answers {status}, of which the document does not know"
    told = {name.lower() for name in answer["headers"]}
    own = {"x-request-id", "x-svc-model-version", "retry-after", "allow"}
    assert headers.keys() & own <= told, f"{method} {path}: {status} has headers that the document lacks"
    kind = headers.get("content-type", "").partition(";")[0]
    assert kind in (answer["content"] or {""}), f"{method} {path}: {status} has the undocumented type {kind!r}"
    content = answer["content"].get("application/json")
    if content is not None:
        for error in _validator(json.dumps(content["schema"])).iter_errors(json.loads(body)):
            raise AssertionError(f"{method} {path}: {status} breaks the document: {error}")
