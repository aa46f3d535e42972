"""`svc status URL`: the health of a running server, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from svc.cli.common.options import ClientKey, ServerUrl, client_key_of
from svc.errors import ArtifactError

if TYPE_CHECKING:
    from rich.table import Table

NAME = "status"
HELP = "Show the health of a running server: one row a recipe, with its model and its load errors."
EPILOG = """
[bold]Examples[/bold]
  svc status http://127.0.0.1:8080
  SVC_CLIENT_KEY=... svc status https://recommendations.example.org --json

[bold]Exit codes[/bold]
  0 ok   1 the server does not answer, or refuses the key   5 degraded
"""
MODEL_DIGITS = 8


def command(
    url: ServerUrl,
    client_key: ClientKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the health document as it is.")] = False,
) -> int:
    from svc.cli.common.http import get_json

    client_key = client_key_of(client_key)
    details = get_json(url, "/v1/health/details", client_key, accept=(200, 503))
    if as_json:
        import json

        typer.echo(json.dumps(details, indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        listed = get_json(url, "/v1/recipes", client_key)["recipes"]
        models = {recipe["name"]: recipe.get("model_version", "") for recipe in listed}
        Console().print(_table(url, details, models))
    return 0 if details["status"] == "ok" else ArtifactError.exit_code


def _table(url: str, details: dict[str, Any], models: dict[str, str]) -> Table:
    """`models` are versions by recipe; their first 8 digits are those in the name of an `append_sha` artifact."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{url}: {details['status']}", title_justify="left")
    for heading in ("recipe", "state", "algorithm", "model", "error"):
        table.add_column(heading, overflow="fold")
    for name, entry in sorted(details["recipes"].items()):
        error = entry.get("error") or entry.get("last_load_error") or ""
        model = models.get(name, "").removeprefix("sha256:")[:MODEL_DIGITS]
        table.add_row(escape(name), _state(entry), entry.get("best_class") or "", model, escape(error))
    return table


def _state(entry: dict[str, Any]) -> str:
    if entry.get("skipped"):
        return "skipped"
    if not entry["loaded"]:
        return "not loaded"
    return "loaded, last reload failed" if entry.get("last_load_error") else "loaded"
