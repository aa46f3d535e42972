"""The promotion block of a recipe: the opponent of a new model, and the permitted losses against it."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from svc.recipe.source_options import Block, Number

INCUMBENT: Final = "incumbent"
BASELINE: Final = "TopPop"
GUARDED: Final = ("catalog_coverage", "n_users", "n_items")


def bare_off(mode: object) -> object:
    """Return "off" for false, because YAML reads a bare `off` as false. Return other modes unchanged."""
    return "off" if mode is False else mode


def _baseline(name: object) -> object:
    """Return `TopPop` for any spelling of it that `training.algorithms` accepts, and other names unchanged."""
    short = name.strip().lower().removesuffix("recommender") if isinstance(name, str) else name
    return BASELINE if short == BASELINE.lower() else name


HighestChange = Annotated[Number, Field(ge=0)]
LowestChange = Annotated[Number, Field(ge=-1)]
Opponent = Annotated[Literal["incumbent", "TopPop"], BeforeValidator(_baseline)]


class Guardrail(Block):
    """How far one figure may fall below that of the live model: -0.3 is by three tenths of it."""

    min_relative_change: LowestChange


class CostGuardrail(Block):
    """How far a cost may rise above that of the live model: 1.0 is to twice of it."""

    max_relative_change: HighestChange


def _guardrail() -> Guardrail:
    return Guardrail(min_relative_change=-0.3)


class Guardrails(Block):
    """Figures beside the metric; null looks at none."""

    catalog_coverage: Guardrail | None = Field(
        default_factory=_guardrail, description="Share of all items that stand in some judged user's list."
    )
    n_users: Guardrail | None = Field(default_factory=_guardrail, description="Users of the cleansed data.")
    n_items: Guardrail | None = Field(default_factory=_guardrail, description="Items of the cleansed data.")
    rank_ms: CostGuardrail | None = Field(
        default=None, description="Milliseconds of a single ranking, of both models on the machine that trains."
    )


class Promotion(Block):
    """Whether a new model may go live; no part of the hash."""

    mode: Annotated[Literal["off", "report", "enforce"], BeforeValidator(bare_off)] = Field(
        default="off", description="report: decide and say so; enforce: a refused model does not go live, exit code 9."
    )
    against: Annotated[tuple[Opponent, ...], Field(min_length=1)] = (INCUMBENT, BASELINE)
    min_relative_change: LowestChange = Field(
        default=-0.01, description="Of the training metric; the lower end of each interval must reach it."
    )
    confidence: Annotated[Number, Field(ge=0.5, le=0.999)] = 0.95
    guardrails: Guardrails = Field(
        default_factory=Guardrails, description="Lowest relative changes from the incumbent."
    )

    @field_validator("against")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _guardrails_have_an_incumbent(self) -> Self:
        if "guardrails" in self.model_fields_set and INCUMBENT not in self.against:
            raise ValueError("guardrails compare with the incumbent: list it in promotion.against, or leave them out")
        return self
