"""The arm of a request, the key of cached answers, and shadow rankings that give way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from svc.asking.experiment import arm_of
from svc.asking.policy import ArmOfModel, Policy, Split
from svc.asking.requests import RecommendRequest, RelatedRequest
from svc.errors import Overloaded, RecipeUnavailable
from svc.metrics import EXPERIMENT_REQUESTS, SHADOW_OVERLAP, SHADOWS, Metrics
from svc.recipe.serving_schema import ServedLog
from svc.serving.api import experiments
from svc.serving.api.experiments import NO_MODEL, Asker, Shadows, choose, log_pages, numbers_of, shadow_of
from svc.serving.models.registry import Entry, Registry, Served
from svc.serving.served_log import Line
from tests.serving.artifacts import served_model
from tests.serving.watched import until

pytestmark = pytest.mark.anyio
WEIGHTS = (3, 2, 1)
SPLIT = Split(
    "e",
    "salt",
    (
        ArmOfModel("a", WEIGHTS[0], Policy()),
        ArmOfModel("b", WEIGHTS[1], None),
        ArmOfModel("c", WEIGHTS[2], Policy(diversity=0.5)),
    ),
    (1, 1.0),
)
SETTINGS = ServedLog(path="/nowhere")
UNITS = [f"u{number}" for number in range(60)]


def registry(split: Split = SPLIT, *, b: Served | None = None) -> tuple[Registry, Served]:
    """Return a registry with a recipe, and the recipe's model. Arm b has the model `b`."""
    plain = served_model(SimpleNamespace(item_ids=None))
    served = plain.beside(None, None, Policy(experiment=split, served_log=SETTINGS))
    made = Registry()
    made.put(Entry("movies", "movies.yaml", served))
    if b is not None:
        made.put(Entry("movies@b", "movies.yaml", b))
    return made, served


def of_user(unit: str) -> RecommendRequest:
    return RecommendRequest(user_id=unit)


def test_the_unit_decides_the_arm_and_the_arm_the_model() -> None:
    """It is the `user_id` or else the `unit`, in every kind of request. Arms of one model differ in their rules."""
    own = served_model(name="movies@b")
    known, served = registry(b=own)
    expected = {"a": served.arms["a"], "b": own, "c": served.arms["c"]}
    for unit in UNITS:
        name = "abc"[arm_of("salt", WEIGHTS, unit)]
        for question in (
            of_user(unit),
            RecommendRequest(unit=unit),
            RecommendRequest(user_id=unit, unit="x"),
            RelatedRequest(seed_items=["i"], unit=unit),
        ):
            model, asker = choose(question, served, known)
            assert model is expected[name]
            assert asker == Asker(unit, name, name)
    assert served.arms["c"].policy.diversity == 0.5
    assert choose(RecommendRequest(seed="s"), served, known) == (served.arms["a"], Asker(None, "a", "a", "s"))
    plain = served_model()
    assert choose(of_user("u1"), plain, known) == (plain, Asker("u1"))


def test_the_first_arm_answers_for_an_arm_without_a_model() -> None:
    known, served = registry()
    unit = next(unit for unit in UNITS if arm_of("salt", WEIGHTS, unit) == 1)
    assert choose(of_user(unit), served, known) == (served.arms["a"], Asker(unit, "a", "b"))
    first = SPLIT._replace(arms=(SPLIT.arms[1], SPLIT.arms[0]))
    known, served = registry(first)
    for unit in UNITS:
        assert choose(of_user(unit), served, known)[0] in (served, served.arms["a"])


def test_requests_with_a_unit_are_counted_by_their_arm() -> None:
    metrics = Metrics.create()
    for asker in (Asker("u", "a", "a"), Asker(None, "a", "a"), Asker("u", "a", "b"), Asker("u")):
        asker.add_to(metrics, "movies", "ok")
    Asker("u", "c", "c").add_to(metrics, "movies", RecipeUnavailable.metric_status)
    for arm, status, count in (("a", "ok", 1), ("b", NO_MODEL, 1), ("b", "ok", 0), ("c", "unavailable", 1)):
        assert metrics.of(EXPERIMENT_REQUESTS, recipe="movies", arm=arm, status=status)._value.get() == count


def test_cached_answers_end_with_any_model_that_may_answer() -> None:
    known, served = registry()
    keys = {numbers_of(served, known)}
    for _ in range(2):
        known.put(Entry("movies@b", "movies.yaml", served_model(name="movies@b")))
        keys.add(numbers_of(served, known))
    keys.add(numbers_of(replace(served), known))
    assert len(keys) == 4
    plain = served_model()
    assert numbers_of(plain, known) == plain.number


def test_the_shadow_ranks_its_share_of_what_others_answered() -> None:
    own = served_model(name="movies@b")
    known, served = registry(b=own)
    assert shadow_of(served, known, "a", "r") == (own, "b")
    assert shadow_of(served, known, "b", "r") is None
    assert shadow_of(served_model(), known, None, "r") is None
    known, served = registry(SPLIT._replace(shadow=(1, 0.25)), b=own)
    ranked = sum(shadow_of(served, known, "a", str(number)) is not None for number in range(4000))
    assert 900 < ranked < 1100
    known, served = registry()
    assert shadow_of(served, known, "a", "r") is None


def test_each_page_has_a_line() -> None:
    lines: list[Any] = []
    log: Any = SimpleNamespace(put=lambda *line: lines.append(line))
    _, served = registry()
    about = {"request_id": "r", "verb": "page", "model_version": "v"}
    log_pages(log, served, Asker("u", "a", "a", "s"), [["i1"], ["i2", "i3"]], **about)
    assert [settings for settings, _ in lines] == [SETTINGS] * 2
    first: Line = lines[0][1]
    assert first._replace(time_s=0) == Line(0, "r", "movies", "page", ("e", "salt"), "a", "v", "u", ["i1"], "s", False)
    assert [line.items for _, line in lines] == [["i1"], ["i2", "i3"]]
    log_pages(log, served_model(), Asker("u"), [["i1"]], **about)
    assert len(lines) == 2


async def test_shadows_wait_for_requests_and_are_dropped_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is counted once, and a failed one stops no other."""
    monkeypatch.setattr(experiments, "SHADOW_PATIENCE_S", 0.1)
    metrics, logged = Metrics.create(), list[Sequence[str]]()
    shadows = Shadows(metrics)
    errors: list[Exception | None] = [None, Overloaded(), RecipeUnavailable(), None]
    order = list[str]()

    async def rank() -> list[str]:
        order.append("shadow")
        error = errors.pop(0)
        if error is not None:
            raise error
        return ["i2", "i3", "i4"]

    def put() -> None:
        shadows.put("movies", ["i1", "i2", "i3", "i4"], rank, logged.extend)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shadows.run)
        shadows.present = 1
        put()
        await trio.sleep(0.05)
        assert order == []
        shadows.present = 0
        for _ in range(3):
            put()
        await trio.sleep(0.1)
        shadows.present = 1
        put()
        await trio.sleep(0.2)
        assert len(order) == 4
        # `run` takes one of them at once, and five are too many.
        for _ in range(experiments.SHADOWS_AT_ONCE + 6):
            put()
        nursery.cancel_scope.cancel()
    counts = Counter({r: metrics.of(SHADOWS, recipe="movies", result=r)._value.get() for r in ("compared", "failed")})
    assert counts == {"compared": 2, "failed": 1}
    assert metrics.of(SHADOWS, recipe="movies", result="dropped")._value.get() == 1 + 1 + 5
    assert metrics.of(SHADOW_OVERLAP, recipe="movies")._sum.get() == 2 * 0.75
    assert logged == [["i2", "i3", "i4"]] * 2


async def test_a_page_without_items_has_no_share() -> None:
    """Its shadow ranking is counted and logged."""
    metrics, logged = Metrics.create(), list[Sequence[str]]()
    shadows = Shadows(metrics)

    async def rank() -> list[str]:
        return []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shadows.run)
        shadows.put("movies", [], rank, logged.extend)
        await until(lambda: bool(logged))
        nursery.cancel_scope.cancel()
    assert metrics.of(SHADOWS, recipe="movies", result="compared")._value.get() == 1
    assert not any(bucket.get() for bucket in metrics.of(SHADOW_OVERLAP, recipe="movies")._buckets)


async def test_a_shadow_that_cannot_be_logged_stops_no_other() -> None:
    metrics, logged = Metrics.create(), list[Sequence[str]]()
    shadows = Shadows(metrics)

    async def rank() -> list[str]:
        return ["i1"]

    def fail(_pages: Sequence[Sequence[str]]) -> None:
        raise ValueError("no line")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shadows.run)
        for log in (fail, logged.extend):
            shadows.put("movies", ["i1"], rank, log)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert logged == [["i1"]]
    assert metrics.of(SHADOWS, recipe="movies", result="failed")._value.get() == 1
