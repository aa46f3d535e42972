"""The order of histories in the report: the recency of the model, and the scores of other values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from svc.recipe.algorithms import TAKES_RECENCY, TOP_POP, short_name


def order_sentences(header: Mapping[str, Any]) -> Markup:
    """Return the effect of the order of histories in the model, and its reason. Recipe fields are marked as code."""
    return Markup("{} {}").format(_effect(header), _reason(header))


def recency_rows(header: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield recency, score and interval of each value that was tried for the winner, with a mark at the chosen one.

    For a blend, each value is tried for all parts at once. If its parts differ in recency, the last row has the score
    with the values of the parts.
    """
    recency, parts = header.get("recency", 0.0), _by_part(header)
    for row in tried_values(header):
        low, high = row["interval"]
        mark = " (taken)" if row["recency"] == recency and not parts else ""
        yield f"{row['recency']:g}{mark}", f"{row['score']:.4f}", f"{low:.4f} to {high:.4f}"
    if parts:
        own = header["evaluation"]["recency"]["by_part"]
        low, high = own["interval"]
        yield "of each part (taken)", f"{own['score']:.4f}", f"{low:.4f} to {high:.4f}"


def tried_values(header: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the recencies that were tried for the winner, with their scores, or nothing if none were."""
    scores: Sequence[Mapping[str, Any]] = header["evaluation"].get("recency", {}).get("values", ())
    return scores


def _by_part(header: Mapping[str, Any]) -> dict[str, float]:
    """Return the recency of each part of a blend whose parts differ in it, or nothing for any other model."""
    parts = [part for part in header.get("parts", ()) if "weight" in part and part["class"] != TOP_POP]
    is_by_part = any("recency" in part for part in parts)
    return {short_name(str(part["class"])): float(part.get("recency", 0.0)) for part in parts if is_by_part}


def _effect(header: Mapping[str, Any]) -> str:
    recency, parts = header.get("recency"), _by_part(header)
    if parts:
        own = ", ".join(f"{name} {value:g}" for name, value in parts.items())
        return (
            "The items of a history count less the earlier they came, by a recency of its own for each part of the"
            f" blend: {own}."
        )
    if not recency:
        return "Each item of a history counts as much as any other."
    return (
        f"The items of a history count less the earlier they came: each step back multiplies by"
        f" {math.exp(-recency):.3g} (recency {recency:g})."
    )


def _reason(header: Mapping[str, Any]) -> str:
    if tried_values(header):
        users = f"{header['evaluation']['recency']['n_users']:,}"
        return (
            f"Judged on {users} validation users; a value above the lowest is taken where its gain is more than chance."
        )
    training, schema = header["recipe"].get("training", {}), header["recipe"].get("schema", {})
    wanted = training.get("recency", "search")
    if wanted != "search":
        return Markup("The recipe says so: <code>training.recency: {}</code>.").format(wanted)
    if "time_column" not in schema:
        return Markup("Order could not be judged: the recipe names no <code>schema.time_column</code>.")
    if training.get("split", {}).get("scheme", "random") == "random":
        return Markup(
            "Order could not be judged: <code>split.scheme: random</code> holds out items from anywhere in a history. "
            "With a scheme by time, such as <code>leave_one_out</code>, recency is searched."
        )
    if header["best_class"] in TAKES_RECENCY:
        return "The search compared the values; the page of svc train --report has their scores."
    return "The scores of this model do not follow from a history alone, so its order plays no part."
