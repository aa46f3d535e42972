"""The order of histories in the report: what the latest items count, and how good other values are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def order_told(header: Mapping[str, Any]) -> str:
    """What the model makes of the order of histories, and why, as HTML."""
    return f"<p>{_said(header)} {_why(header)}</p>"


def recency_rows(header: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Recency, score and interval of each value that was tried of the winner; the one taken is marked."""
    taken = header.get("recency", 0.0)
    for row in tried(header):
        low, high = row["interval"]
        mark = " (taken)" if row["recency"] == taken else ""
        yield f"{row['recency']:g}{mark}", f"{row['score']:.4f}", f"{low:.4f} to {high:.4f}"


def tried(header: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The values that were tried of the winner, with their scores; empty where none were."""
    found: Sequence[Mapping[str, Any]] = header["evaluation"].get("recency", {}).get("values", ())
    return found


def _said(header: Mapping[str, Any]) -> str:
    recency = header.get("recency")
    if not recency:
        return "Each item of a history counts as much as any other."
    return (
        f"The items of a history count less the earlier they came: each step back multiplies by"
        f" {math.exp(-recency):.3g} (recency {recency:g})."
    )


def _why(header: Mapping[str, Any]) -> str:
    if tried(header):
        users = f"{header['evaluation']['recency']['n_users']:,}"
        return (
            f"Judged on {users} validation users; a value above the lowest is taken where its gain is more than chance."
        )
    training, schema = header["recipe"].get("training", {}), header["recipe"].get("schema", {})
    wanted = training.get("recency", "search")
    if wanted != "search":
        return f"The recipe says so: <code>training.recency: {wanted}</code>."
    if "time_column" not in schema:
        return "Order could not be judged: the recipe names no <code>schema.time_column</code>."
    if training.get("split", {}).get("scheme", "random") == "random":
        return (
            "Order could not be judged: <code>split.scheme: random</code> holds out items from anywhere in a history. "
            "With a scheme by time, such as <code>leave_one_out</code>, recency is searched."
        )
    return "The scores of this model do not follow from a history alone, so its order plays no part."
