"""`svc schema`: the recipe's JSON Schema, for editors."""

from __future__ import annotations

import typer

NAME = "schema"
HELP = "Print the JSON Schema of recipes, for editors that complete and check YAML."
EPILOG = """
[bold]Example[/bold]
  svc schema > recipe.schema.json            then, as first line of a recipe:
  # yaml-language-server: $schema=recipe.schema.json

[bold]Exit codes[/bold]  0 success
"""


def command() -> None:
    import json

    from svc.recipe.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
