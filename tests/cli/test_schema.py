"""`svc schema`: the JSON Schema of recipes and the OpenAPI document."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from svc import __version__
from svc.cli import main
from svc.cli.schema import json_schema
from svc.errors import RecipeError
from svc.serving.api.pages.openapi import document
from tests.recipe.loading import BASE, load


def features(column: dict[str, str]) -> dict[str, Any]:
    """Return the block of one feature column of items."""
    source = {"type": "csv", "path": "items.csv"}
    return {"item": {"source": source, "id_column": "i", "columns": [{"name": "genre", **column}]}}


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is printed, so that the output can go to a file."""
    assert main.run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_openapi_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The document is that of a server with keys and metrics, which a server in production does not show."""
    assert main.run(["schema", "--openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == document(__version__, has_keys=True, has_metrics=True)


def test_the_schema_has_every_block_source_and_shorthand() -> None:
    """The schema offers every block, source type and shorthand key that the loader accepts."""
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert {"name", "source", "schema", "training", "output", "algorithms", "versioning"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False
    branches = schema["$defs"]["SourceSpec"]["allOf"]
    assert [branch["then"]["properties"]["type"]["const"] for branch in branches] == [
        "csv",
        "parquet",
        "sql",
        "bigquery",
    ]


@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({}, True),
        ({"name": "a/b"}, False),
        ({"nmae": "a"}, False),
        ({"algorithms": ["IALS"], "metric": "map", "split": {}, "versioning": "append_sha"}, True),
        ({"training": {"algorithms": ["ials"], "metric": "map"}}, True),
        ({"metric": "mpa"}, False),
        ({"algorithms": [1]}, False),
        ({"source": {"type": "csv", "path": "a.csv", "delimiter": ";"}}, True),
        ({"source": {"type": "csv", "path": "a.csv", "query": "select 1"}}, False),
        ({"source": {"type": "csv"}}, False),
        ({"source": {"path": "a.csv"}}, False),
        ({"source": {"type": "sql", "query": "select 1", "dsn_env": "SVC_RECIPE_DSN"}}, True),
        ({"source": {"type": "sql", "path": "a.csv"}}, False),
        ({"source": {"type": "plug-in", "anything": 1}}, True),
        ({"features": features({"kind": "categorical"})}, True),
        ({"features": features({"encoding": "categorical"})}, True),
        ({"features": features({"encoding": "categorical", "kind": "categorical"})}, False),
        ({"features": features({})}, False),
        ({"features": features({"encoding": "categoric"})}, False),
    ],
)
def test_the_schema_checks_recipes_as_the_loader_does(
    changes: dict[str, Any], *, is_valid: bool, tmp_path: Path
) -> None:
    """Both accept shorthand keys, `encoding` for `kind`, and the options of plug-ins."""
    assert jsonschema_rs.validator_for(json_schema()).is_valid({**BASE, **changes}) == is_valid
    with nullcontext() if is_valid else pytest.raises(RecipeError):
        load(tmp_path, changes)
