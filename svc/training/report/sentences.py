"""The sentences of the report, read from the header of an artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from svc.recipe.algorithms import TAKES_RECENCY, TOP_POP, short_name
from svc.recipe.schema import BASELINE

_WEAK = 0.5
"""The verdict names the tail if its score is below this share of the score among the most popular items."""


def verdict(header: Mapping[str, Any], metric: str) -> str:
    """Return sentences that compare the winner with popularity, and tell if it is weak in the long tail."""
    return " ".join(filter(None, (_beside_popularity(header, metric), _weakness(header))))


def _beside_popularity(header: Mapping[str, Any], metric: str) -> str:
    if header["best_class"] == TOP_POP:
        return "Popularity alone won: everybody is recommended the same items, without those that they chose."
    score, evaluation, how = header["best_score"], header["evaluation"], "by the interval of its score"
    popularity = header["tuning"]["best_per_algorithm"].get(TOP_POP, {}).get("score")
    ends = [end / popularity - 1 for end in evaluation.get("interval", ())] if popularity else []
    users = " on the validation users" if "test" in evaluation else ""
    for comparison in header.get("promotion", {}).get("against", ()):
        if comparison["name"] == BASELINE:  # the gate judges on test users if there are any, by a narrower interval
            score, popularity, ends = (comparison[name] for name in ("candidate", "other", "interval"))
            how, users = "the interval of the gate", f" on {comparison['n_users']:,} users"
    if not popularity:
        return f"The best model scores {score:.3f} {metric}; there is no baseline, because TopPop has no score above 0."
    change = score / popularity - 1
    sentence = f"{abs(change):.1%} {'better' if change > 0 else 'worse'} than popularity"
    if ends:
        sentence += f" ({ends[0]:.1%} to {ends[1]:.1%}, {how})"
    return f"{sentence}: {score:.3f} against {popularity:.3f} {metric}{users}."


def _weakness(header: Mapping[str, Any]) -> str:
    """Return a sentence about the long tail, or "" if its score is not low (see _WEAK) or not measured."""
    name = header["metric"]
    values = {
        row["part"]: row["value"]
        for row in header["evaluation"].get("breakdown", ())
        if row["group"] == "popularity" and row["metric"] == name
    }
    tail, head = values.get("tail"), values.get("head")
    if tail is None or not head or tail >= _WEAK * head:
        return ""
    return f"Weak in the long tail: {tail:.3f} among the rarest items against {head:.3f} among the most popular ones."


_SAME = 1e-6
NO_BREAK = "\N{NO-BREAK SPACE}"
FEW_USERS = 200
"""With fewer scored users an interval is too short, because users with rare scores are missing from the sample."""


class Headline(NamedTuple):
    """The winner's score with its interval in brackets, or "" without one, and sentences about how certain it is."""

    score: float
    interval: str
    lines: Sequence[str]


def headline(header: Mapping[str, Any]) -> Headline:
    """Return the winner's score and its certainty.

    The score is that on the test users. If there are none, it is the best score of the search.
    """
    evaluation, test = header["evaluation"], header["evaluation"].get("test")
    score, ends, lines = header["best_score"], evaluation.get("interval", ()), []
    if test is not None:
        lines.append(f"on {test['n_scored_users']:,} test users that no trial has seen")
        lines.append(f"{with_interval(score, ends)} on the validation users, by whose scores it was chosen")
        score, ends = test[header["metric"]], test["interval"]
    lines += _corrections(evaluation)
    if "score_with_order" in header:
        lines.append(f"{header['score_with_order']:.4f} with the learned order of pages, on validation users")
    if "n_scored_users" in evaluation:
        lines.append(f"{evaluation['n_scored_users']:,} of {evaluation['n_users']:,} users were scored")
    return Headline(score, span(ends), lines)


def _corrections(evaluation: Mapping[str, Any]) -> list[str]:
    """Return a sentence on how the validation score's interval was corrected for the choice among trials.

    Return nothing if there were fewer than two trials, or if the header does not tell their number.
    """
    choice = evaluation.get("chosen_among")
    if choice is None or choice["trials"] + choice["unknown"] < 2:
        return []
    remedy = "" if "test" in evaluation else " (set split.test to avoid this)"
    return [
        f"The interval on validation users is corrected for the choice among {choice['trials'] + choice['unknown']:,}"
        " trials, but not for the fact that the search tuned parameters, epochs and blend weights on the same users"
        + remedy
    ]


def lead_sentences(header: Mapping[str, Any], metric: str) -> list[str]:
    """Return a sentence about the winner's lead over the next algorithm, or nothing if it was not measured."""
    lead = header["evaluation"].get("lead")
    if lead is None:
        return []
    verdict = "more than chance" if lead["more_than_chance"] else "no more than chance: both are equally good here"
    users = {"test": " on the test users", "validation": ", corrected for the choice of both"}.get(
        lead.get("users"), ""
    )
    rival = short_name(lead["over"])
    ahead = f"Ahead of {rival} by {lead['change']:.4f} {metric}"
    if lead["change"] < 0.0:
        ahead = f"Behind {rival} by {-lead['change']:.4f} {metric}"
    return [f"{ahead} {span(lead['interval'])}{users}: {verdict}."]


def met_sentences(header: Mapping[str, Any]) -> list[str]:
    """Return the shares and scores of held-out items met before and new to the user, or nothing without them."""
    rows = [row for row in header["evaluation"].get("breakdown", ()) if row["group"] == "met_before"]
    by = {(row["part"], row["metric"]): row for row in rows}
    if not by:
        return []
    metric = header["metric"]
    yes, no = (
        f"{row_figure(by[part, metric]) if (part, metric) in by else '0.0000'} {metric}" for part in ("yes", "no")
    )
    return [
        f"{by['yes', 'share']['value']:.1%} of the held-out items were met before, in another event: they score {yes}."
        f" The others were new to the user: {no}. Only these are discoveries."
    ]


def popularity_sentences(header: Mapping[str, Any]) -> list[str]:
    """Return the popularity of held-out and training items, or nothing for headers without these figures."""
    means = header["evaluation"].get("mean_popularity")
    if means is None:
        return []
    return [
        *met_sentences(header),
        f"Held-out interactions are with items that have {means['held_out']:,.1f} training users on average. For"
        f" training interactions it is {means['trained']:,.1f}. Data of another time may differ more: see"
        " split.scheme.",
    ]


def warnings(header: Mapping[str, Any]) -> list[str]:
    """Return warnings to read before trusting the model or its scores."""
    texts, stats = [], header["data_stats"]
    if header["best_class"] == TOP_POP:
        texts.append(
            "Popularity alone won: nobody gets personal recommendations. Look for more data or a longer search."
        )
    if stats["n_heldout_interactions"] < 1000:
        texts.append(f"Only {stats['n_heldout_interactions']} interactions were held out: scores are uncertain.")
    if header["tuning"]["failed"]:
        texts.append(f"{header['tuning']['failed']} trials failed; the log says why.")
    texts += doubts(header)
    by_rule = sum(stats.get(name, 0) for name in ("dropped_by_where", "hidden_by_rule", "dropped_by_min_interactions"))
    n_unusable = stats["drop_count"] - by_rule
    if n_unusable > 0.2 * max(stats["n_rows"] + n_unusable, 1):
        texts.append(f"Cleansing dropped {n_unusable:,} rows.")
    if stats.get("future_times"):
        texts.append(f"{stats['future_times']:,} rows have a time that is later than the start of the training.")
    return texts


def doubts(header: Mapping[str, Any]) -> list[str]:
    """Return warnings about a lead that may be chance and about intervals that are too narrow."""
    evaluation, texts = header["evaluation"], []
    lead, test = evaluation.get("lead"), evaluation.get("test", {})
    if lead is not None and not lead["more_than_chance"]:
        texts.append(f"The winner's lead over {short_name(lead['over'])} may be chance.")
    # Headers of earlier releases lack the number, and get no warning.
    n_users = test.get("n_scored_users", evaluation.get("n_scored_users", FEW_USERS))
    if n_users < FEW_USERS:
        texts.append(f"Only {n_users} users were scored: with fewer than {FEW_USERS} the intervals are too narrow.")
    return texts


def span(interval: Sequence[float]) -> str:
    """Return an interval in brackets, which no line break divides, or "" for an empty sequence: it was not measured."""
    return f"({interval[0]:.4f} to {interval[1]:.4f})".replace(" ", NO_BREAK) if interval else ""


def with_interval(value: float, interval: Sequence[float]) -> str:
    """Return a figure with its interval behind it, if this was measured."""
    return f"{value:.4f} {span(interval)}".rstrip()


def row_figure(row: Mapping[str, Any]) -> str:
    """Return the figure of a row of the header's `breakdown`."""
    return with_interval(row["value"], () if row["low"] is None else (row["low"], row["high"]))


def interval_of(header: Mapping[str, Any], score: float) -> Sequence[float]:
    """Return the interval of a winner's score or of an algorithm's best score, or nothing for other scores."""
    evaluation, metric = header["evaluation"], header["metric"]
    rows = [(row["score"], row) for row in header["tuning"]["best_per_algorithm"].values()]
    rows += [(row[metric], row) for row in (evaluation, evaluation.get("test", {})) if metric in row]
    return next((row["interval"] for value, row in rows if abs(value - score) < _SAME and "interval" in row), ())


def sampled(header: Mapping[str, Any], block: str, metric: str) -> list[Mapping[str, Any]]:
    """Return the rows of `recency` or `diversity`, which samples of users measure.

    A sample of all users gives the score of the search again. The row then has its interval, so that the page has one.
    """
    rows = header["evaluation"].get(block, {}).get("values", ())
    return [{**row, "interval": interval_of(header, row[metric]) or row["interval"]} for row in rows]


def decision_sentences(header: Mapping[str, Any]) -> list[str]:
    """Return the decision and the rule behind it, or nothing for a recipe without `promotion`."""
    promotion = header.get("promotion")
    if not promotion:
        return []
    promoted = promotion["decision"] == "promoted"
    verdict = "may go live" if promoted else "is refused"
    if promotion["mode"] == "report" and not promoted:
        verdict += "; the recipe only reports, so this does not keep it from going live"
    bound, share = f"{promotion['min_relative_change']:+.1%}", f"{promotion['confidence']:.0%}"
    lines = [
        f"The new model {verdict}.",
        f"Relative change of {promotion['metric']}, measured on the same held-out users; the lower end of each {share}"
        f" interval must reach {bound}.",
    ]
    if not promotion["against"]:
        lines.append("There was nothing to compare with.")
    return lines


def order_sentences(header: Mapping[str, Any]) -> Markup:
    """Return the effect of the order of histories in the model, and its reason. Recipe fields are marked as code."""
    return Markup("{} {}").format(_effect(header), _reason(header))


def tried_values(header: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the recencies at which the winner was measured for a report, with its scores.

    Return nothing for a training without a report, or if the search had a single recency to try.
    """
    return sampled(header, "recency", "score")


def _effect(header: Mapping[str, Any]) -> str:
    recency = header.get("recency")
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
            f"Recencies were judged on {users} validation users; one above the lowest is used only if its gain is more"
            " than chance."
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


def ranker_sentences(header: Mapping[str, Any], metric: str) -> str:
    """Return whether the ranker ships, with its cross-validated gain, or "" if none was evaluated."""
    ranker = header.get("ranker")
    if ranker is None:
        return ""
    gain, n_users = ranker["gain"], f"{ranker['n_users']:,}"
    judged = (
        f"On {n_users} validation users, each judged by weights fitted on other users, it changes {metric} by"
        f" {gain['value']:+.4f} ({gain['low']:+.4f}{NO_BREAK}to{NO_BREAK}{gain['high']:+.4f})."
    )
    if ranker["ships"]:
        return f"The 50 best items of the winner are put in a learned order. {judged}"
    return (
        "A learned order is not better than the winner's by more than chance, so pages keep the winner's order."
        f" {judged}"
    )


def ranker_groups(header: Mapping[str, Any]) -> Mapping[str, float]:
    """Return how far each group of the ranker's features moves recommended items, strongest first.

    Return nothing if no ranker ships.
    """
    groups: Mapping[str, float] = header.get("ranker", {}).get("groups", {})
    return dict(sorted(groups.items(), key=lambda group: -group[1]))


_METRICS = {
    "ndcg": "how high the held-out items rank in the list: 1 when they are at its top, less with each place below",
    "map": "the precision of the list down to the place of each held-out item, averaged over these items",
    "recall": "the share of a user's held-out items that the list holds",
    "hit": "the share of users whose list holds at least one held-out item",
    "precision": "the share of the list that are held-out items",
    "catalog_coverage": "the share of all items that are in at least one user's list",
    "entropy": "how evenly items are recommended: higher is more even",
    "gini_index": "how unevenly items are recommended: 0 when all equally often, near 1 when all get the same few",
}


_PLAIN_NAMES = {
    "catalog_coverage": "share of the items that are recommended",
    "appeared_item": "items that are recommended to anybody",
    "gini_index": "inequality among items (Gini)",
    "entropy": "evenness among items (entropy)",
    "hit": "users with a hit",
}


def plain_name(metric: str) -> str:
    """Return the name of a metric on the page, in words if its usual name is specific to a library."""
    return _PLAIN_NAMES.get(metric, metric)


def definitions(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name and definition of each metric in the evaluation. The metric of the search comes first."""
    searched = str(header["metric"])
    names = [searched, *(name for name in _METRICS if name in header["evaluation"] and name != searched)]
    return [(plain_name(name), _METRICS[name]) for name in names if name in _METRICS]


def feature_sentences(header: Mapping[str, Any]) -> list[str]:
    """Return a sentence on whether the model uses the recipe's features, and the list of their columns.

    Return nothing for a recipe without features.
    """
    features = header.get("features")
    if not features:
        return []
    sides = [side for side in ("user", "item") if side in features]
    columns = "; ".join(f"{side}: {', '.join(features[side]['columns'])}" for side in sides)
    use = (
        "From these features, the model answers for users and items that training never saw."
        if features.get("active")
        else "The model does not use these features: for users and items that training never saw it has no answer."
    )
    return [use, columns]
