"""The requests that the demo shows: each is sent once, its answer shown, and the curl line printed to paste."""

from __future__ import annotations

import csv
import json
import shlex
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer


@dataclass(frozen=True, slots=True)
class Request:
    title: str
    path: str
    body: dict[str, Any]


def print_requests(url: str, folder: Path, api_key: str) -> None:
    """Show the answers of the server at `url`, with ids from the demo's own data."""
    for request in _requests(folder / "data"):
        typer.echo(f"\n# {request.title}")
        typer.echo(_curl(url, request, api_key))
        for item in _ask(url, request, api_key)["items"]:
            shown = f"{item['score']:9.4f}" if "score" in item else f"{item['reason'][0]:>9}"
            new = ", new" if "new" in item.get("reason", ()) else ""
            typer.echo(f"    {item['item_id']}  {shown}  {item['title']} ({item['categories']}){new}")
    typer.echo(f"\n# To look and try in the browser\n{url}/ with the API key {api_key}")
    typer.echo(f"\nServing at {url}. Ctrl-C ends it. Everything is in {folder}: recipes, data, artifacts, keys.")


def _requests(data: Path) -> list[Request]:
    titles = {row["item_id"]: row["title"] for row in _rows(data / "books.csv")}
    baskets: dict[str, list[str]] = {}
    for row in _rows(data / "purchases.csv"):
        baskets.setdefault(row["user_id"], []).append(row["item_id"])
    reader = next(user for user in sorted(baskets) if 8 <= len(baskets[user]) <= 12)
    seed = Counter(item for basket in baskets.values() for item in basket).most_common(40)[-1][0]
    return [
        Request(
            f"For reader {reader}, who bought {', '.join(titles[item] for item in baskets[reader][-3:])}",
            "books:recommend",
            {"user_id": reader, "limit": 5},
        ),
        Request(f"Like {titles[seed]}", "books:recommend-related", {"seed_items": [seed], "limit": 5}),
        Request(
            "For the same reader, only crime since 1990",
            "books:recommend",
            {
                "user_id": reader,
                "filter": {"all": [{"categories": {"any": ["Crime"]}}, {"year": {"gte": 1990}}]},
                "limit": 5,
            },
        ),
        Request(
            "For a visitor who looked at two books a minute ago",
            "books:recommend",
            {"history": [seed, baskets[reader][-1]], "limit": 5},
        ),
        Request(
            "For a visitor of whom nothing is known",
            "books:recommend",
            {"user_id": "nobody", "fallback": "popular", "limit": 5},
        ),
        Request(
            "For somebody new, of whom only the age is known",
            "books-cold-start:recommend",
            {"user_features": {"age_band": "18-29"}, "limit": 5},
        ),
        Request(
            f"For reader {reader} again, with a book that nobody has bought yet",
            "books-cold-start:recommend",
            {"user_id": reader, "limit": 5},
        ),
        Request(
            "Like a book that is not in the shop yet",
            "books-cold-start:recommend-related",
            {"item_features": {"categories": ["Crime", "History"], "year": 2025}, "limit": 5},
        ),
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _curl(url: str, request: Request, api_key: str) -> str:
    body = shlex.quote(json.dumps(request.body))
    return (
        f"curl -s {url}/v1/recipes/{request.path} -H 'X-API-Key: {api_key}'"
        f" -H 'Content-Type: application/json' -d {body}"
    )


def _ask(url: str, request: Request, api_key: str) -> Any:
    call = urllib.request.Request(
        f"{url}/v1/recipes/{request.path}",
        data=json.dumps(request.body).encode(),
        headers={"X-API-Key": api_key, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(call, timeout=10) as answer:
        return json.load(answer)
