"""The figures of a report are those of a count by hand, and its intervals and checks are right as often as they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

from svc.errors import DataSourceError, UsageError
from svc.experiments.events import clean_events, event_schema
from svc.experiments.report import UNLIKELY_RATIO, arm_figures, compare_arms, plan, ratio_p
from svc.experiments.served_log import read_served
from tests.experiments.lines import at, line, recipe, write

COLUMNS: dict[str, Any] = {"user_column": "unit", "item_column": "item", "time_column": "time"}


def report(
    folder: Path, lines: list[dict[str, Any]], events: Any, window: str = "24h", of: Any = None, **columns: Any
) -> dict[str, Any]:
    frame = pd.DataFrame(events, columns=["unit", "item", "time", "value"][: len(events[0])]) if events else None
    write(folder / "served.jsonl", lines)
    cleaned = clean_events(frame, event_schema({**COLUMNS, **columns}))  # type: ignore[arg-type]
    found = compare_arms(read_served(str(folder)), cleaned, of or recipe(), window)
    assert "NaN" not in json.dumps(found)
    return found


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {arm["name"]: arm for arm in found["arms"]}


def test_a_page_succeeds_by_an_event_of_its_unit_within_the_window(tmp_path: Path) -> None:
    """Events before the page, behind the window, of other units and of other items do not count.

    An event at the very time of the page counts, and one at the very end of the window.
    """
    lines = [
        line(unit, "control", ["a", "b"], minutes) for unit, minutes in (("u1", 0), ("u2", 0), ("u3", 5), ("u4", 0))
    ]
    lines += [line("u5", "next", ["a", "b"], 1), line("u6", "next", ["c", "d", "b"], 0), line("u6", "next", ["b"], 30)]
    events = [
        ("u1", "b", at(90)),
        ("u2", "b", at(90.001)),
        ("u3", "a", at(4.999)),
        ("u4", "c", at(1)),
        ("u9", "a", at(1)),
    ]
    events += [("u5", "a", at(1)), ("u6", "b", at(40)), ("u6", "d", at(50)), ("u6", "z", at(1))]
    found = report(tmp_path, lines, events, "90min")
    arms = by_name(found)
    assert [(arm["units"], arm["pages"], arm["successes"]) for arm in arms.values()] == [(4, 4, 1), (2, 3, 3)]
    assert arms["control"]["rate"] == 0.25
    assert "difference" not in arms["control"]
    assert arms["next"]["difference"]["value"] == 0.75
    assert arms["next"]["per_unit"]["rate"] == 1.0
    assert arms["control"]["first_place"] == {"mean": 2.0, "median": 2.0}
    assert arms["next"]["first_place"] == {"mean": pytest.approx(5 / 3), "median": 1.0}
    assert found["left_out"] == {"events_of_other_units": 1, "events_of_items_not_served": 1}


def test_values_of_events_behind_a_page_count_once(tmp_path: Path) -> None:
    """An event behind two pages counts once in values, and makes both pages successes. A repeated row is one event."""
    lines = [line("u1", "control", ["a"], 0), line("u1", "control", ["a"], 1), line("u2", "next", ["a"], 0)]
    events = [("u1", "a", at(2), 5.0), ("u1", "a", at(2), 5.0), ("u1", "a", at(3), 2.5), ("u1", "a", at(-1), 9.0)]
    found = report(tmp_path, lines, [*events, ("u2", "a", at(1), None)], weight_column="value")
    arms = by_name(found)
    assert (arms["control"]["value_per_unit"]["rate"], arms["control"]["successes"]) == (7.5, 2)
    assert (arms["next"]["value_per_unit"]["rate"], arms["next"]["successes"]) == (0.0, 1)
    assert found["left_out"] == {"events_repeated": 1, "values_without_number": 1}


def test_the_figures_are_those_of_a_count_by_hand(tmp_path: Path) -> None:
    """Random pages and events, counted pair by pair, and the variance written as in the definition."""
    rng = np.random.default_rng(5)
    items = [f"i{number}" for number in range(12)]
    units = [f"u{number}" for number in range(40)]
    pages = [
        (
            units[u],
            ["control", "next"][u % 2],
            [str(i) for i in rng.permutation(items)[:4]],
            float(rng.integers(0, 2000)),
        )
        for u in rng.integers(0, 40, 300)
    ]
    events = [
        (units[u], items[i], at(minutes := float(rng.integers(-100, 2500))), minutes)
        for u, i in zip(rng.integers(0, 40, 400), rng.integers(0, 12, 400), strict=True)
    ]
    found = by_name(report(tmp_path, [line(*page) for page in pages], events, "6h"))
    for arm, own in found.items():
        wins = {unit: [] for unit, name, *_ in pages if name == arm}
        places = []
        for unit, name, shown, minutes in pages:
            near = sorted(
                (when, shown.index(item) + 1)
                for who, item, _, when in events
                if name == arm and who == unit and item in shown and minutes <= when <= minutes + 360
            )
            if name == arm:
                wins[unit].append(bool(near))
            places += [near[0][1]] if near else []
        n, y = np.array([len(won) for won in wins.values()]), np.array([sum(won) for won in wins.values()])
        rate = y.sum() / n.sum()
        error = np.sqrt(len(n) / (len(n) - 1) * ((y - rate * n) ** 2).sum()) / n.sum()
        assert (own["units"], own["pages"], own["successes"]) == (len(n), n.sum(), y.sum())
        assert own["interval"] == pytest.approx([rate - 1.959964 * error, rate + 1.959964 * error])
        share = (y > 0).mean()
        reach = 1.959964 * np.sqrt(share * (1 - share) / (len(n) - 1))
        assert own["per_unit"]["interval"] == pytest.approx(np.clip([share - reach, share + reach], 0, 1))
        assert own["first_place"]["mean"] == pytest.approx(np.mean(places))
    first, second = found["control"], found["next"]
    errors = [(arm["interval"][1] - arm["rate"]) / 1.959964 for arm in (first, second)]
    difference = second["difference"]
    assert difference["value"] == pytest.approx(second["rate"] - first["rate"])
    assert np.diff(difference["interval"])[0] / 2 == pytest.approx(1.959964 * np.hypot(*errors))


def test_pages_that_cannot_be_credited_are_counted_apart(tmp_path: Path) -> None:
    """Pages of other recipes and experiments are not mentioned. Units in two arms, without id or of old arms are."""
    lines = [line("u1", "control", ["a"]), line("u2", "next", ["a"]), line(None, "control", ["a"])]
    lines += [line("u3", "control", ["a"]), line("u3", "next", ["a"], 1), line("u4", "gone", ["a"])]
    lines += [line("u5", "control", ["a"], recipe="films"), line("u6", None, ["a"], experiment=None)]
    events = [("u1", "a", at(1)), ("u3", "a", at(2)), ("", "a", at(1)), ("u1", None, at(1)), ("u1", "a", "soon")]
    found = report(tmp_path, lines, events)
    assert [(arm["units"], arm["pages"], arm["successes"]) for arm in found["arms"]] == [(1, 1, 1), (1, 1, 0)]
    assert found["left_out"] == {
        "pages_without_unit": 1,
        "pages_of_other_arms": 1,
        "units_in_several_arms": 1,
        "events_without_unit": 1,
        "events_without_item": 1,
        "events_without_time": 1,
        "events_of_other_units": 1,
    }


def test_one_unit_and_an_empty_arm_have_no_interval(tmp_path: Path) -> None:
    """Figures that the data do not give are null, never NaN and never an interval of no width."""
    three = recipe({"control": 1, "next": 1, "third": 0})
    found = report(tmp_path, [line("u1", "control", ["a"])], [("u1", "a", at(1))], of=three)
    control, following, _ = found["arms"]
    assert (control["rate"], control["interval"]) == (1.0, None)
    assert (following["units"], following["rate"], following["interval"], following["first_place"]) == (
        0,
        None,
        None,
        None,
    )
    assert following["difference"] == {"value": None, "interval": None, "p": None}
    assert found["sample_ratio"]["p"] == pytest.approx(chisquare([1, 0]).pvalue)
    lines = [line(f"u{number}", ["control", "next"][number % 2], ["a"]) for number in range(4)]
    alike = by_name(report(tmp_path, lines, [("u9", "a", at(1))]))["next"]
    assert (alike["rate"], alike["interval"], alike["difference"]["p"]) == (0.0, None, None)


def test_an_interval_of_a_share_stays_within_0_and_1(tmp_path: Path) -> None:
    lines = [line(f"u{number}", ["control", "next"][number % 2], ["a"]) for number in range(8)]
    arms = by_name(report(tmp_path, lines, [("u0", "a", at(1)), *((f"u{n}", "a", at(1)) for n in (1, 3, 5))]))
    assert arms["control"]["interval"][0] == 0.0
    assert arms["next"]["interval"][1] == 1.0
    assert arms["next"]["difference"]["interval"][1] > 1.0


@pytest.mark.parametrize(
    ("lines", "events", "window", "message"),
    [
        ([], [("u1", "a", at(0))], "24h", "no page counts: of 0 lines"),
        ([line(None, "control", ["a"])], [("u1", "a", at(0))], "24h", "no page counts: .*pages without unit: 1"),
        ([line("u", "control", ["a"])], [("u", "a", at(0))], "1 day", "window: '1 day' is no duration; write 90min"),
        ([line("u", "control", ["a"])], [("u", "a", 1764581400)], "24h", "--time-unit.*schema.time_unit .*in s"),
        ([line("u", "control", ["a"])], [("u", "a", "1764581400")], "24h", "--time-unit"),
        ([line("u", "control", ["a"])], [("", "a", at(0)), ("u", "a", "?")], "24h", "none of 2 rows has a unit, an"),
    ],
)
def test_inputs_without_an_answer_say_why(
    tmp_path: Path, lines: list[Any], events: list[Any], window: str, message: str
) -> None:
    with pytest.raises((UsageError, DataSourceError), match=message):
        report(tmp_path, lines, events, window)


def test_shadow_pages_are_compared_with_the_pages_sent(tmp_path: Path) -> None:
    """They never count as pages. Elements of a batch are matched in their order, unless one was dropped."""
    lines = [line("u1", "control", ["a", "b", "c", "d"]), line("u2", "control", ["a"], request_id="batch")]
    lines += [line("u2", "control", ["b"], request_id="batch"), line("u3", "next", ["a"], request_id="half")]
    lines += [line("u3", "next", ["b"], request_id="half"), line("u5", "next", [], 1)]
    lines += [
        line(unit, "next", items, shadow=True, **more)
        for unit, items, more in (
            ("u1", ["d", "x", "a", "y"], {}),
            ("u2", ["a"], {"request_id": "batch"}),
            ("u2", ["c"], {"request_id": "batch"}),
            ("u3", ["a"], {"request_id": "half"}),
            ("u4", ["a"], {}),
        )
    ]
    found = report(tmp_path, lines, [("u1", "x", at(1))])
    assert found["shadow"] == {"arm": "next", "pages": 3, "overlap": 0.5}
    assert [arm["pages"] for arm in found["arms"]] == [3, 3]
    assert found["arms"][0]["successes"] == 0


def units_of(rng: np.random.Generator, sizes: tuple[int, int], shift: float = 0.0) -> pd.DataFrame:
    """Return units with rates of their own around .1 and pages that grow with them. One in 20 has 50 times as many."""
    tables = []
    for name, n, mean in zip(("control", "next"), sizes, (0.1, 0.1 + shift), strict=True):
        rates = rng.beta(20 * mean, 20 * (1 - mean), n)
        pages = 1 + rng.poisson(4 + 20 * rates)
        pages = np.where(rng.random(n) < 0.05, 50 * pages, pages)
        tables.append(pd.DataFrame({"arm": name, "one": 1, "pages": pages, "rates": rates}))
    units = pd.concat(tables, ignore_index=True)
    units["successes"] = rng.binomial(units["pages"], units["rates"])
    units["succeeded"] = (units["successes"] > 0).astype(int)
    units["places"] = None
    return units


def true_rate(mean: float) -> float:
    """Return E[pages · rate] / E[pages] of `units_of`, where rates are Beta with a sum of 20."""
    variance = mean * (1 - mean) / 21
    return (5 * mean + 20 * (variance + mean**2)) / (5 + 20 * mean)


def test_intervals_cover_the_truth_and_no_effect_is_no_effect() -> None:
    """Of 400 experiments without an effect, 5% ± 2 have p < .05, and intervals cover the rate in 95% ± 2.

    With an effect, the intervals of the difference cover it in 95% ± 2.
    """
    rng = np.random.default_rng(2)
    truth, changed = true_rate(0.1), true_rate(0.13)
    covered, false_alarms, found = [], 0, []
    for _ in range(400):
        first, second = arm_figures(units_of(rng, (2000, 2000)), ["control", "next"])
        covered.append(first["interval"][0] <= truth <= first["interval"][1])
        false_alarms += second["difference"]["p"] < 0.05
        low, high = arm_figures(units_of(rng, (2000, 1000), 0.03), ["control", "next"])[1]["difference"]["interval"]
        found.append(low <= changed - truth <= high)
    assert 0.93 <= np.mean(covered) <= 0.97
    assert 0.93 <= np.mean(found) <= 0.97
    assert 0.03 <= false_alarms / 400 <= 0.07


def test_many_pages_of_a_unit_do_not_narrow_its_interval() -> None:
    """Every unit with 1,000 times the pages and successes has the same interval.

    Pages that counted one by one would make it 32 times as narrow.
    """
    units = units_of(np.random.default_rng(3), (200, 200))
    many = units.assign(pages=1000 * units["pages"], successes=1000 * units["successes"])
    for one, thousand in zip(*(arm_figures(table, ["control", "next"]) for table in (units, many)), strict=True):
        assert thousand["interval"] == pytest.approx(one["interval"])


def test_the_sample_ratio_is_doubted_only_with_a_reason() -> None:
    """At most one of 500 fair divisions is doubted. A division of 55 to 45 of 10,000 units always is."""
    rng = np.random.default_rng(4)
    weights = [90, 10]
    fair = [ratio_p(rng.multinomial(10_000, [0.9, 0.1]).tolist(), weights) for _ in range(500)]
    assert sum(p < UNLIKELY_RATIO for p in fair if p is not None) <= 1
    skewed = [ratio_p(rng.multinomial(10_000, [0.55, 0.45]).tolist(), [1, 1]) for _ in range(500)]
    assert all(p is not None and p < UNLIKELY_RATIO for p in skewed)
    assert ratio_p([5], [1]) is None


def test_a_plan_has_the_power_that_it_promises() -> None:
    """With the planned units, 80% of simulated experiments find the effect."""
    planned = plan(0.05, 0.1, 2000)
    assert planned == {"units": 62462, "days": 32}
    rng = np.random.default_rng(6)
    n = planned["units"] // 2
    first, second = rng.binomial(n, 0.05, 4000) / n, rng.binomial(n, 0.055, 4000) / n
    errors = np.sqrt((first * (1 - first) + second * (1 - second)) / n)
    assert 0.78 < np.mean(np.abs(second - first) > 1.96 * errors) < 0.82
    for weights in ((90, 10, 0), (45, 10, 45)):
        assert plan(0.05, 0.1, 2000, weights)["units"] > 2.5 * planned["units"]


@pytest.mark.parametrize(
    "wrong",
    [
        (0.0, 0.1, 9),
        (0.5, 1.0, 9),
        (0.5, 0.0, 9),
        (0.5, 1e-20, 9),  # changes no digit of the rate
        (1e-200, 0.1, 9),
        (0.5, 0.1, 0),
        (0.5, 0.1, 9, (1, 0)),
    ],
)
def test_a_plan_of_impossible_numbers_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="plan: "):
        plan(*wrong)
