"""The split of tables whose events differ: some hide their items, and some are held out. Compared with plain loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from svc.recipe.schema import Cleansing, InteractionSchema
from svc.recipe.training_schema import Scheme, Split, Training
from svc.training.data.interactions import Interactions, from_rows
from svc.training.data.split import SplitMatrices, count_judged, global_cutoff, judging_most, split
from svc.training.data.where import kept_rows
from tests.training.data.test_interactions import recipe_of

SCHEMES: tuple[Scheme, ...] = ("random", "time_user", "time_global", "leave_one_out")
WEIGHTS: dict[str, Any] = {"view": 1, "cart": 3, "buy": 10, "no": "exclude"}
CHOICES = [(["buy"], ["buy"]), (["buy", "cart"], ["buy"]), ([], None), (None, ["buy", "cart"]), (["view"], ["cart"])]
NS = 1_000_000_000


class Event(NamedTuple):
    user: str
    item: str
    event: str
    time: int


def events_of(seed: int, *, n_users: int = 12, n_items: int = 9, n_rows: int = 160, n_times: int = 60) -> list[Event]:
    """Return random events, most of them views, many of the same item, and some at the same time."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["view", "cart", "buy", "no"], n_rows, p=[0.5, 0.2, 0.25, 0.05])
    numbers = (rng.integers(n, size=n_rows) for n in (n_users, n_items, n_times))
    return [Event(f"u{u}", f"i{i}", str(kind), int(time)) for u, i, time, kind in zip(*numbers, kinds, strict=True)]


def cleaned(
    rows: Sequence[Event],
    seen: Sequence[str] | None,
    target: Sequence[str] | None,
    *,
    timed: bool = True,
    weights: dict[str, Any] = WEIGHTS,
    **cleansing: Any,
) -> Interactions:
    frame = pd.DataFrame(rows, columns=Event._fields).astype(dict.fromkeys(("user", "item", "event"), "category"))
    schema = InteractionSchema(
        user_column="user", item_column="item", time_column="time", time_unit="s", event_column="event"
    )
    rules = Cleansing(event_weights=weights, seen=None if seen is None else tuple(seen), **cleansing)
    training = Training(split=Split(scheme="time_user" if timed else "random"), target=target)
    return from_rows(kept_rows(frame, None, None), recipe_of(schema, rules, training))


class Expected(NamedTuple):
    held: set[tuple[str, str]]
    before: list[Event]
    hidden: set[tuple[str, str]]


def expected(rows: list[Event], target: Sequence[str], scheme: Scheme, ratio: float, *, timed: bool) -> Expected:
    """Return what the page on splits says of `rows`, for the schemes that ignore the seed."""
    choices = [row for row in rows if row.event != "no"]
    place = {number: (row.time if timed else 0, number) for number, row in enumerate(choices)}
    latest: dict[str, dict[str, int]] = defaultdict(dict)
    first: dict[str, tuple[int, int]] = {}
    for number in sorted(place, key=place.__getitem__):
        user, item, event, _ = choices[number]
        first.setdefault(user, place[number])
        if event in target:
            latest[user][item] = number
    held: dict[str, list[tuple[str, int]]] = {}
    cutoff = 0
    if scheme == "time_global":
        times = sorted(choices[number].time for own in latest.values() for number in own.values())
        cutoff = times[int((1 - ratio) * (len(times) - 1) + 1e-9)]
    for user, own in latest.items():
        ordered = sorted(own.items(), key=lambda pair: place[pair[1]])
        if scheme == "time_global":
            late = [(item, number) for item, number in ordered if choices[number].time > cutoff]
            held[user] = late if first[user][0] <= cutoff else []
        elif scheme == "leave_one_out":
            held[user] = ordered[-1:] if first[user] < place[ordered[-1][1]] else []
        else:
            count = int(len(ordered) * ratio + 1e-9)
            held[user] = ordered[len(ordered) - count :]
    starts = {user: min(place[number] for _, number in own) for user, own in held.items() if own}
    if scheme == "time_global":
        before = [row for row in choices if row.time <= cutoff]
    else:
        before = [
            row for number, row in enumerate(choices) if row.user not in starts or place[number] < starts[row.user]
        ]

    def is_before(row: Event) -> bool:
        if not timed:
            return True
        if scheme == "time_global":
            return row.time <= cutoff
        return row.user not in starts or row.time < starts[row.user][0]

    hidden = {(row.user, row.item) for row in rows if row.event == "no" and is_before(row)}
    return Expected({(user, item) for user, own in held.items() for item, _ in own} - hidden, before, hidden)


def pairs(matrix: Any, data: Interactions, order: Any, offset: int = 0) -> set[tuple[str, str]]:
    rows, columns = matrix.nonzero()
    return {
        (data.user_ids[order[offset + row]], data.item_ids[column])
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    }


def values(matrix: Any, data: Interactions, order: Any) -> dict[tuple[str, str], float]:
    if matrix is None:
        return {}
    found = matrix.tocoo()
    return {
        (data.user_ids[order[row]], data.item_ids[column]): value
        for row, column, value in zip(found.row.tolist(), found.col.tolist(), found.data.tolist(), strict=True)
    }


@pytest.mark.parametrize(("seen", "target"), CHOICES)
@pytest.mark.parametrize(("scheme", "timed"), [*((scheme, True) for scheme in SCHEMES[1:]), ("leave_one_out", False)])
def test_the_split_is_that_of_plain_loops(
    scheme: Scheme, seen: list[str] | None, target: list[str] | None, *, timed: bool
) -> None:
    """Held-out pairs, the rows before them with the largest weight and latest time of each pair, and seen items."""
    for seed in range(20):
        rows, ratio = events_of(seed), (0.15, 0.4, 0.7)[seed % 3]
        data = cleaned(rows, seen, target, timed=timed)
        plan = Split(scheme=scheme, heldout_ratio=ratio, seed=1)
        parts = split(data, plan, keep_times=timed)
        want = expected(rows, target or ["view", "cart", "buy"], scheme, ratio, timed=timed)
        users, items = set(data.user_ids), set(data.item_ids)
        assert pairs(parts.heldout, data, parts.order, parts.val_offset) == want.held
        assert parts.n_heldout == len(want.held)
        assert count_judged(data, plan) == len({user for user, _ in want.held})
        most: dict[tuple[str, str], float] = defaultdict(float)
        latest: dict[tuple[str, str], int] = {}
        for row in want.before:
            pair = (row.user, row.item)
            most[pair] = max(most[pair], WEIGHTS[row.event])
            latest[pair] = max(latest.get(pair, 0), row.time)
        assert values(parts.train, data, parts.order) == most
        if timed:
            assert parts.times is not None and data.reference is not None
            # A time equal to the reference is an explicit zero, which has an entry too.
            ages = values(parts.times, data, parts.order)
            assert len({ages[pair] // NS - time for pair, time in latest.items()}) == 1
        if seen is not None:
            assert parts.seen is not None
            left_out = {(row.user, row.item) for row in want.before if row.event in seen}
            assert pairs(parts.seen, data, parts.order) == left_out
        else:
            assert parts.seen is None
        hidden = set() if parts.hidden is None else pairs(parts.hidden, data, parts.order)
        assert hidden == {(user, item) for user, item in want.hidden if user in users and item in items}


@pytest.mark.parametrize(("seen", "target"), CHOICES)
def test_a_random_split_knows_no_row_of_a_held_out_pair(seen: list[str] | None, target: list[str] | None) -> None:
    """Of each user, the share of pairs with a target row is held out, rounded down."""
    targets = set(target or ["view", "cart", "buy"])
    for seed in range(20):
        rows = [row for row in events_of(seed) if row.event != "no"]
        data = cleaned(rows, seen, target)
        parts = split(data, Split(scheme="random", heldout_ratio=0.4, seed=seed), keep_times=True)
        held = pairs(parts.heldout, data, parts.order, parts.val_offset)
        could = {(row.user, row.item) for row in rows if row.event in targets}
        assert held <= could
        for user in data.user_ids:
            assert sum(pair[0] == user for pair in held) == int(0.4 * sum(pair[0] == user for pair in could) + 1e-9)
        others = {(row.user, row.item) for row in rows} - held
        assert pairs(parts.train, data, parts.order) == others
        if seen is not None:
            left_out = {(row.user, row.item) for row in rows if row.event in seen} - held
            assert pairs(parts.seen, data, parts.order) == left_out


def content(parts: SplitMatrices, data: Interactions) -> list[dict[tuple[str, str], float]]:
    """Return the entries of all matrices by their ids. Rows that become hidden change the order of first appearance."""
    trained = [values(matrix, data, parts.order) for matrix in (parts.train, parts.times, parts.hidden, parts.seen)]
    return [*trained, values(parts.heldout, data, parts.order[parts.val_offset :])]


@pytest.mark.parametrize("scheme", ["time_user", "leave_one_out", "time_global"])
def test_a_row_behind_the_first_held_out_row_changes_nothing(scheme: Scheme) -> None:
    """Further rows of other events, or fewer of them, at later times leave the split as it is, to the bit."""
    n_changed = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, 1])
        rows = [*events_of(seed), Event("clock", "i0", "view", 100)]
        plan = Split(scheme=scheme, heldout_ratio=0.3, seed=1)
        data = cleaned(rows, ["buy"], ["buy"])
        before = split(data, plan, keep_times=True)
        wanted = expected(rows, ["buy"], scheme, 0.3, timed=True)
        trained = {id(row) for row in wanted.before}
        starts = {user for user, _ in wanted.held}
        late = [number for number, row in enumerate(rows) if id(row) not in trained and row.event in {"view", "cart"}]
        changed = list(rows)
        for number in late:
            if rows[number].user in starts:
                # Another event of another item, which appears in the table before and after.
                changed[number] = rows[number]._replace(event=str(rng.choice(["view", "cart", "no"])), item="i0")
                n_changed += 1
        changed += [Event(user, f"i{rng.integers(9)}", "cart", 99) for user in sorted(starts)]
        more = cleaned(changed, ["buy"], ["buy"])
        assert content(split(more, plan, keep_times=True), more) == content(before, data)
    assert n_changed > 50


@pytest.mark.parametrize("scheme", SCHEMES)
def test_events_that_all_hide_and_are_judged_split_as_without_them(scheme: Scheme) -> None:
    """No `seen` and no `target` splits the joined pairs, as a table of weights does."""
    rows = events_of(3)
    data = cleaned(rows, None, None)
    assert not data.divides_rows
    assert len(data) == len({(row.user, row.item) for row in rows if row.event != "no"})
    assert split(data, Split(scheme=scheme, seed=1)).seen is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_target_that_never_occurs_holds_out_nothing(scheme: Scheme) -> None:
    rows = [row for row in events_of(4) if row.event == "view"]
    data, plan = cleaned(rows, ["buy"], ["buy"]), Split(scheme=scheme, seed=1)
    assert split(data, plan).n_heldout == 0
    assert count_judged(data, plan) == 0
    assert count_judged(data, judging_most(data, plan)) == 0


def test_the_cut_off_is_that_of_target_rows() -> None:
    """Views behind the last purchase do not move it."""
    rows = [Event("a", "x", "buy", 1), Event("a", "y", "buy", 2), Event("a", "z", "buy", 3)]
    rows += [Event("a", "x", "view", time) for time in range(10, 30)]
    plan = Split(scheme="time_global", heldout_ratio=0.4, seed=1)
    assert global_cutoff(cleaned(rows, ["buy"], ["buy"]), plan) == 2 * NS
    assert global_cutoff(cleaned(rows, None, None, dedup="none"), plan) == 3 * NS
