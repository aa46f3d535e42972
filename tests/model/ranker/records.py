"""Random item records, and the features of a page computed one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from svc.model.ranker.item_record import NEIGHBOURS, ItemRecord
from svc.model.ranker.page_ranker import LAST, MOST_HISTORY, PageRanker


def random_record(rng: np.random.Generator, n_items: int, *, ordered: bool = True, tables: bool = True) -> ItemRecord:
    """Return a record of `n_items`. Without `tables`, the record has no labels and no numbers."""
    neighbours = np.full((n_items, NEIGHBOURS), n_items, dtype=np.int32)
    similarities = np.zeros((n_items, NEIGHBOURS), dtype=np.float32)
    for item in range(n_items):
        own = rng.permutation(n_items)[: rng.integers(0, min(n_items, NEIGHBOURS + 1))]
        neighbours[item, : len(own)] = own
        similarities[item, : len(own)] = np.sort(rng.random(len(own)))[::-1]
    widths = (5, 3) if tables else ()
    first_labels = np.concatenate([[0], np.cumsum(widths)]).astype(np.int32)
    lists, parts = [], []
    for _ in range(n_items):
        own_labels, own_parts = [], []
        for first, width in zip(first_labels.tolist(), widths, strict=False):
            chosen = np.sort(rng.permutation(width)[: rng.integers(0, 4)])
            own_labels += (first + chosen).tolist()
            own_parts += [1 / max(len(chosen), 1)] * len(chosen)
        lists.append(own_labels)
        parts.append(own_parts)
    names = ("popularity", "popularity_7d", "since_last_choice") if ordered else ("popularity",)
    numbers = rng.normal(size=(n_items, 2 if tables else 0))
    numbers[rng.random(numbers.shape) < 0.3] = np.nan
    return ItemRecord(
        popularity=np.log1p(rng.integers(0, 100, (n_items, len(names)))).astype(np.float32),
        popularity_names=names,
        neighbours=neighbours,
        similarities=similarities,
        label_names=("genres", "country") if tables else (),
        first_labels=first_labels,
        label_offsets=np.concatenate([[0], np.cumsum([len(own) for own in lists])]).astype(np.int32),
        labels=np.array([label for own in lists for label in own], dtype=np.int32),
        label_parts=np.array([part for own in parts for part in own], dtype=np.float32),
        number_names=("year", "price") if tables else (),
        numbers=numbers.astype(np.float32),
        ordered=ordered,
    )


def require_fitting(record: ItemRecord, n_items: int) -> None:
    """Assert that the arrays of a record fit `n_items` items and each other."""
    shapes = {
        "popularity": (n_items, len(record.popularity_names)),
        "neighbours": (n_items, NEIGHBOURS),
        "similarities": (n_items, NEIGHBOURS),
        "first_labels": (len(record.label_names) + 1,),
        "label_offsets": (n_items + 1,),
        "label_parts": record.labels.shape,
        "numbers": (n_items, len(record.number_names)),
    }
    assert {name: getattr(record, name).shape for name in shapes} == shapes
    assert (record.label_offsets[0], record.label_offsets[-1]) == (0, len(record.labels))
    assert (np.diff(record.label_offsets) >= 0).all()
    for array, end in ((record.neighbours, n_items + 1), (record.labels, record.first_labels[-1])):
        assert ((array >= 0) & (array < end)).all()


def random_ranker(
    rng: np.random.Generator, n_items: int, *, ordered: bool = True, tables: bool = True, weighs: bool = False
) -> PageRanker:
    """Return a ranker with random weights over a random record, ready to use."""
    record = random_record(rng, n_items, ordered=ordered, tables=tables)
    ranker = PageRanker(record, *np.empty((3, 0), dtype=np.float32), weighs)
    n_features = len(ranker.features)
    ranker.weights = rng.normal(size=n_features).astype(np.float32)
    ranker.means = rng.normal(size=n_features).astype(np.float32)
    ranker.deviations = (0.5 + rng.random(n_features)).astype(np.float32)
    ranker.ready()
    return ranker


def plain_features(
    record: ItemRecord,
    history: Sequence[int],
    items: Sequence[int],
    scores: Sequence[float],
    weights: Sequence[float] | None = None,
) -> dict[str, list[float]]:
    """Return each feature by its name, computed item by item. `weights` are those of the history."""
    h = list(history)[-MOST_HISTORY:]
    w = [1.0] * len(h) if weights is None else list(weights)[-MOST_HISTORY:]
    weight_of = dict(zip(h, w, strict=True))
    labels_of_history = [[_labels(record, chosen, number) for chosen in h] for number in range(len(record.label_names))]
    found: dict[str, list[float]] = {}
    for place, (item, score) in enumerate(zip(items, scores, strict=True)):
        row = {"score": score, "log_place": math.log(place + 1)}
        popularity = [float(value) for value in record.popularity[item]]
        row |= dict(zip(record.popularity_names, popularity, strict=True))
        mean = sum(float(record.popularity[chosen, 0]) * weight_of[chosen] for chosen in h) / sum(w) if h else 0.0
        row["popularity_by_history"] = popularity[0] * mean
        near = dict(zip(record.neighbours[item].tolist(), record.similarities[item].tolist(), strict=True))
        within = [chosen for chosen in h if chosen in near]
        row["strongest_neighbour"] = max((near[chosen] * weight_of[chosen] for chosen in within), default=0.0)
        row["number_of_neighbours"] = sum(weight_of[chosen] for chosen in within)
        if record.ordered:
            row["similarity_to_last"] = near.get(h[-1], 0.0) * w[-1] if h else 0.0
        for number, column in enumerate(record.label_names):
            own, chosen_labels = _labels(record, item, number), labels_of_history[number]
            row[f"{column}.missing"] = float(not own)
            row[f"{column}.share"] = _mean_share(own, chosen_labels, w)
            if record.ordered:
                row[f"{column}.share_of_last"] = _mean_share(own, chosen_labels[-LAST:], w[-LAST:])
        for number, column in enumerate(record.number_names):
            value = float(record.numbers[item, number])
            known = {chosen: float(v) for chosen in h if not math.isnan(v := record.numbers[chosen, number])}
            total = sum(weight_of[chosen] for chosen in known)
            row[f"{column}.missing"] = float(math.isnan(value))
            is_told = known and not math.isnan(value)
            sums = sum(weight_of[chosen] * own_value for chosen, own_value in known.items())
            row[f"{column}.distance"] = abs(value - sums / total) if is_told else 0.0
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def _labels(record: ItemRecord, item: int, number: int) -> list[int]:
    own = record.labels[record.label_offsets[item] : record.label_offsets[item + 1]].tolist()
    return [label for label in own if record.first_labels[number] <= label < record.first_labels[number + 1]]


def _mean_share(own: list[int], chosen_labels: list[list[int]], weights: list[float]) -> float:
    if not own or not chosen_labels:
        return 0.0
    shares = [
        sum(w for labels, w in zip(chosen_labels, weights, strict=True) if label in labels) / sum(weights)
        for label in own
    ]
    return sum(shares) / len(own)
