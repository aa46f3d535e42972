"""The promotion block of a recipe: the opponents of a new model, and the permitted losses against them."""

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
    """Return `TopPop` for any spelling that `training.algorithms` accepts, and other names unchanged."""
    short = name.strip().lower().removesuffix("recommender") if isinstance(name, str) else name
    return BASELINE if short == BASELINE.lower() else name


HighestChange = Annotated[Number, Field(ge=0)]
LowestChange = Annotated[Number, Field(ge=-1)]
Opponent = Annotated[Literal["incumbent", "TopPop"], BeforeValidator(_baseline)]


class Guardrail(Block):
    """The permitted fall of a figure from the live model's: -0.3 allows a drop of 30%."""

    min_relative_change: LowestChange


class CostGuardrail(Block):
    """The permitted rise of a cost from the live model's: 1.0 allows twice the cost."""

    max_relative_change: HighestChange


def _guardrail() -> Guardrail:
    return Guardrail(min_relative_change=-0.3)


class Guardrails(Block):
    """Figures to check besides the metric. null skips a figure."""

    catalog_coverage: Guardrail | None = Field(
        default_factory=_guardrail, description="Share of all items that stand in some judged user's list."
    )
    n_users: Guardrail | None = Field(default_factory=_guardrail, description="Users of the cleansed data.")
    n_items: Guardrail | None = Field(default_factory=_guardrail, description="Items of the cleansed data.")
    rank_ms: CostGuardrail | None = Field(
        default=None, description="Milliseconds of a single ranking, of both models on the machine that trains."
    )


class Promotion(Block):
    """The conditions for a new model to go live. They are not part of the hash."""

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
