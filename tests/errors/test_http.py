"""Errors of the HTTP API: what a client and the request metrics see."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import svc
from svc import errors
from svc.errors import ApiError

CLASSES = [
    c for _, c in inspect.getmembers(errors.http, inspect.isclass) if issubclass(c, ApiError) and c is not ApiError
]
SOURCES = [path for path in Path(svc.__file__).parent.rglob("*.py") if path.name != "http.py"]


def test_api_errors_have_distinct_codes_and_client_or_server_statuses() -> None:
    """Every code is unique, so that a client needs no other field to distinguish errors."""
    assert len({c.code for c in CLASSES}) == len(CLASSES)
    assert all(400 <= c.http_status < 600 for c in CLASSES)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.RecipeUnavailable, "unavailable"),
        (errors.AvailabilityStale, "unavailable"),
        (errors.InternalError, "error"),
        (errors.UnknownUser, "unknown_user"),
        (errors.FeaturesNotSupported, "features_not_supported"),
        (errors.ValidationFailed, "validation_error"),
    ],
)
def test_metric_status_is_the_code_in_lower_case_but_for_server_faults(error: type[ApiError], status: str) -> None:
    """RecipeUnavailable and AvailabilityStale count as `unavailable`, and InternalError as `error`."""
    assert error.metric_status == status


@pytest.mark.parametrize("error", CLASSES)
def test_the_text_of_an_error_stands_on_its_class_alone(error: type[ApiError]) -> None:
    """An error without a message of its own has the text of its class.

    No other module contains this text or its template.
    """
    assert error.detail
    assert error("").message == error.detail
    patterns = [re.escape(error.detail)]
    if "template" in vars(error):
        patterns.append(r"\{[^}]*\}".join(re.escape(part) for part in re.split(r"\{[^}]*\}", error.template)))
    copies = [path for path in SOURCES if re.search("|".join(patterns), path.read_text(encoding="utf-8"))]
    assert copies == []
