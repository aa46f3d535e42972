"""Scans of item vectors: items, order and bits of scores are those of a full sort in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Ranking
from svc.model.recommenders import scan as scan_module
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.products import RoundedItems, norms, row_sums
from svc.model.recommenders.scan import Layout, Wanted, error_bound, scan

NONE = np.empty(0, dtype=np.int32)
KINDS = ["plain", "decaying", "even", "repeated", "coarse", "with zeros", "all zero", "tiny", "gaps", "one component"]
EXTREME = ["huge", "subnormal", "mixed"]
OFFSETS = ["none", "zero", "few", "many", "falling"]
LOOKS = ["float32", "cosine", "int8"]


def built(factors: np.ndarray) -> Layout:
    index = FactorIndex.build(factors.astype(np.float32))
    index.ready()
    return index.layout


def layout_of(factors: np.ndarray, look: str) -> Layout:
    """Return a layout with this first look, its pass with approximate scores.

    An int8 look is built even if it makes the scan slower.
    """
    index = FactorIndex.build(factors.astype(np.float32))
    index.ready()
    if look == "cosine":
        return index.cosines()
    return replace(index.layout, rounded=RoundedItems.of(index.factors) if look == "int8" else None)


def catalogue(kind: str, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    factors = rng.normal(size=(n, k)).astype(np.float32)
    if kind == "decaying":
        factors *= (rng.permutation(np.arange(1, n + 1)) ** -0.5)[:, np.newaxis].astype(np.float32)
    elif kind == "even":
        factors /= np.linalg.norm(factors, axis=1, keepdims=True)
    elif kind == "repeated":
        factors = factors[rng.integers(0, max(1, n // 10), n)]
    elif kind == "coarse":
        factors = np.round(factors)
    elif kind == "gaps":
        factors = factors[:1] * (1 + 1e-7 * rng.integers(0, 3, (n, 1))).astype(np.float32)
    elif kind == "one component":
        factors[:, 1:] *= np.float32(1e-9)
    scales = {
        "with zeros": rng.integers(0, 2, n).astype(np.float64),
        "all zero": np.zeros(n),
        "tiny": np.full(n, 1e-22),
        "huge": np.full(n, 1e37),
        "subnormal": np.full(n, 1e-42),
        "mixed": 10.0 ** rng.integers(-44, 37, n),
    }
    return (factors * scales.get(kind, np.ones(n))[:, np.newaxis]).astype(np.float32)


def addends(kind: str, n: int, rng: np.random.Generator) -> np.ndarray | None:
    return {
        "none": None,
        "zero": np.zeros(n),
        "few": np.where(rng.random(n) < 0.01, 50.0, 0.0),
        "many": rng.normal(size=n) * 9,
        "falling": np.linspace(30, -30, n),
    }[kind]


def random_conditions(n: int, size: int, offsets: str, rng: np.random.Generator) -> list[Wanted]:
    """Return limits from 1 to above the catalogue, exclusions, and sets of no, few and nearly all items."""
    questions = []
    for _ in range(size):
        share = rng.choice([0.0, 0.02, 0.1, 0.3, 0.9, 1.0, 1.0, 1.0])
        allowed = None if share == 1.0 else ItemSet.of_flags(rng.random(n) < share)
        excluded = rng.integers(0, n, rng.integers(0, rng.choice([1, 30, n + 1]))).astype(np.int32)
        own = addends(offsets, n, rng)
        limit = int(rng.choice([1, 3, 10, 32, 40, 250, n + 1]))
        questions.append(Wanted(limit, excluded, allowed, offsets=None if own is None else own.copy))
    return questions


def sorted_exactly(layout: Layout, vector: np.ndarray, wanted: Wanted) -> Ranking:
    """Return the ranking by a full sort of scores, summed as the scan sums them."""
    factors = layout.factors.astype(np.float64)
    scores = np.add.reduce(factors * vector, axis=1)
    if layout.inverse_norms is not None:
        lengths = norms(factors[:, :-1])
        np.divide(scores, lengths, out=scores, where=lengths > 0)
    if wanted.offsets is not None:
        scores += wanted.offsets()
    scores[layout.positions[wanted.excluded]] = -np.inf
    if wanted.allowed is not None:
        scores[~wanted.allowed.flags()[layout.columns]] = -np.inf
    order = np.lexsort((layout.columns, -scores))
    order = order[scores[order] > -np.inf][: wanted.limit]
    return Ranking(layout.columns[order], scores[order])


def check(layout: Layout, vectors: np.ndarray, questions: list[Wanted]) -> None:
    """Check each question alone and all of them together."""
    together = scan(layout, vectors, questions)
    for row, (wanted, ranking) in enumerate(zip(questions, together, strict=True)):
        expected = sorted_exactly(layout, vectors[row], wanted)
        (alone,) = scan(layout, vectors[[row]], [wanted])
        for found in (ranking, alone):
            assert found.items.tolist() == expected.items.tolist()
            assert found.items.dtype == np.int32
            assert found.scores.tolist() == expected.scores.tolist()
        assert alone.scores.tobytes() == ranking.scores.tobytes()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("kind", KINDS)
def test_rankings_are_those_of_a_full_sort(kind: str, offsets: str, look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, limits, exclusions, filters and offsets of any size agree, through every stage of a scan."""
    for name, value in {"FIRST_BLOCK": 512, "POOL_LIMIT": 512, "FIRST_GATHERED": 64}.items():
        monkeypatch.setattr(scan_module, name, value)
    for name in ("FIRST_BLOCK_PER_ITEM", "GATHERED_PER_ITEM"):
        monkeypatch.setattr(scan_module, name, 1)
    rng = np.random.default_rng([KINDS.index(kind), OFFSETS.index(offsets), LOOKS.index(look)])
    for n, k in ((1, 2), (300, 3), (3000, 8)):
        layout = layout_of(catalogue(kind, n, k, rng), look)
        for size in (1, 5, 12):
            vectors = rng.normal(size=(size, k))
            vectors[rng.random(size) < 0.1] = 0
            if look == "cosine":
                vectors[:, -1] = 0
            check(layout, vectors, random_conditions(n, size, offsets, rng))


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS + EXTREME),
    look=st.sampled_from(LOOKS),
    components=st.sampled_from([2, 7, 64, 680, 4_096]),
    scales=st.tuples(
        st.sampled_from([1e-200, 1e-44, 1e-3, 1.0, 1e30, 1e200]), st.sampled_from([0.0, 1e-40, 1.0, 1e60])
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_extreme_vectors_and_offsets_lose_no_item(
    kind: str, look: str, components: int, scales: tuple[float, float], seed: int
) -> None:
    """Rankings are exact beyond the range of float32. `scales` has the scale of the vectors and of the offsets."""
    rng = np.random.default_rng(seed)
    n_items = int(rng.integers(1, 90))
    layout = layout_of(catalogue(kind, n_items, components, rng), look)
    vectors = rng.normal(size=(rng.integers(1, 11), components)) * scales[0]
    if look == "cosine":
        vectors[:, -1] = 0
    questions = random_conditions(n_items, len(vectors), "none", rng)
    if scales[1]:
        own = np.where(rng.random(n_items) < 0.3, rng.normal(size=n_items), 0.0) * scales[1]
        questions = [wanted._replace(offsets=own.copy) for wanted in questions]
    check(layout, vectors, questions)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("components", [1, 8, 257])
def test_no_float32_product_errs_by_more_than_the_bound(components: int, scale: float) -> None:
    """The bound holds also for numbers so small that float32 loses them. It is small, so few items are rescored."""
    rng = np.random.default_rng(components)
    items = (rng.normal(size=(500, components)) * scale).astype(np.float32)
    for vector in rng.normal(size=(20, components)):
        approximate = (items @ vector.astype(np.float32)).astype(np.float64)
        true = row_sums(items.astype(np.float64) * vector)
        reach = np.linalg.norm(items.astype(np.float64), axis=1).max() * np.linalg.norm(vector)
        bound = error_bound(components, float(reach))
        assert np.abs(approximate - true).max() <= bound < 1e-4 * reach + 1e-34


@pytest.mark.parametrize("cosine", [False, True])
def test_an_allowed_part_without_the_best_is_ranked_as_by_a_full_sort(cosine: bool) -> None:
    """The ranking is exact although all items of the first block are excluded or not allowed."""
    rng = np.random.default_rng(8)
    layout = layout_of(rng.normal(size=(20_000, 12)), "cosine" if cosine else "float32")
    vector = np.append(rng.normal(size=11), 0.0)[np.newaxis]
    (everything,) = scan(layout, vector, [Wanted(20_000, NONE)])
    allowed, excluded = everything.items[7000:], everything.items[7000:7030]
    (ranking,) = scan(layout, vector, [Wanted(25, excluded, ItemSet.of_columns(allowed, 20_000))])
    assert ranking.items.tolist() == allowed[30:55].tolist()
    assert ranking.scores.tobytes() == everything.scores[7030:7055].tobytes()


def test_more_queries_than_are_scanned_at_once_give_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    layout = built(catalogue("decaying", 12_000, 24, rng))
    vectors = rng.normal(size=(300, 24))
    questions = [Wanted(10, rng.integers(0, 12_000, 20).astype(np.int32)) for _ in range(300)]
    check(layout, vectors, questions)


def test_an_unordered_ranking_of_all_holds_every_item() -> None:
    """An unordered ranking has the scores of the ordered one, in any order."""
    rng = np.random.default_rng(3)
    layout, vector = built(rng.normal(size=(500, 4))), rng.normal(size=(1, 4))
    (ordered,), (unordered,) = (
        scan(layout, vector, [Wanted(500, np.arange(9, dtype=np.int32), unordered=flag)]) for flag in (False, True)
    )
    order = np.lexsort((unordered.items, -unordered.scores))
    assert unordered.items[order].tolist() == ordered.items.tolist()
    assert unordered.scores[order].tobytes() == ordered.scores.tobytes()


def test_offsets_of_many_questions_are_computed_for_each_once() -> None:
    """Offsets are computed when their question is scanned, so offsets of a large batch are never in memory together."""
    rng = np.random.default_rng(5)
    layout, calls = built(catalogue("decaying", 9_000, 8, rng)), []

    def offsets() -> np.ndarray:
        calls.append(1)
        return np.zeros(9_000)

    scan(layout, rng.normal(size=(20, 8)), [Wanted(10, NONE, offsets=offsets)] * 20)
    assert len(calls) == 20
