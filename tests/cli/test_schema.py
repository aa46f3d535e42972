"""`svc schema`: the JSON Schema of recipes and the OpenAPI document."""

from __future__ import annotations

import json

import pytest

from svc import __version__
from svc.cli import main
from svc.cli.schema import json_schema
from svc.serving.api.pages.openapi import document


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
    assert "encoding" in schema["$defs"]["FeatureColumn"]["properties"]
