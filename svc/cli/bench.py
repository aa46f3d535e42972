"""`svc bench URL`: how many requests a running server can take, and how long they take."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from svc.cli.common.http import ServerUnreachable, base_url, get_json, not_answering
from svc.cli.common.options import ClientKey, ServerUrl, client_key_of
from svc.errors import NotFound, UsageError

if TYPE_CHECKING:
    from svc.cli.load_generator import Measured

NAME = "bench"
HELP = "Drive a running server with known users and show throughput, latency percentiles and errors."
EPILOG = """
[bold]Examples[/bold]
  svc bench http://127.0.0.1:8080
  svc bench http://127.0.0.1:8080 --recipe books --users data/readers.csv
  svc bench http://127.0.0.1:8080 --recipe books --users ids.txt --seconds 60
  svc bench http://127.0.0.1:8080 --with '{"filter": {"year": {"gte": 1990}}}'

The users must be known: ids of the training data. Without --users, items that
the server knows are the seeds of related items. On the server's own machine
this command takes a core from it. What is asked again is answered from
memory: a server with SVC_CACHED_ANSWERS=0 shows what ranking costs.

[bold]Exit codes[/bold]
  0 every answer was 200   1 there were errors, or no server   2 bad usage
"""
SEED = 1
HINTS = {
    "401": "the server asks for an API key: set SVC_CLIENT_KEY or give --client-key",
    "404": "no such recipe (svc status lists them), or users whom training did not see",
    "503": "the recipe has no model: svc status says why",
}


def command(
    url: ServerUrl,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Name of the recipe to ask; needed if there are several.")
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option("--users", help="User ids: a CSV with --column, or one a line. Without it, items are the seeds."),
    ] = None,
    column: Annotated[str, typer.Option("--column", help="Column of a CSV that holds the ids.")] = "user_id",
    connections: Annotated[
        int, typer.Option("--connections", min=1, max=1000, help="Requests under way at once.")
    ] = 16,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="How long to measure.")] = 10.0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Items to ask for.")] = 10,
    more: Annotated[
        str | None,
        typer.Option("--with", help="JSON object of further fields of every request, such as a filter or a history."),
    ] = None,
    client_key: ClientKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    import json

    import trio

    from svc.cli.load_generator import Target, drive

    known_ids = _shuffled_ids(users, column) if users else []
    fields = _fields(more)
    base_url(url)
    client_key = client_key_of(client_key)
    recipe = recipe or _only_recipe(url, client_key)
    verb = "recommend" if known_ids else "recommend-related"
    asked = [{"user_id": user} for user in known_ids] or _seeds(url, recipe, client_key)
    bodies = [json.dumps({**request, "limit": limit, **fields}).encode() for request in asked]
    headers = (f"X-API-Key: {client_key}",) if client_key else ()
    target = Target(base_url(url), f"/v1/recipes/{recipe}:{verb}", headers)

    async def measure() -> Measured:
        return await drive(target, bodies, connections=connections, seconds=seconds)

    try:
        figures = {"asked": f"{recipe}:{verb}", **_figures(trio.run(measure))}
    except OSError as error:
        raise ServerUnreachable(not_answering(url, error)) from None
    typer.echo(json.dumps(figures) if as_json else _lines(figures))
    return 0 if figures["requests"] and not figures["errors"] else 1


def _only_recipe(url: str, key: str | None) -> str:
    """The name of the only recipe with a model. Raises UsageError if there is not exactly one."""
    names = [recipe["name"] for recipe in get_json(url, "/v1/recipes", key)["recipes"] if recipe["loaded"]]
    if len(names) != 1:
        raise UsageError(f"--recipe: name one; models there are: {', '.join(names) or 'none'}")
    return str(names[0])


def _seeds(url: str, recipe: str, key: str | None) -> list[dict[str, Any]]:
    """Requests for related items, each with one of the first items of the server as its seed."""
    items = get_json(url, f"/v1/recipes/{quote(recipe)}/items", key, accept=(200, 404, 503))
    if "items" not in items:
        raise UsageError(f"--recipe: {recipe}: {items.get('detail', NotFound.detail)}")
    return [{"seed_items": [item["item_id"]]} for item in items["items"]]


def _lines(figures: dict[str, Any]) -> str:
    """One figure a line, and what to do about each status that is known to have a remedy."""
    lines = [f"{name:<16} {value}" for name, value in figures.items()]
    return "\n".join(lines + [f"{status}: {hint}" for status, hint in HINTS.items() if status in figures["errors"]])


def _fields(text: str | None) -> dict[str, Any]:
    """The JSON object given by --with. Raises UsageError."""
    import json

    try:
        fields = {} if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"--with: is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError('--with: give a JSON object, such as {"filter": {"year": {"gte": 1990}}}')
    return fields


def _shuffled_ids(path: Path, column: str) -> list[str]:
    """The distinct ids of the file, in an order that has nothing to do with the file's."""
    ids = sorted(set(_ids(path, column)))
    if not ids:
        raise UsageError(f"--users: {path} holds no user ids")
    random.Random(SEED).shuffle(ids)
    return ids


def _ids(path: Path, column: str) -> list[str]:
    import csv

    try:
        with path.open(newline="", encoding="utf-8") as file:
            if path.suffix != ".csv":
                return [line.strip() for line in file if line.strip()]
            rows = csv.DictReader(file)
            if column not in (rows.fieldnames or ()):
                raise UsageError(
                    f"--column: {path} has no column {column!r}; it has {', '.join(rows.fieldnames or ())}"
                )
            return [row[column] for row in rows if row[column]]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--users: {path} cannot be read: {error}") from None


def _figures(measured: Measured) -> dict[str, Any]:
    """The figures to print, by name; latencies in milliseconds."""
    answered = sum(measured.statuses.values())
    errors = {str(status): n for status, n in sorted(measured.statuses.items()) if status != 200}
    if measured.broken:
        errors["broken connections"] = measured.broken
    percentiles = {f"p{percent:g}_ms": round(measured.percentile_s(percent) * 1e3, 3) for percent in (50, 90, 99, 99.9)}
    return {
        "requests": answered,
        "seconds": round(measured.seconds, 3),
        "requests_per_s": round(answered / measured.seconds, 1),
        **percentiles,
        "max_ms": round(max(measured.latencies_s, default=0.0) * 1e3, 3),
        "errors": errors,
    }
