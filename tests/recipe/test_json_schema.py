"""The JSON Schema for editors."""

from __future__ import annotations

import json

from svc.recipe.json_schema import json_schema


def test_it_names_every_block_source_and_shorthand() -> None:
    """What the loader accepts, an editor offers."""
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
