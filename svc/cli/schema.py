"""`svc schema`: print the recipe's JSON Schema for editors, or the server's OpenAPI document for generators."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from svc import __version__

EPILOG = """
[bold]Examples[/bold]
  svc schema > recipe.schema.json            then, as first line of a recipe:
  # yaml-language-server: $schema=recipe.schema.json
  svc schema --openapi > openapi.json        for generators of clients

[bold]Exit codes[/bold]  0 success
"""

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic leaves its own names in a schema if a function, such as the check for booleans, comes before a bound."""


def command(
    openapi: Annotated[
        bool,
        typer.Option(
            "--openapi", help="Print the OpenAPI document of a server with keys and metrics, which production hides."
        ),
    ] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors that complete and check YAML, or the server's OpenAPI document."""
    if openapi:
        from svc.serving.api.pages.openapi import document

        schema = document(__version__, has_keys=True, has_metrics=True)
    else:
        schema = json_schema()
    typer.echo(json.dumps(schema, indent=2))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipes: every field and shorthand key with type, bounds, default and help.

    The options of a source depend on its type.
    """
    from svc.recipe.algorithms import ALGORITHMS
    from svc.recipe.load import SHORTHAND
    from svc.recipe.schema import Recipe

    schema = Recipe.model_json_schema()
    definitions = schema["$defs"]
    training = definitions["Training"]["properties"]
    # Editors complete the names of `enum`. Other spellings of them are valid, too.
    training["algorithms"]["items"] = {"anyOf": [{"enum": list(ALGORITHMS)}, {"type": "string"}]}
    for key, block in SHORTHAND.items():
        # Shorthand keys are moved before validation, so the models do not have them.
        schema["properties"][key] = definitions[block.capitalize()]["properties"][key]
    _accept_encoding_for_kind(definitions["FeatureColumn"])
    definitions["SourceSpec"] = _source(definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_name_bounds(schema)}


def _name_bounds(schema: Any) -> Any:
    """Replace pydantic's names for bounds by JSON Schema's keywords in a part of a schema.

    For example, `ge` becomes `minimum`.
    """
    if isinstance(schema, list):
        return [_name_bounds(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    # A field may have the name of a bound, too. Its value is a schema and no number.
    return {
        _BOUNDS.get(key, key) if isinstance(value, int | float) else key: _name_bounds(value)
        for key, value in schema.items()
    }


def _accept_encoding_for_kind(column: dict[str, Any]) -> None:
    column["properties"]["encoding"] = column["properties"]["kind"]
    column["required"].remove("kind")
    column["oneOf"] = [{"required": ["kind"]}, {"required": ["encoding"]}]


def _source(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a `source:` block. It checks the options of built-in types, not those of plug-ins."""
    from svc.recipe.source_options import BUILT_IN_OPTIONS

    branches = []
    for name, options in BUILT_IN_OPTIONS.items():
        own = options.model_json_schema()
        own["properties"]["type"] = {"const": name}
        branches.append({"if": {"properties": {"type": {"const": name}}}, "then": own})
    type_schema = definitions["SourceSpec"]["properties"]["type"]
    # Plug-ins have types of their own.
    type_schema["anyOf"] = [{"enum": list(BUILT_IN_OPTIONS)}, {"type": "string"}]
    return {"type": "object", "required": ["type"], "properties": {"type": type_schema}, "allOf": branches}
