"""HTML tables for notebooks, in the colours of the page around them, light or dark."""

from __future__ import annotations

import html
from collections.abc import Mapping

_CELL = "text-align:left;padding:0.2em 1em 0.2em 0"
_TABLE = '<table style="color:inherit;font:inherit"'
"""Inherits the colour: in pages without a doctype, tables are black on any background."""


def facts_table(title: str, facts: Mapping[str, object], more: str = "") -> str:
    """Return a heading and a table with one row per fact. `more` is HTML that follows."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{html.escape(name)}</th>'
        f'<td style="{_CELL}">{html.escape(_shown(fact))}</td></tr>'
        for name, fact in facts.items()
    )
    tables = f"<table><tbody>{rows}</tbody></table>{more}".replace("<table", _TABLE)
    return f"<div><strong>{html.escape(title)}</strong>{tables}</div>"


def _shown(fact: object) -> str:
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, int):
        return f"{fact:,}"
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)
