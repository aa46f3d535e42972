"""Answers to failed requests: their bodies, the reason for an empty ranking, and the log of unexpected errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import and_
from typing import Any, cast

from pydantic_core import to_json

from svc import events, logs
from svc.errors import ApiError, InternalError, NoCandidates, ValidationFailed, exhaustion
from svc.model.ranking.filter_fields import FilterFields, LabelField, NumberField
from svc.model.ranking.query import Query
from svc.names import did_you_mean
from svc.serving.transport.messages import Headers, Response

_SHOWN_CHARACTERS = 64
_SHARE = (
    "only new items are left to recommend ({count}), and at most a share of {share:g} of the first n items may be new "
    "(serving.new_items.max_share): ask for items of the model too, or raise max_share"
)


def nothing_left(tree: object, filters: FilterFields, query: Query) -> NoCandidates:
    """Return the error for a query whose ranking is empty, with the reason if it is known.

    `tree` is the valid filter of the request, or None. `filters` are the fields that filters may use.
    """
    share = None if query.new is None else query.new.items.max_share
    if query.new is not None and share is not None:
        # New items are left, but no known item. With a `max_share` below 1 a new item cannot come first, because
        # floor(max_share * 1) is 0.
        return NoCandidates(_SHARE.format(count=len(query.new.rows), share=share))
    reasons = () if tree is None else _reasons(tree, filters)
    reason = next(iter(reasons), None)
    return NoCandidates() if reason is None else NoCandidates(f"{NoCandidates.detail}: {reason}")


def _reasons(tree: Any, filters: FilterFields) -> Iterator[str]:
    """Yield a message for each condition that no item satisfies because of an unknown value or an empty range.

    Skips conditions below `not`. If no item satisfies such a condition, it excludes no item.
    """
    ((key, value),) = tree.items()
    if key in ("all", "any"):
        for part in value:
            yield from _reasons(part, filters)
    elif key != "not":
        field = filters.fields[key]
        if field.kind == NumberField.kind:
            yield from _range(key, value, field)
        else:
            yield from _labels(key, value, cast(LabelField, field))


def _labels(name: str, operators: Mapping[str, Any], field: LabelField) -> Iterator[str]:
    for operator in ("any", "all"):
        values = operators.get(operator, ())
        absent = [value for value in values if field.names.index(value) < 0]
        if absent and (operator == "all" or len(absent) == len(values)):
            # Of names that differ only in case `did_you_mean` keeps the last, which here is the most frequent.
            hint = did_you_mean(absent[0], reversed(field.describe()["values"]))
            yield f"{name} has no value {absent[0][:_SHOWN_CHARACTERS]!r}; {hint}".rstrip("; ")


def _range(name: str, operators: Mapping[str, Any], field: NumberField) -> Iterator[str]:
    # All operators together, because each of them alone may match items.
    matching = reduce(and_, (field.matching(operator, operand) for operator, operand in operators.items()))
    if not matching.flags().any():
        numbers = field.describe()
        is_empty = numbers["min"] is None
        reach = "no item has one" if is_empty else f"its numbers are from {numbers['min']:g} to {numbers['max']:g}"
        yield f"no item has {name} in this range; {reach}"


TRACEBACKS_A_MINUTE = 10
"""Maximum number of tracebacks logged in a minute.

Without this bound, a failure of every request would fill the disk.
"""

_last_tracebacks: deque[float] = deque(maxlen=TRACEBACKS_A_MINUTE)


def log_failure(error: Exception) -> None:
    """Log an unexpected error, with a traceback if fewer than TRACEBACKS_A_MINUTE were logged in the last minute.

    If the system could not start another thread, the traceback is left out, because the place in the code says nothing
    about the cause.
    """
    now = time.monotonic()
    # The first of a full deque is the oldest of the last ten.
    shown = len(_last_tracebacks) < TRACEBACKS_A_MINUTE or now - _last_tracebacks[0] > 60
    if shown:
        _last_tracebacks.append(now)
    lacks_thread = isinstance(error, RuntimeError) and exhaustion(error) is not None
    traced = error if shown and not lacks_thread else None
    logs.emit(events.REQUEST_FAILED, error=f"{type(error).__name__}: {error}", exc_info=traced)


def failure(request_id: str, error: Exception) -> Response:
    """Return the answer to a request that raised `error`.

    An error other than an ApiError is logged, and the client gets only a general message.
    """
    if not isinstance(error, ApiError):
        log_failure(error)
        error = InternalError()
    body: dict[str, Any] = {"request_id": request_id, "detail": error.message, "code": error.code}
    if isinstance(error, ValidationFailed):
        body["errors"] = error.errors
    return Response(error.http_status, to_json(body), _headers(error.fields), ends_connection=error.ends_connection)


def _headers(fields: Mapping[str, Any]) -> Headers:
    """Return the header `Allow` or `Retry-After` if the error has its value, else no headers."""
    if "allow" in fields:
        return [(b"allow", ", ".join(fields["allow"]).encode())]
    return [(b"retry-after", b"%d" % fields["retry_after"])] if "retry_after" in fields else ()
