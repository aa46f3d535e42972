"""Tables of the specification's transitions, whose last column names the test that drives each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def missing_tests(table: str, namespace: Mapping[str, Any]) -> set[str]:
    """Return the tests in the last column of `table` that `namespace` lacks.

    The table has their names without `test_`.
    """
    named = {"test_" + row.split("|")[-1].strip() for row in table.strip().splitlines()}
    return named - namespace.keys()
