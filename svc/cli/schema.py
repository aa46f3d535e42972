"""`svc schema`: print the recipe's JSON Schema for editors, or the server's OpenAPI document for generators."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from svc import __version__

EPILOG = """
[bold]Examples[/bold]
  svc schema > recipe.schema.json            then, as first line of a recipe:
  # yaml-language-server: $schema=recipe.schema.json
  svc schema --openapi > openapi.json        for generators of clients

[bold]Exit codes[/bold]  0 success
"""


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
        from svc.recipe.json_schema import json_schema

        schema = json_schema()
    typer.echo(json.dumps(schema, indent=2))
