"""Compare the arms of an experiment by the events that followed their pages.

A page is a success if an event of its unit names one of its items within the window behind it. The pages of a unit are
not independent, so intervals count units. A rate R = Σ y / Σ n over N units has the variance
N / (N − 1) · Σ (y − R n)² / (Σ n)², by the delta method. Here n are the pages of a unit, and y its successful pages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import chisquare

from svc.asking.experiment import unit_digest
from svc.errors import DataSourceError, UsageError
from svc.experiments.events import Events
from svc.recipe.schema import Recipe
from svc.recipe.serving_schema import Experiment
from svc.recipe.training_schema import AGE_PATTERN, seconds
from svc.training.judging.intervals import CONFIDENCE, normal_reach

UNLIKELY_RATIO = 0.001
"""With a lower p, the arms did not get their units by their weights, and the comparison is void."""
_Z, _POWER_Z = normal_reach(CONFIDENCE), float(ndtri(0.8))
_WINDOW = re.compile(AGE_PATTERN)
_MEASURES = {"per_page": ("successes", "pages"), "per_unit": ("succeeded", "one"), "value_per_unit": ("value", "one")}
"""The counts of units whose sums make a rate: the numerator and the denominator."""


def compare_arms(lines: pa.Table, events: Events, recipe: Recipe, window: str) -> dict[str, Any]:
    """Return the figures of every arm, the check of the sample ratio, and the overlap with shadow pages.

    `lines` are those of a served log, and `window` is a duration such as 24h. Figures that the data do not give are
    None. A unit with pages of several arms is left out, because its events belong to none of them alone.

    Raises UsageError for a recipe without an experiment and for a window that is no duration. Raises DataSourceError if
    no page counts.
    """
    experiment = experiment_of(recipe)
    if _WINDOW.fullmatch(window) is None:
        raise UsageError(f"window: {window!r} is no duration; write 90min, 24h or 7d")
    is_own = pc.and_(pc.equal(lines["recipe"], recipe.name), pc.equal(lines["experiment"], experiment.name))
    own = lines.filter(is_own)
    # Only shadow pages have the field.
    is_shadow = pc.fill_null(own["shadow"], False)
    sent = own.filter(pc.invert(is_shadow))
    names = pa.array([arm.name for arm in experiment.arms])
    of_units = sent.filter(pc.is_valid(sent["unit"]))
    # An arm may have left the recipe while its pages are still in the log.
    of_arms = of_units.filter(pc.is_in(of_units["arm"], names))
    n_arms = of_arms.select(["unit", "arm"]).to_pandas().groupby("unit")["arm"].nunique()
    mixed = n_arms.index[n_arms > 1]
    pages = of_arms.filter(pc.invert(pc.is_in(of_arms["unit"], pa.array(mixed, pa.string())))).combine_chunks()
    left_out = {
        "pages_without_unit": sent.num_rows - of_units.num_rows,
        "pages_of_other_arms": of_units.num_rows - of_arms.num_rows,
        "units_in_several_arms": len(mixed),
    }
    if not pages.num_rows:
        raise DataSourceError(
            f"no page counts: of {lines.num_rows} lines of the served log, {sent.num_rows} are pages of the experiment "
            f"{experiment.name} of {recipe.name}{_counts(left_out)}"
        )
    units, unmatched = _units(pages, events, experiment.salt, 1000 * int(seconds(window) or 0))
    observed = [int((units["arm"] == arm.name).sum()) for arm in experiment.arms if arm.weight]
    return {
        "recipe": recipe.name,
        "experiment": experiment.name,
        "window": window,
        "arms": arm_figures(units, names.to_pylist()),
        "sample_ratio": {"p": ratio_p(observed, [arm.weight for arm in experiment.arms if arm.weight])},
        "shadow": _overlap(sent, own.filter(is_shadow)),
        "left_out": {reason: n for reason, n in (left_out | events.left_out | unmatched).items() if n},
    }


def experiment_of(recipe: Recipe) -> Experiment:
    """Return the recipe's experiment. Raises UsageError if there is none."""
    experiment = recipe.serving.experiment
    if experiment is None:
        raise UsageError(f"the recipe {recipe.name} has no serving.experiment")
    return experiment


def _counts(left_out: dict[str, int]) -> str:
    return "".join(f"; {reason.replace('_', ' ')}: {n}" for reason, n in left_out.items() if n)


def _units(pages: pa.Table, events: Events, salt: str, window: int) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return a row for each unit of `pages`: its arm, and its counts over all its pages.

    `places` has the place of the first event of each successful page. The window is in milliseconds. Also return the
    numbers of events of other units and of other items.
    """
    page_units, digests = pd.factorize(pages["unit"].to_pandas())
    times = pages["time"].cast(pa.int64()).to_numpy()
    items = pc.list_flatten(pages["items"]).combine_chunks().dictionary_encode()
    rows = pd.DataFrame({"page": pc.list_parent_indices(pages["items"]).to_numpy(), "item": items.indices.to_numpy()})
    rows = rows.assign(time=times[rows["page"]], place=rows.groupby("page").cumcount() + 1)
    # Each distinct unit is digested once, and not each event.
    of_units = pd.Index(digests).get_indexer(pd.Index([unit_digest(salt, str(unit)) for unit in events.units]))
    of_items = pd.Index(items.dictionary.to_pandas()).get_indexer(pd.Index(events.items))
    matching = events.table.assign(unit=of_units[events.table["unit"]], item=of_items[events.table["item"]])
    is_unit, is_item = matching["unit"] >= 0, matching["item"] >= 0
    left_out = {"events_of_other_units": (~is_unit).sum(), "events_of_items_not_served": (is_unit & ~is_item).sum()}
    matching = matching[is_unit & is_item].sort_values("time")
    matching = matching.assign(key=matching["unit"] * len(items.dictionary) + matching["item"], event=matching["time"])
    rows = rows.assign(key=page_units[rows["page"]] * len(items.dictionary) + rows["item"])
    # Without items that had no event, which are nearly all. Both tables of `merge_asof` must be in order of time.
    rows = rows[rows["key"].isin(matching["key"])].sort_values("time")
    options: dict[str, Any] = {"on": "time", "by": "key", "tolerance": window}
    after = pd.merge_asof(rows, matching[["time", "key", "event"]], direction="forward", **options).dropna()
    # A page counts once, by its first event.
    first = after.sort_values(["page", "event", "place"]).drop_duplicates("page")
    # The other way round, so that a value counts for the latest page only.
    credited = pd.merge_asof(matching, rows[["time", "key", "page"]], **options).dropna(subset="page")
    of_pages = pd.DataFrame({"unit": page_units, "arm": pages["arm"].to_pandas()}).groupby("unit")
    units = of_pages.agg(arm=("arm", "first"), pages=("arm", "size"))
    of_first = page_units[first["page"]]
    units = units.assign(one=1, successes=np.bincount(of_first, minlength=len(units)))
    units = units.assign(succeeded=units["successes"].clip(upper=1), places=first.groupby(of_first)["place"].agg(list))
    if "value" in matching:
        units["value"] = np.bincount(credited["unit"], credited["value"], minlength=len(units))
    return units, {reason: int(n) for reason, n in left_out.items()}


def arm_figures(units: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    arms: list[dict[str, Any]] = []
    firsts: dict[str, tuple[float, float] | None] = {}
    for name in names:
        own = units[units["arm"] == name]
        arm: dict[str, Any] = {"name": name, "units": len(own)}
        arm |= {count: int(own[count].sum()) for count in ("pages", "successes")}
        for measure, (counts, sizes) in _MEASURES.items():
            if counts in own:
                rate = _rate(own[counts].to_numpy(np.float64), own[sizes].to_numpy(np.float64))
                told: dict[str, Any] = {"rate": rate and rate[0], "interval": rate and _interval(*rate)}
                # A share lies between 0 and 1, a value anywhere.
                if measure != "value_per_unit" and told["interval"]:
                    told["interval"] = np.clip(told["interval"], 0, 1).tolist()
                if name != names[0]:
                    told["difference"] = _difference(rate, firsts[measure])
                firsts.setdefault(measure, rate)
                arm |= told if measure == "per_page" else {measure: told}
        places = own["places"].explode().dropna().astype(float)
        arm["first_place"] = {"mean": places.mean(), "median": places.median()} if len(places) else None
        arms.append(arm)
    return arms


def _rate(counts: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return Σ counts / Σ sizes over units and its variance, or None without a unit.

    The variance is 0, which stands for unknown, with one unit and with units that are all alike.
    """
    n, total = len(counts), sizes.sum()
    if not n:
        return None
    rate = counts.sum() / total
    return float(rate), float(n / max(n - 1, 1) * np.square(counts - rate * sizes).sum() / total**2)


def _interval(value: float, variance: float) -> list[float] | None:
    reach = _Z * math.sqrt(variance)
    return [value - reach, value + reach] if reach else None


def _difference(rate: tuple[float, float] | None, first: tuple[float, float] | None) -> dict[str, Any]:
    if rate is None or first is None:
        return {"value": None, "interval": None, "p": None}
    value, variance = rate[0] - first[0], rate[1] + first[1]
    p = 2 * float(ndtr(-abs(value) / math.sqrt(variance))) if variance else None
    return {"value": value, "interval": _interval(value, variance), "p": p}


def ratio_p(observed: Sequence[int], weights: Sequence[int]) -> float | None:
    """Return the p of the numbers of units under the weights, or None if only one arm has a weight."""
    if len(weights) < 2 or not any(observed):
        return None
    return float(chisquare(observed, np.array(weights) * (sum(observed) / sum(weights))).pvalue)


def _overlap(sent: pa.Table, shadow: pa.Table) -> dict[str, Any] | None:
    """Return the mean share of items that shadow pages of the latest arm have in common with the pages sent.

    Lines of a batch may have the same request and unit. They are matched in their order if no shadow page was dropped.
    """
    if not shadow.num_rows:
        return None
    arm = shadow["arm"][-1].as_py()
    of_sent = _numbered(sent.filter(pc.is_in(sent["request_id"], shadow["request_id"].combine_chunks())))
    pairs = of_sent.merge(
        _numbered(shadow.filter(pc.equal(shadow["arm"], arm))), on=["request_id", "unit", "number", "of"]
    )
    pages = zip(pairs["items_x"], pairs["items_y"], strict=True)
    shares = [len({*a} & {*b}) / max(len(a), len(b)) for a, b in pages if len(a) or len(b)]
    return {"arm": arm, "pages": len(shares), "overlap": sum(shares) / len(shares) if shares else None}


def _numbered(lines: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = lines.select(["request_id", "unit", "items"]).to_pandas().fillna({"unit": ""})
    groups = frame.groupby(["request_id", "unit"])["items"]
    return frame.assign(number=groups.cumcount(), of=groups.transform("size"))


def plan(rate: float, effect: float, units_a_day: int, weights: Sequence[int] = (1, 1)) -> dict[str, int]:
    """Return the units and days that show a relative `effect` on a rate per unit, with 80% power at 95% confidence.

    `weights` are those of the arms. The arm with the smallest weight above 0 decides. Raises UsageError.
    """
    changed = rate * (1 + effect)
    others = [weight for weight in weights[1:] if weight]
    # Checked itself, because a tiny effect has a square of 0.
    square = (changed - rate) * (changed - rate)
    if not (0 < rate < 1 and 0 < changed < 1 and square and units_a_day > 0):
        raise UsageError("plan: the rate must lie between 0 and 1, also after the effect, and no number may be 0")
    if not weights[0] or not others:
        raise UsageError("plan: the first arm and another one need weights above 0")
    # Per unit of all arms together: an arm of weight w gets w of the sum of weights.
    variance = rate * (1 - rate) / weights[0] + changed * (1 - changed) / min(others)
    units = math.ceil((_Z + _POWER_Z) ** 2 * sum(weights) * variance / square)
    return {"units": units, "days": math.ceil(units / units_a_day)}
