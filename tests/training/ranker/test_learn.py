"""A training with a ranker, which learns the order of pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from svc.artifact.versions import facts_of
from svc.model.load_model import load_model
from svc.model.model import Model
from svc.model.ranker.page_ranker import REORDERED
from svc.model.ranking.query import Ranking
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import BASELINE
from svc.sources.base import DataSource, build_source
from svc.training.judging.evaluator import Rows
from svc.training.judging.rankers import ServedRanker
from svc.training.ranker.learn import OrderedRanker
from tests import planned
from tests.model.ranker.records import random_ranker
from tests.model.ranker.test_page_ranker import HISTORY, plain_page
from tests.model.ranker.test_page_ranker import N_ITEMS as N_ORDERED
from tests.training.runs import OUTPUT, SCHEMA, Log, Make, header, payload, records_of, run
from tests.training.runs import training as of_one

N_ITEMS, N_GENRES = 120, 8


def write_shop(folder: Path, *, n_users: int = 260, by_genre: bool) -> tuple[Path, Path]:
    """Write choices, by taste (four of five in one genre) or at random, and a table of genres and sizes."""
    rng = np.random.default_rng(7)
    lines = ["user_id,item_id,ts"]
    for user in range(n_users):
        own = np.arange(user % N_GENRES, N_ITEMS, N_GENRES)
        chosen = rng.choice(own if by_genre else N_ITEMS, size=8, replace=False)
        others = rng.choice(N_ITEMS, size=2, replace=False)
        items = dict.fromkeys([*chosen.tolist(), *others.tolist()])
        lines += [f"u{user},i{item},{1_600_000_000 + step * 864_000 + user}" for step, item in enumerate(items)]
    ratings, table = folder / "shop.csv", folder / "genres.csv"
    ratings.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [f"i{item},{item % N_GENRES}|all,{rng.integers(100)}" for item in range(N_ITEMS)]
    table.write_text("\n".join(["item_id,genres,size", *rows]) + "\n", encoding="utf-8")
    return ratings, table


def recipe(
    make_recipe: Make, folder: Path, *, by_genre: bool, n_users: int = 260, promotion: Any = None, **training: Any
) -> LoadedRecipe:
    ratings, table = write_shop(folder, n_users=n_users, by_genre=by_genre)
    fields = [{"name": "genres", "kind": "multi_label"}, {"name": "size", "kind": "numerical"}]
    return make_recipe(
        ratings=ratings,
        item_metadata={
            "source": {"type": "csv", "path": str(table)}, "id_column": "item_id", "filter_fields": fields
        },
        training=of_one("TopPop", **{"cutoff": 10, "ranker": "search", **training}),
        output=OUTPUT,
        promotion=promotion,
    )  # fmt: skip


def trained(loaded: LoadedRecipe, **options: Any) -> tuple[Mapping[str, Any], bytes]:
    """Return header and payload of a training."""
    artifact = run(loaded, **options).artifact
    return header(artifact), payload(artifact)


def loaded_model(head: Mapping[str, Any], encoded: bytes) -> Model:
    return load_model(head, memoryview(encoded), name="shop", allow_skew=False)


@pytest.mark.usefixtures("without_drawing")
def test_labels_that_predict_choices_order_the_pages_of_the_model(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """A gate scores the new model with weights that were fitted on other users.

    Its score is that of the winner plus the gain.
    """
    loaded, began = recipe(make_recipe, tmp_path, by_genre=True, promotion={"mode": "report"}), time.monotonic()
    head, encoded = trained(loaded, report=tmp_path / "report.html")
    fields = head["ranker"]
    (baseline,) = (row for row in head["promotion"]["against"] if row["name"] == BASELINE)
    assert baseline["candidate"] == pytest.approx(head["best_score"] + fields["gain"]["value"], abs=1e-6)
    assert head["score_with_order"] == fields["score_with"] == pytest.approx(baseline["candidate"], abs=1e-6)
    assert fields["score_without"] == pytest.approx(head["best_score"], abs=1e-6)
    assert head["promotion"]["candidate_with_order"] is True
    assert facts_of(head)["score_with_order"] == head["score_with_order"]
    assert 0 < fields["seconds"] <= time.monotonic() - began
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="How far each group of features moves the items of a page"' in page
    assert "genres.share_of_last" in page
    assert fields["ships"]
    assert 0 < fields["gain"]["low"] < fields["gain"]["value"] < fields["gain"]["high"]
    weights = {feature["name"]: feature["weight"] for feature in fields["features"]}
    assert weights["genres.share"] > 0.1 > abs(weights["size.distance"])
    assert max(fields["groups"], key=fields["groups"].get) in {"labels", "neighbours"}
    (judged,) = records_of(log, "ranker_judged")
    same = ("ships", "gain", "n_users", "seconds")
    assert [judged[name] for name in same] == [fields[name] for name in same]
    assert (judged["metric"], judged["n_users"]) == ("ndcg", 260)
    assert not records_of(log, "ranker_metadata_left_out")

    model = loaded_model(head, encoded)
    assert model.ranker is not None and model.history.is_ordered
    queries = [planned.known_user(model, user, limit=REORDERED) for user in range(20)]
    winners = model.scorer.rank([query._replace(limit=N_ITEMS) for query in queries], model.history)
    pages = model.rank(queries)
    for user, (page, winner) in enumerate(zip(pages, winners, strict=True)):
        history = model.history.items(user).tolist()
        assert page.items.tolist() == plain_page(model.ranker, winner, history)[:REORDERED]
        assert model.rank([queries[user]])[0].scores.tobytes() == page.scores.tobytes()
    assert trained(loaded)[1] == encoded
    assert trained(loaded, refit=True)[0]["ranker"]["gain"] == fields["gain"]


def test_a_learned_order_reads_the_weights_of_events(
    make_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Purchases are of the user's genre, and twice as many views of any. Served pages are those of the weights.

    The gate judges the same pages, by histories in the order of the served ones. If all events hide their items and are
    judged, weights are not read.
    """
    in_order = []

    def recorded(own: ServedRanker, *others: Any) -> OrderedRanker:
        in_order.append(own.model.history.is_ordered)
        return OrderedRanker(own, *others)

    monkeypatch.setattr("svc.training.ranker.learn.OrderedRanker", recorded)
    loaded = recipe(make_recipe, tmp_path, by_genre=True)
    ratings, rng = tmp_path / "shop.csv", np.random.default_rng(3)
    lines = ratings.read_text(encoding="utf-8").splitlines()
    rows = []
    for user, item, ts in (line.split(",") for line in lines[1:]):
        is_taste = (int(user[1:]) - int(item[1:])) % N_GENRES == 0
        rows.append(f"{user},{item},{ts},{'buy' if is_taste else 'view'}")
        rows += [f"{user},i{other},{int(ts) - 9},view" for other in rng.integers(N_ITEMS, size=2)]
    ratings.write_text("\n".join(["user_id,item_id,ts,event", *rows]) + "\n", encoding="utf-8")
    table = loaded.recipe.item_metadata
    assert table is not None
    options: dict[str, Any] = {
        "ratings": ratings,
        "schema": {**SCHEMA, "event_column": "event"},
        "item_metadata": table.model_dump(mode="json", exclude_unset=True),
        "output": OUTPUT,
    }
    weights, kinds = {"view": 1, "buy": 10}, {"seen": ["buy"]}
    training = {"cutoff": 10, "ranker": "search", "split": {"scheme": "leave_one_out"}}
    head, encoded = trained(
        make_recipe(
            **options,
            cleansing={"event_weights": weights, **kinds},
            training=of_one("TopPop", **training, target=["buy"]),
            promotion={"mode": "report"},
        )
    )
    assert head["ranker"]["ships"]
    (baseline,) = (row for row in head["promotion"]["against"] if row["name"] == BASELINE)
    assert baseline["candidate"] == pytest.approx(head["best_score"] + head["ranker"]["gain"]["value"], abs=1e-6)
    model, n_read = loaded_model(head, encoded), 0
    ranker = model.ranker
    assert in_order == [True, True]
    assert ranker is not None and ranker.weighs
    means = dict(zip((feature.name for feature in ranker.features), ranker.means.tolist(), strict=True))
    assert means["strongest_neighbour"] > 1  # a similarity is at most 1, before it is multiplied by a weight
    queries = [planned.known_user(model, user, limit=REORDERED) for user in range(40)]
    winners = model.scorer.rank([query._replace(limit=N_ITEMS) for query in queries], model.history)
    for user, (page, winner) in enumerate(zip(model.rank(queries), winners, strict=True)):
        history, values = model.history.items(user).tolist(), model.history.values(user)
        assert values is not None and set(values.tolist()) == {1, 10}
        assert page.items.tolist() == plain_page(ranker, winner, history, values.tolist())[:REORDERED]
        n_read += page.items.tolist() != plain_page(ranker, winner, history)[:REORDERED]
    assert n_read > 20
    head, encoded = trained(
        make_recipe(**options, cleansing={"event_weights": weights}, training=of_one("TopPop", **training))
    )
    ranker = loaded_model(head, encoded).ranker
    assert ranker is None or not ranker.weighs


@pytest.mark.parametrize("n_users", [260, 150])
def test_without_a_gain_the_payload_is_the_one_without_a_ranker(
    n_users: int, make_recipe: Make, tmp_path: Path, log: Log
) -> None:
    """Random choices have no order to learn. With few users, a gain may be chance."""
    head, encoded = trained(recipe(make_recipe, tmp_path, by_genre=False, n_users=n_users))
    if n_users == 260:
        assert not head["ranker"]["ships"]
        assert "score_with_order" not in {**head, **facts_of(head)}
        assert "features" not in head["ranker"]
        assert head["ranker"]["gain"]["low"] <= 0
    else:
        assert "ranker" not in head
        (skipped,) = records_of(log, "ranker_skipped")
        assert skipped["reason"].startswith("150 validation users, fewer than the 200")
    without, same = trained(recipe(make_recipe, tmp_path, by_genre=False, n_users=n_users, ranker="off"))
    assert encoded == same
    assert "ranker" not in without


def test_a_ranking_that_would_take_too_long_keeps_the_order_of_the_winner(
    make_recipe: Make, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to the winner's deeper ranking and its reordering together."""
    timed: list[Model] = []

    def slow_ms(model: Model, rows: NDArray[np.int64]) -> float:
        assert len(model.rank([planned.known_user(model, int(rows[0]), limit=10)])[0].items) == 10
        timed.append(model)
        return 70.5

    monkeypatch.setattr("svc.training.ranker.learn.rank_ms", slow_ms)
    slow, encoded = trained(recipe(make_recipe, tmp_path, by_genre=True, max_rank_ms=70))
    (skipped,) = records_of(log, "ranker_skipped")
    assert skipped["reason"] == "a ranking with it takes 70.5 ms, more than training.max_rank_ms"
    assert [model.ranker is not None for model in timed] == [True]
    assert "ranker" not in slow
    assert loaded_model(slow, encoded).ranker is None


def test_metadata_that_goes_during_the_search_is_left_out_with_the_reason(
    make_recipe: Make, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_after_the_search(*arguments: Any) -> DataSource:
        (tmp_path / "genres.csv").unlink()
        return build_source(*arguments)

    monkeypatch.setattr("svc.training.ranker.record.build_source", build_after_the_search)
    head, _ = trained(recipe(make_recipe, tmp_path, by_genre=True))
    (left_out,) = records_of(log, "ranker_metadata_left_out")
    assert "genres.csv" in left_out["reason"]
    assert not [feature for feature in head["ranker"]["features"] if feature["group"] in {"labels", "numbers"}]


class Falling:
    """Ranks items by descending column, without the items in `gone`."""

    def __init__(self, gone: sparse.csr_matrix) -> None:
        self.gone = gone

    def excluding(self, pairs: sparse.csr_matrix) -> Falling:
        return Falling(pairs)

    def pools(self, users: Rows, size: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        for user in users.tolist():
            items = np.setdiff1d(np.arange(N_ORDERED), self.gone[user].indices)[::-1][:size].astype(np.int32)
            yield items, items.astype(np.float64)


def test_each_row_has_the_order_of_its_own_ranker_without_excluded_items() -> None:
    everyone, judge = (random_ranker(np.random.default_rng(seed), N_ORDERED) for seed in (1, 2))
    own = Falling(sparse.csr_matrix((1, N_ORDERED)))
    users, history = np.zeros(1, dtype=np.int64), HISTORY.items(0).tolist()
    without = sparse.csr_matrix(([1.0], ([0], [N_ORDERED - 3])), shape=(1, N_ORDERED))
    for judges, ranker in (({}, everyone), ({0: judge}, judge)):
        ordered = OrderedRanker(own, everyone, judges, HISTORY)
        for ranked, winner in ((ordered, own), (ordered.excluding(without), Falling(without))):
            ((items, scores),) = winner.pools(users, N_ORDERED)
            for size in (10, 70, N_ORDERED):
                assert ranked(users, size) == [plain_page(ranker, Ranking(items, scores), history)[:size]]
