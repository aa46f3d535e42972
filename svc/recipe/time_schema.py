"""The fields of a recipe that weigh interactions by their time: decay with age, and recency by order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from svc.recipe.algorithms import DEFAULT_ALGORITHMS, MOST_RECENCY, TRANSITIONS
from svc.recipe.promotion_schema import bare_off
from svc.recipe.source_options import Block, Number, unique_names

Recency = Annotated[
    Literal["search", "off"] | Annotated[Number, Field(ge=0, le=MOST_RECENCY)], BeforeValidator(bare_off)
]

_SECONDS_OF_UNITS: Final = {"min": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_557_600}
AGE_PATTERN: Final = rf"^[1-9][0-9]{{0,5}}({'|'.join(_SECONDS_OF_UNITS)})$"
Age = Annotated[str, Field(pattern=AGE_PATTERN)]


def seconds(duration: str | None) -> float | None:
    """Return the length of `90min`, `12h`, `7d`, `4w` or `1.5y` in seconds, or None for None and `none`.

    The result is an int if the number has no point, so ages compare exactly.
    """
    if duration is None or duration == "none":
        return None
    number = duration.rstrip("abcdefghijklmnopqrstuvwxyz")
    return (int(number) if number.isdigit() else float(number)) * _SECONDS_OF_UNITS[duration.removeprefix(number)]


HALF_LIFE_PATTERN = r"^(none|[0-9]{1,6}(\.[0-9]{1,6})?[hdwy])$"


def _has_unit(half_life: object) -> object:
    if isinstance(half_life, int | float) and not isinstance(half_life, bool):
        raise ValueError(f"has no unit; write {half_life}d for days; there are h, d, w and y")  # noqa: TRY004
    return half_life


def _above_zero(half_life: str) -> str:
    if seconds(half_life) == 0:
        raise ValueError("is a half-life of nothing; write none for no decay")
    return half_life


HalfLife = Annotated[str, Field(pattern=HALF_LIFE_PATTERN), BeforeValidator(_has_unit), AfterValidator(_above_zero)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int | float) else value


class TimeDecay(Block):
    """An interaction's weight halves with each half-life before the last event."""

    half_life: Annotated[
        tuple[HalfLife, ...],
        Field(min_length=1),
        BeforeValidator(_as_list, json_schema_input_type=HalfLife | tuple[HalfLife, ...]),
        AfterValidator(unique_names),
    ] = Field(description="Such as 12h, 30d, 4w, 1.5y, or none; of several the best is searched.")
    reference: Literal["last_event"] = "last_event"


def check_recency(recency: Literal["search", "off"] | float, *, time_column: str | None, scheme: str) -> None:
    """Raise ValueError, with the reason, if the time column or the split does not permit the recipe's recency."""
    if recency == "off":
        return
    if time_column is None:
        raise ValueError("training.recency needs schema.time_column: without times, histories have no order")
    if recency == "search" and scheme == "random":
        raise ValueError(
            "training.recency: search needs a split.scheme by time, such as leave_one_out: random holds out items "
            "from anywhere in a history, which cannot show whether order matters"
        )


def with_default_split(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tree`, a normalized recipe, with the default scheme of its split.

    With a time column the default is `time_user`: it shows whether order matters, as `random` cannot. It is written
    into the tree, so that the recipe's hash differs from one with an explicit `random`.
    """
    schema, training = tree.get("schema"), _or_empty(tree.get("training"))
    if not isinstance(schema, Mapping) or schema.get("time_column") is None or not isinstance(training, Mapping):
        return dict(tree)
    split = _or_empty(training.get("split"))
    if not isinstance(split, Mapping) or "scheme" in split:
        return dict(tree)
    return {**tree, "training": {**training, "split": {**split, "scheme": "time_user"}}}


def _or_empty(block: Any) -> Any:
    return {} if block is None else block


def with_default_algorithms(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the unvalidated `recipe`, with Transitions among its default algorithms if recency is searched."""
    training, schema = recipe.get("training") or {}, recipe.get("schema") or {}
    if not isinstance(training, Mapping) or not isinstance(schema, Mapping) or "algorithms" in training:
        return recipe
    split = training.get("split") or {}
    searched = recency_in_effect(
        training.get("recency", "search"),
        time_column=schema.get("time_column"),
        scheme=split.get("scheme", "random") if isinstance(split, Mapping) else "random",
    )
    if searched != "search":
        return recipe
    return {**recipe, "training": {**training, "algorithms": (*DEFAULT_ALGORITHMS, TRANSITIONS)}}


def recency_in_effect(
    wanted: Literal["search", "off"] | float, *, time_column: str | None, scheme: str
) -> Literal["search"] | float:
    """Return "search", or the one recency of all models: 0 if it is off, or if it cannot be searched."""
    if isinstance(wanted, float | int):
        return float(wanted)
    can_be_judged = time_column is not None and scheme != "random"
    return "search" if wanted == "search" and can_be_judged else 0.0
