"""The arm that answers a request, and what is counted, logged and ranked again after the answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import trio

from svc import metrics
from svc.asking.experiment import arm_of
from svc.asking.policy import Split
from svc.errors import ApiError, Overloaded
from svc.metrics import Metrics
from svc.serving.api.failures import log_failure
from svc.serving.models.registry import Registry, Served
from svc.serving.served_log import Line, ServedLogs, is_among

SHADOWS_AT_ONCE = 64
"""Shadow rankings that may wait. More are dropped."""
SHADOW_PATIENCE_S = 1.0
"""A shadow ranking is dropped if the server answers requests without a pause for this long."""
NO_MODEL = "no_model"
_Ids = Sequence[str]
_Shadow = tuple[str, _Ids, Callable[[], Awaitable[_Ids]], Callable[[list[_Ids]], None]]
"""Recipe, ids of the items of the answer, and functions that rank for the shadow arm and log its items."""


class Asker(NamedTuple):
    """Who asks, and which arm of the experiment answers. `arm` is None without an experiment.

    `wanted` is the arm of the unit. It differs from `arm` if it has no model.
    """

    unit: str | None = None
    arm: str | None = None
    wanted: str | None = None
    seed: str | None = None

    def fields(self, split: Split | None) -> bytes:
        """Return the JSON fields of the answer that name the arm, with a comma behind."""
        if split is None or self.arm is None:
            return b""
        return b'"experiment":{"name":"%b","arm":"%b"},' % (split.name.encode(), self.arm.encode())

    def add_to(self, counters: Metrics, recipe: str, status: str) -> None:
        """Count the request, if its unit is known."""
        if self.wanted is not None and self.unit is not None:
            status = status if self.arm == self.wanted else NO_MODEL
            counters.of(metrics.EXPERIMENT_REQUESTS, recipe=recipe, arm=self.wanted, status=status).inc()


def choose(question: Any, served: Served, registry: Registry) -> tuple[Served, Asker]:
    """Return the model that answers a request, chosen by its `user_id` or its `unit`.

    `served` is the model of the recipe.
    """
    unit = getattr(question, "user_id", None) or getattr(question, "unit", None)
    seed, split = getattr(question, "seed", None), served.policy.experiment
    if split is None:
        return served, Asker(unit, seed=seed)
    # Without a unit the first arm answers, and the request is not counted (`Asker.add_to`).
    wanted = split.arms[0 if unit is None else arm_of(split.salt, [arm.weight for arm in split.arms], unit)]
    own, answering = registry.arm(served, wanted), wanted
    if own is None:
        answering = split.arms[0]
        # The first arm may lack a model too. The model of the recipe then answers in its name.
        own = registry.arm(served, answering) or served
    return own, Asker(unit, answering.name, wanted.name, seed)


def numbers_of(served: Served, registry: Registry) -> object:
    """Return the key of cached answers. It changes with every model and every rule that may answer."""
    split = served.policy.experiment
    if split is None:
        return served.number
    arms = (registry.arm(served, arm) for arm in split.arms)
    return (served.number, *(-1 if own is None else own.number for own in arms))


def log_pages(
    log: ServedLogs,
    served: Served,
    asker: Asker,
    pages: Iterable[Sequence[str]],
    *,
    request_id: str,
    verb: str,
    model_version: str,
    is_shadow: bool = False,
) -> None:
    """Put a line for each page into the served log of the recipe, if it has one. A page has the ids of its items."""
    settings, split = served.policy.served_log, served.policy.experiment
    if settings is None:
        return
    experiment = None if split is None else (split.name, split.salt)
    about = (time.time(), request_id, served.name, verb, experiment, asker.arm, model_version, asker.unit)
    for items in pages:
        log.put(settings, Line(*about, items, asker.seed, is_shadow))


def shadow_of(served: Served, registry: Registry, arm: str | None, request_id: str) -> tuple[Served, str] | None:
    """Return the model and the name of the shadow arm that must rank a request too, or None.

    The shadow arm does not rank again what it has answered itself.
    """
    split = served.policy.experiment
    if split is None or split.shadow is None:
        return None
    index, share = split.shadow
    shadow = split.arms[index]
    if shadow.name == arm or not is_among(share, request_id):
        return None
    own = registry.arm(served, shadow)
    return None if own is None else (own, shadow.name)


class Shadows:
    """Rankings that are compared and never sent. They give way to all requests, and are dropped under load."""

    def __init__(self, counters: Metrics) -> None:
        self._metrics = counters
        self._put, self._take = trio.open_memory_channel[_Shadow](SHADOWS_AT_ONCE)
        self.present = 0
        """Number of requests that are being answered."""

    def put(self, *shadow: *_Shadow) -> None:
        """Queue a ranking, or drop it if too many wait."""
        recipe = shadow[0]
        try:
            self._put.send_nowait(shadow)
        except trio.WouldBlock:
            self._count(recipe, "dropped")

    async def run(self) -> None:
        """Rank what waits, one after the other and while no request is answered, until cancelled."""
        async for recipe, sent, rank, log in self._take:
            with trio.move_on_after(SHADOW_PATIENCE_S) as patience:
                while True:
                    # Looks again and again, so that requests need not wake this task.
                    await trio.sleep(0.002)
                    if not self.present:
                        break
            if patience.cancelled_caught:
                self._count(recipe, "dropped")
                continue
            try:
                ids = await rank()
                if sent:  # a page behind the end of the ranking has no items
                    overlap = len(set(ids).intersection(sent)) / len(sent)
                    self._metrics.of(metrics.SHADOW_OVERLAP, recipe=recipe).observe(overlap)
                log([ids])
            except Overloaded:
                self._count(recipe, "dropped")
            except ApiError:
                self._count(recipe, "failed")
            except Exception as error:
                # Raised here it would end the server, of which this task is a part.
                log_failure(error)
                self._count(recipe, "failed")
            else:
                self._count(recipe, "compared")

    def _count(self, recipe: str, result: str) -> None:
        self._metrics.of(metrics.SHADOWS, recipe=recipe, result=result).inc()
