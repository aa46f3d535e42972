"""The serving rules of a recipe: its filter, its fallback, and the rules that reorder a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from svc.recipe.filter_tree import Filter, parse_filter

if TYPE_CHECKING:
    from svc.recipe.load import LoadedRecipe
    from svc.recipe.serving_schema import Experiment, ServedLog, Serving, ServingBoost, ServingLimit, ServingPin


@dataclass(frozen=True)
class Policy:
    """The serving rules of a recipe. A request may replace each rule except `filter` and `users`."""

    filter: Filter | None = None
    """Only items that satisfy this filter are recommended."""
    popular_fallback: bool = False
    diversity: float = 0.0
    limits: tuple[ServingLimit, ...] = ()
    boosts: tuple[tuple[Filter, ServingBoost], ...] = ()
    """Each boost with its parsed filter."""
    pins: tuple[ServingPin, ...] = ()
    users: bool = False
    """True if requests may ask for users of an item (`:recommend-users`)."""
    experiment: Split | None = None
    """The arms between which requests are divided, or None without an experiment."""
    served_log: ServedLog | None = None
    """The served log with the absolute path of its folder, or None without a log."""

    @cached_property
    def timed(self) -> bool:
        """True if the rules have boosts or pins, each of which may have a beginning and an end."""
        return bool(self.boosts or self.pins)

    @cached_property
    def has_rules(self) -> bool:
        """True if the rules may reorder the ranking of a request that sets no rules."""
        return bool(self.diversity or self.limits or self.boosts or self.pins)

    @classmethod
    def of(cls, loaded: LoadedRecipe) -> Policy:
        """Return the rules of a recipe, with its experiment and the settings of its log."""
        serving, kinds = loaded.recipe.serving, loaded.recipe.filter_kinds
        experiment = None if serving.experiment is None else _split(serving, serving.experiment, kinds)
        log = serving.served_log and serving.served_log.model_copy(update={"path": str(loaded.served_log_folder)})
        return replace(cls._of_rules(serving, kinds), experiment=experiment, served_log=log)

    @classmethod
    def _of_rules(cls, serving: Serving, kinds: Mapping[str, str]) -> Policy:
        return cls(
            filter=None if serving.filter is None else parse_filter(serving.filter, kinds),
            popular_fallback=serving.fallback == "popular",
            diversity=serving.diversity,
            limits=serving.limits,
            boosts=tuple((parse_filter(boost.filter, kinds), boost) for boost in serving.boosts),
            pins=serving.pins,
            users=serving.users,
        )


DEFAULT_POLICY = Policy()


class ArmOfModel(NamedTuple):
    """An arm: its rules for the model of the recipe, or None if it has an artifact of its own."""

    name: str
    weight: int
    policy: Policy | None


class Split(NamedTuple):
    """An experiment: how requests are divided between arms. `shadow` has the index of an arm and a share."""

    name: str
    salt: str
    arms: tuple[ArmOfModel, ...]
    shadow: tuple[int, float] | None


def _split(serving: Serving, experiment: Experiment, kinds: Mapping[str, str]) -> Split:
    arms = tuple(
        ArmOfModel(arm.name, arm.weight, Policy._of_rules(arm.rules(serving), kinds) if arm.path is None else None)
        for arm in experiment.arms
    )
    shadow = experiment.shadow
    names = [arm.name for arm in arms]
    return Split(
        experiment.name, experiment.salt, arms, None if shadow is None else (names.index(shadow.arm), shadow.share)
    )
