"""The options of each built-in source."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from pydantic import ValidationError

from svc.recipe.source_options import (
    BUILT_IN_OPTIONS,
    BigQueryOptions,
    CsvOptions,
    ParquetOptions,
    SourceSpec,
    SqlOptions,
)
from svc.sources.base import known_types

DIGEST = "AB" * 32


def test_every_built_in_source_has_its_options() -> None:
    """The types with options are the source types that svc itself implements, by classes of the same names."""
    assert BUILT_IN_OPTIONS.keys() <= known_types().keys()
    for name, options in BUILT_IN_OPTIONS.items():
        module, _, source = known_types()[name].partition(":")
        source_class = getattr(import_module(module), source)
        assert (source_class.type_name, source_class.Config) == (name, options)


def test_a_source_spec_keeps_unknown_options() -> None:
    """All keys except the type are options for the source, unchanged."""
    assert SourceSpec(type="lists", path="a", depth=3).options == {"path": "a", "depth": 3}  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("model", "options", "field"),
    [
        *((CsvOptions, {"path": "a.csv", "encoding": name}, "encoding") for name in ("latin-77", "hex", "x\0y", "")),
        *(
            (CsvOptions, {"path": "a.csv", "delimiter": text}, "delimiter")
            for text in ("", "é", "\0", "\n", '"', ':"', "\\t")
        ),
        (CsvOptions, {"path": "a.csv", "delimiter": 9 * ":"}, "delimiter"),
        (CsvOptions, {"path": "a.csv", "header": True}, "header"),
        (CsvOptions, {"path": "a.csv", "delimeter": ";"}, "delimeter"),
        (ParquetOptions, {"path": "https://host/a.parquet"}, "sha256 is required"),
        (ParquetOptions, {"path": "a", "sha256": "12"}, "sha256"),
        (SqlOptions, {"dsn_env": "DSN", "query": "SELECT 1"}, "dsn_env"),
        (SqlOptions, {"dsn_env": "SVC_RECIPE_DSN", "query": "SELECT 1", "connect_timeout_seconds": 0}, "connect"),
        (BigQueryOptions, {"query": ""}, "query"),
    ],
)
def test_invalid_options_are_refused_by_name(model: Any, options: dict[str, Any], field: str) -> None:
    """The error names the option, before anything is read."""
    with pytest.raises(ValidationError, match=field):
        model.model_validate(options)


def test_digests_are_compared_in_lower_case() -> None:
    """Upper case in a sha256 is accepted. Only http(s) addresses require a sha256."""
    assert CsvOptions(path="https://host/a.csv", sha256=DIGEST).sha256 == DIGEST.lower()
    assert CsvOptions(path="s3://bucket/a.csv").sha256 is None
