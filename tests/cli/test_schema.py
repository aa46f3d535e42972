"""`svc schema`: the JSON Schema of recipes and the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
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
        "jsonl",
        "parquet",
        "delta",
        "iceberg",
        "sql",
        "bigquery",
        "duckdb",
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
    "Arm": {"weight": "[0, 1000000]"},
    "Availability": {"refresh_seconds": "[5, 86400]", "max_stale_seconds": "(0, inf)"},
    "Cleansing": {
        "event_weights": "(0, inf)",
        **dict.fromkeys(("min_interactions", "min_rows", "min_users", "min_items"), "[1, inf)"),
    },
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
    "Experiment": {"salt": "[1, 256]", "arms": "[2, 8]"},
    "Rehearsal": {"min_known_users": "[0, 1]"},
    "PageRules": {"diversity": "[0, 1]", "limits": "(-inf, 4]", "boosts": "(-inf, 16]", "pins": "(-inf, 16]"},
    "Serving": {"diversity": "[0, 1]", "limits": "(-inf, 4]", "boosts": "(-inf, 16]", "pins": "(-inf, 16]"},
    "ServedLog": {"share": "[0, 1]", "rotate_minutes": "[1, 1440]", "keep_days": "[1, 3650]"},
    "Shadow": {"share": "[0, 1]"},
    "ServingBoost": {"factor": "[0.1, 10]"},
    "ServingLimit": {"max": "[1, 1000]"},
    "ServingPin": {"position": "[0, 999]"},
    "SourceSpec": {
        "header": "[0, 1000]",
        "skip_rows": "[0, 1000]",
        "version": "[0, inf)",
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
        "target": "[1, inf)",
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


OF_RECIPES = {
    "<= 16": "PageRules.boosts PageRules.pins Serving.boosts Serving.pins",
    "<= 4": "PageRules.limits Serving.limits",
    "> 0": (
        "Availability.max_stale_seconds Cleansing.event_weights MaxChange.n_items MaxChange.n_rows "
        "MaxChange.n_users Training.per_trial_timeout_seconds Training.timeout_seconds"
    ),
    "> 0 < 1": "Split.heldout_ratio",
    "> 0 <= 1": "Split.test_user_ratio",
    "> 0 <= 60,000": "Training.max_rank_ms",
    ">= -1": "Guardrail.min_relative_change Promotion.min_relative_change",
    ">= 0": "SourceSpec.version CostGuardrail.max_relative_change Training.per_algorithm_trials",
    ">= 0 < 1": "Split.test",
    ">= 0 < 4,294,967,296": "Split.seed Training.seed",
    ">= 0 <= 1": (
        "PageRules.diversity ServedLog.share Shadow.share NewItems.max_share NewItems.min_share "
        "Rehearsal.min_known_users Serving.diversity"
    ),
    ">= 0 <= 1,000": "SourceSpec.header SourceSpec.skip_rows",
    ">= 0 <= 5": "Training.recency",
    ">= 0 <= 999": "ServingPin.position",
    ">= 0.1 <= 10": "ServingBoost.factor",
    ">= 0.5 <= 0.999": "Promotion.confidence",
    ">= 1": (
        "Cleansing.min_interactions Cleansing.min_items Cleansing.min_rows Cleansing.min_users "
        "FeatureColumn.min_frequency FeatureColumn.min_items FeatureSide.columns Output.keep Promotion.against "
        "Training.algorithms Training.n_trials Training.sample_users Training.target algorithms"
    ),
    ">= 1 <= 1,000": "ServingLimit.max",
    ">= 1 <= 1,000,000": "Training.cutoff",
    ">= 1 <= 1,024": (
        "Arm.path ServedLog.path Availability.id_column FeatureColumn.name FeatureSide.id_column "
        "FilterField.name Forget.id_column "
        "InteractionSchema.event_column InteractionSchema.item_column InteractionSchema.time_column "
        "InteractionSchema.user_column InteractionSchema.weight_column ItemMetadata.fields "
        "ItemMetadata.id_column Output.path ServingLimit.field ServingPin.item_id SourceSpec.explode SourceSpec.path "
        "SourceSpec.database "
        "SourceSpec.table "
        "SourceSpec.project SourceSpec.type"
    ),
    ">= 1 <= 100,000": "NewItems.max_items",
    ">= 1 <= 200,000": "SourceSpec.query",
    ">= 1 <= 256": "Experiment.salt Training.parallelism",
    ">= 1 <= 32,768": "FeatureColumn.max_words",
    ">= 1 <= 4,096": "FeatureColumn.dimensions",
    ">= 1 <= 600": "SourceSpec.connect_timeout_seconds",
    ">= 1 <= 8": "FeatureColumn.delimiter FilterField.delimiter",
    ">= 1 <= 86,400": "SourceSpec.statement_timeout_seconds",
    ">= 5 <= 86,400": "Availability.refresh_seconds NewItems.refresh_seconds",
    ">= 0 <= 1,000,000": "Arm.weight",
    ">= 2 <= 8": "Experiment.arms",
    ">= 1 <= 1,440": "ServedLog.rotate_minutes",
    ">= 1 <= 3,650": "ServedLog.keep_days",
}
OF_REQUESTS = {
    "<= 1,000": (
        "PageRequest.dislikes PageRequest.exclude_items PageRequest.history PageRequest.shown "
        "PageRequest.user_features RecommendRequest.dislikes RecommendRequest.exclude_items "
        "RecommendRequest.history RecommendRequest.include_items RecommendRequest.shown "
        "RecommendRequest.user_features RelatedRequest.exclude_items RelatedRequest.include_items "
        "RelatedRequest.item_features RelatedRequest.user_features RerankRequest.history "
        "RerankRequest.user_features UsersRequest.exclude_users UsersRequest.include_users "
        "UsersRequest.item_features"
    ),
    "<= 16": (
        "LabelRow.boosts RecommendRequest.boosts RecommendRequest.pins RecommendRow.boosts "
        "RelatedRequest.boosts RelatedRequest.pins RelatedRow.boosts"
    ),
    "<= 4": "LabelRow.limits RecommendRequest.limits RecommendRow.limits RelatedRequest.limits RelatedRow.limits",
    "<= 4,096": (
        "PageRequest.user_features RecommendRequest.user_features RelatedRequest.item_features "
        "RelatedRequest.user_features RerankRequest.user_features UsersRequest.item_features"
    ),
    "<= 8,192": (
        "PageRequest.user_features RecommendRequest.user_features RelatedRequest.item_features "
        "RelatedRequest.user_features RerankRequest.user_features UsersRequest.item_features"
    ),
    "> 0 <= 1,000": "history.weight",
    ">= 0 < 1,000": "PinAsked.position RecommendRequest.offset RelatedRequest.offset UsersRequest.offset",
    ">= 0 <= 1": (
        "LabelRow.diversity PageRequest.rotation PageRequest.shuffle RecommendRequest.diversity "
        "RecommendRequest.rotation RecommendRequest.shuffle RecommendRow.diversity RelatedRequest.diversity "
        "RelatedRow.diversity RerankRequest.weight"
    ),
    ">= 0 <= 1,000": "UsersRequest.min_history",
    ">= 0 <= 10": "dislikes.weight",
    ">= 0.1 <= 10": "BoostAsked.factor",
    ">= 1": "PageRequest.shown RecommendRequest.shown",
    ">= 1 <= 1,000": (
        "LimitAsked.max RecommendRequest.limit RelatedRequest.limit RerankRequest.items UsersRequest.limit"
    ),
    ">= 1 <= 10": (
        "LabelRow.explain RecommendRequest.explain RecommendRow.explain RelatedRequest.explain "
        "RelatedRow.explain RerankRequest.explain"
    ),
    ">= 1 <= 100": (
        "LabelRow.limit PlainRow.limit RecommendRow.limit RelatedRequest.seed_items RelatedRow.limit "
        "RelatedRow.seed_items shown.times"
    ),
    ">= 1 <= 16": "LabelRow.rows PageRequest.rows",
    ">= 1 <= 256": (
        "PageRequest.unit RecommendRequest.unit RelatedRequest.unit RerankRequest.unit LabelRow.field "
        "LimitAsked.field PageRequest.dislikes PageRequest.exclude_items PageRequest.history "
        "PageRequest.shown PageRequest.user_features PageRequest.user_id PinAsked.item_id "
        "RecommendBatch.requests RecommendRequest.dislikes RecommendRequest.exclude_items "
        "RecommendRequest.history RecommendRequest.include_items RecommendRequest.shown "
        "RecommendRequest.user_features RecommendRequest.user_id RelatedBatch.requests "
        "RelatedRequest.exclude_items RelatedRequest.include_items RelatedRequest.item_features "
        "RelatedRequest.seed_items RelatedRequest.user_features RelatedRow.seed_items RerankRequest.history "
        "RerankRequest.items RerankRequest.user_features RerankRequest.user_id UsersRequest.exclude_users "
        "UsersRequest.include_users UsersRequest.item_features UsersRequest.item_id dislikes.item_id "
        "history.event history.item_id shown.item_id"
    ),
    ">= 1 <= 64": "PageRequest.seed RecommendRequest.seed RowAsked.id",
}
SIGNS = {
    **dict.fromkeys(("minimum", "minLength", "minItems"), ">="),
    "exclusiveMinimum": ">",
    **dict.fromkeys(("maximum", "maxLength", "maxItems"), "<="),
    "exclusiveMaximum": "<",
}


def bounds_of(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the bounds of each property in a JSON Schema, and its name with that of its object."""
    if isinstance(schema, list):
        for part in schema:
            yield from bounds_of(part, path)
    elif isinstance(schema, dict):
        numbers = {key: f"{schema[key]:,}" for key in SIGNS if isinstance(schema.get(key), int | float)}
        own = [f"{SIGNS[key]} {number.removesuffix('.0')}" for key, number in numbers.items()]
        if own:
            yield " ".join(own), ".".join(path[-2:])
        for key, part in schema.items():
            if key in ("properties", "$defs"):
                for name, described in part.items():
                    yield from bounds_of(described, (*path, name))
            elif key not in ("default", "enum", "const", "examples"):
                yield from bounds_of(part, path)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (json_schema(), OF_RECIPES),
        ({"$defs": document(__version__, has_keys=True, has_metrics=True)["components"]["schemas"]}, OF_REQUESTS),
    ],
    ids=["recipes", "requests"],
)
def test_numbers_texts_and_lists_have_the_specified_bounds(schema: dict[str, Any], expected: dict[str, str]) -> None:
    """A changed bound refuses recipes or requests that were valid before, or accepts what no test covers."""
    found: dict[str, set[str]] = defaultdict(set)
    for bounds, name in bounds_of(schema):
        found[bounds].add(name)
    assert found == {bounds: set(names.split()) for bounds, names in expected.items()}
