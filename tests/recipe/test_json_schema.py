"""The JSON Schema of recipes for editors."""

from __future__ import annotations

import json

from svc.recipe.json_schema import json_schema


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
