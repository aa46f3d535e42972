"""`svc schema`: the JSON Schema of recipes and the OpenAPI document."""

from __future__ import annotations

import json
import re
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
        ({"training": {"cutoff": 1}}, True),
        ({"training": {"cutoff": 0}}, False),
        ({"training": {"cutoff": 1_000_001}}, False),
        ({"split": {"heldout_ratio": 0}}, False),
        ({"split": {"heldout_ratio": 1}}, False),
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


LIMITS = {
    "Availability": {"refresh_seconds": "[5, 86400]", "max_stale_seconds": "(0, inf)"},
    "Cleansing": {"event_weights": "(0, inf)", **dict.fromkeys(("min_rows", "min_users", "min_items"), "[1, inf)")},
    "CostGuardrail": {"max_relative_change": "[0, inf)"},
    "FeatureColumn": {
        "delimiter": "[1, 8]",
        "min_frequency": "[1, inf)",
        "max_words": "[1, 32768]",
        "min_items": "[1, inf)",
        "dimensions": "[1, 4096]",
    },
    "FeatureSide": {"columns": "[1, inf)"},
    "FilterField": {"delimiter": "[1, 8]"},
    "Guardrail": {"min_relative_change": "[-1, inf)"},
    "MaxChange": dict.fromkeys(("n_rows", "n_users", "n_items"), "(0, inf)"),
    "NewItems": {
        "refresh_seconds": "[5, 86400]",
        "max_items": "[1, 100000]",
        "max_share": "[0, 1]",
        "min_share": "[0, 1]",
    },
    "Output": {"keep": "[1, inf)"},
    "Promotion": {"against": "[1, inf)", "min_relative_change": "[-1, inf)", "confidence": "[0.5, 0.999]"},
    "Rehearsal": {"min_known_users": "[0, 1]"},
    "Serving": {"diversity": "[0, 1]", "limits": "(-inf, 4]", "boosts": "(-inf, 16]", "pins": "(-inf, 16]"},
    "ServingBoost": {"factor": "[0.1, 10]"},
    "ServingLimit": {"max": "[1, 1000]"},
    "ServingPin": {"position": "[0, 999]"},
    "SourceSpec": {
        "header": "[0, 1000]",
        "query": "[1, 200000]",
        "connect_timeout_seconds": "[1, 600]",
        "statement_timeout_seconds": "[1, 86400]",
    },
    "Split": {"heldout_ratio": "(0, 1)", "test_user_ratio": "(0, 1]", "test": "[0, 1)", "seed": "[0, 4294967296)"},
    "Training": {
        "algorithms": "[1, inf)",
        "cutoff": "[1, 1000000]",
        "n_trials": "[1, inf)",
        "per_algorithm_trials": "[0, inf)",
        "parallelism": "[1, 256]",
        "timeout_seconds": "(0, inf)",
        "per_trial_timeout_seconds": "(0, inf)",
        "max_rank_ms": "(0, 60000]",
        "seed": "[0, 4294967296)",
        "recency": "[0, 5.0]",
        "sample_users": "[1, inf)",
    },
}


def limits_in(node: Any) -> dict[str, Any]:
    """Return the limits in the schema of a field."""
    nodes = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    found = {name: value for inner in nodes for name, value in limits_in(inner).items()}
    own = {name: value for name, value in node.items() if LIMIT.fullmatch(name)} if isinstance(node, dict) else {}
    return found | own


LIMIT = re.compile("(exclusive)?(Min|Max)imum|m(in|ax)(imum|Length|Items)")


def interval(limits: dict[str, Any]) -> str:
    """Return the limits of a number, or of the length of a text or list, as an interval."""
    low = next((f"[{limits[name]}" for name in ("minimum", "minLength", "minItems") if name in limits), "(-inf")
    high = next((f"{limits[name]}]" for name in ("maximum", "maxLength", "maxItems") if name in limits), "inf)")
    low = f"({limits['exclusiveMinimum']}" if "exclusiveMinimum" in limits else low
    high = f"{limits['exclusiveMaximum']})" if "exclusiveMaximum" in limits else high
    return f"{low}, {high}"


def test_the_schema_has_the_limits_of_every_field() -> None:
    """An editor marks a number that the loader would refuse. Names and paths have 1 to 1024 characters."""
    found: dict[str, dict[str, str]] = {}
    for block, schema in json_schema()["$defs"].items():
        for part in [branch["then"] for branch in schema.get("allOf", ())] or [schema]:
            for field, facts in part.get("properties", {}).items():
                if (limits := limits_in(facts)) and interval(limits) != "[1, 1024]":
                    found.setdefault(block, {})[field] = interval(limits)
    assert found == LIMITS
