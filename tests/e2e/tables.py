"""Tables of the specification's transitions, whose last column names the test that drives each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def missing_tests(table: str, namespace: Mapping[str, Any]) -> set[str]:
    """Return the tests that the rows of `table` name, without `test_`, and that `namespace` lacks."""
    named = {"test_" + row.split("|")[-1].strip() for row in table.strip().splitlines()}
    return named - namespace.keys()
