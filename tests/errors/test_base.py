"""What every deliberate error carries."""

from __future__ import annotations

from svc import errors


def test_an_error_carries_its_message_and_fields() -> None:
    """`fields` join the structured record of the error; the caller's mapping is copied."""
    given = {"n_rows": 1}
    error = errors.MinDataViolation("too few rows", fields=given)
    given["n_rows"] = 2
    assert (str(error), error.message, error.fields) == ("too few rows", "too few rows", {"n_rows": 1})
