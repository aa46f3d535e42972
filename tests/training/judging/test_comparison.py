"""The comparison of a new model with the live one and with popularity, and its form in the header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.artifact.keys import development_keys
from svc.errors import FeatureRidgeFailed
from svc.model.load_model import load_model
from svc.model.model import Model
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.judging import comparison
from svc.training.judging.comparison import ModelComparison, live_model
from svc.training.judging.incumbent import Incumbent, read_incumbent
from svc.training.judging.task import Task
from tests import planned
from tests.training.runs import OUTPUT, Log, Make, features_of, header, records_of, run, task_of, training, write_tastes

FUTURE_S = 4_000_000_000
LEARNS_BY_HEART = {"TruncatedSVD": {"n_components": [50, 50], "weighting": ["NONE"]}}


def open_live(loaded: LoadedRecipe) -> Model:
    found = read_incumbent(loaded, development_keys(), Settings())
    assert found is not None
    return load_model(found.header, found.payload, name="small", allow_skew=False)


SPLITS = [{"scheme": "time_user", "heldout_ratio": 0.3}, {"scheme": "time_global", "heldout_ratio": 0.3}]


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split["scheme"])
def test_a_live_model_that_memorized_the_held_out_rows_is_replaced(
    split: dict[str, Any], make_recipe: Make, tmp_path: Path
) -> None:
    """A memorizing model scores best on rows of its own training, and poorly on others.

    If the live model were scored as it is, it would stay. A comparison with the refitted live model lets the new model
    go live.
    """
    table = write_tastes(tmp_path / "tastes.csv", n_users=240)
    bound = -0.2  # half of the interval of 240 users
    rules = {"mode": "enforce", "against": ["incumbent"], "min_relative_change": bound}
    blocks = {"ratings": table, "output": OUTPUT, "promotion": {**rules, "guardrails": {"catalog_coverage": None}}}
    by_heart = training("TruncatedSVD", search_space=LEARNS_BY_HEART, split=split)
    assert run(make_recipe(training=by_heart, **blocks)).exit_code == 0
    result = run(make_recipe(training=training(split=split), **blocks))
    assert result.exit_code == 0
    (comparison,) = header(result.artifact)["promotion"]["against"]
    assert comparison["scored"] == "refitted"
    assert comparison["interval"][0] >= bound


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split["scheme"])
def test_a_worse_model_is_refused_although_the_live_one_cannot_recommend_held_out_items(
    split: dict[str, Any], make_recipe: Make, tmp_path: Path
) -> None:
    """A served model never recommends seen items, and the live model has seen all held-out items.

    If the live model were scored as it is, it would get 0, and any model would go live. A comparison with the refitted
    live model refuses a worse model.
    """
    table = write_tastes(tmp_path / "tastes.csv", n_users=240)
    blocks = {"ratings": table, "output": OUTPUT, "promotion": {"mode": "enforce", "against": ["incumbent"]}}
    assert run(make_recipe(training=training(split=split), **blocks)).exit_code == 0
    result = run(make_recipe(training=training("TopPop", split=split), **blocks))
    assert result.exit_code == 9
    (comparison,) = header(result.artifact)["promotion"]["against"]
    assert comparison["interval"][1] < -0.2


def two_times(folder: Path, *, repeats: bool = False) -> tuple[Path, Path]:
    """Write a table of the past, and the same table with later rows, a quarter of all, which will be held out."""
    past = write_tastes(folder / "past.csv", last=slice(0, 7)).read_text().splitlines()
    soon = write_tastes(folder / "soon.csv", start_s=FUTURE_S, last=slice(7, 9)).read_text().splitlines()[1:]
    late = write_tastes(folder / "late.csv", start_s=FUTURE_S, last=slice(9, 12)).read_text().splitlines()[1:]
    again = [line.replace(line.rsplit(",")[2], str(FUTURE_S + 2_000_000)) for line in past[1:31]] if repeats else []
    strangers = [f"stranger{n},i{n + day},{FUTURE_S + day * 86_400}" for n in range(5) for day in (7, 10)]
    both = folder / "both.csv"
    both.write_text("\n".join([*past, *soon, *late, *again, *strangers]) + "\n", encoding="utf-8")
    return folder / "past.csv", both


@pytest.mark.parametrize(("repeats", "hides"), [(False, False), (True, True)])
def test_a_model_older_than_the_cut_off_is_scored_as_it_is_served(
    repeats: bool, hides: bool, make_recipe: Make, tmp_path: Path
) -> None:
    """The live model ranks for its known users. Items that they had or hid in its training data do not count."""
    past, both = two_times(tmp_path, repeats=repeats)
    split = {"scheme": "time_global", "heldout_ratio": 0.25}
    cleansing = {"cleansing": {"hide": {"ts": {"lt": 1_600_086_400}}}} if hides else {}  # the first item of each user
    run(make_recipe(ratings=past, output=OUTPUT, training=training("IALS", split=split), **cleansing))
    new = make_recipe(
        ratings=both, output=OUTPUT, promotion={"mode": "report"}, training=training("CosineKNN", split=split)
    )
    task, model = task_of(new), open_live(new)
    assert (model.hidden is not None) == hides
    expected = brute_force(task, model)
    incumbent, baseline = header(run(new).artifact)["promotion"]["against"]
    assert (incumbent["scored"], baseline["scored"]) == ("live", "refitted")
    assert incumbent["n_users"] == len(expected) < baseline["n_users"], "strangers are not judged"
    assert incumbent["other"] == pytest.approx(float(np.mean(expected)))
    assert incumbent["other"] > 0


def test_an_older_live_model_that_knows_nobody_with_held_out_rows_is_refitted(
    make_recipe: Make, tmp_path: Path
) -> None:
    """The live model cannot be scored, because all users with rows after the cut-off came after its training."""
    past = write_tastes(tmp_path / "past.csv", last=slice(0, 7))
    rows = [f"stranger{n},i{n + day},{FUTURE_S + day * 86_400}" for n in range(50) for day in (0, 7, 8, 9, 10, 11)]
    both = tmp_path / "both.csv"
    both.write_text("\n".join([past.read_text().strip(), *rows]) + "\n", encoding="utf-8")
    blocks = {"output": OUTPUT, "training": training(split={"scheme": "time_global", "heldout_ratio": 0.25})}
    run(make_recipe(ratings=past, **blocks))
    incumbent, baseline = header(run(make_recipe(ratings=both, promotion={"mode": "report"}, **blocks)).artifact)[
        "promotion"
    ]["against"]
    assert (incumbent["name"], incumbent["scored"]) == ("incumbent", "refitted")
    assert incumbent["n_users"] == baseline["n_users"] == 50


def brute_force(task: Task, model: Model) -> list[float]:
    """Return ndcg of each user of the live model, from the rankings that a server would return."""
    split, trained = task.split, task.data.trained
    items = [trained.item_ids[column] for column in split.item_order]
    found = []
    for row in range(split.heldout.shape[0]):
        user = trained.user_ids[split.order[split.val_offset + row]]
        place = model.user_ids.index(user)
        if place < 0:
            continue
        history = {model.item_ids.at(column) for column in model.history.items(place).tolist()}
        if model.hidden is not None:
            history |= {model.item_ids.at(column) for column in model.hidden.items(place).tolist()}
        wanted = {items[column] for column in split.heldout[row].indices} - history
        seen = {items[column] for column in split.train[split.val_offset + row].indices}
        if not wanted:
            continue
        ranking = model.rank([planned.known_user(model, place, limit=model.n_items)])[0]
        assert len(set(ranking.scores.tolist())) == len(ranking.scores), "no ties, whose order is drawn"
        names = [name for name in map(model.item_ids.at, ranking.items.tolist()) if name not in seen][:5]
        gain = sum(1 / np.log2(place + 2) for place, name in enumerate(names) if name in wanted)
        found.append(gain / sum(1 / np.log2(place + 2) for place in range(min(len(wanted), 5))))
    return found


def test_times_in_the_future_do_not_let_the_live_model_score_its_own_rows(make_recipe: Make, tmp_path: Path) -> None:
    """If all times are in the future, the live model has seen the held-out rows, although the cut-off is later."""
    table = write_tastes(tmp_path / "tastes.csv", start_s=FUTURE_S)
    split = {"scheme": "time_global", "heldout_ratio": 0.25}
    loaded = make_recipe(ratings=table, output=OUTPUT, promotion={"mode": "report"}, training=training(split=split))
    run(loaded)
    assert header(run(loaded).artifact)["promotion"]["against"][0]["scored"] == "refitted"


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithms": ["IALS"], "n_trials": 2},
        {"algorithms": ["CosineKNN", "IALS", "Blend"], "n_trials": 4, "recency": 0.7},
        {"algorithms": ["RP3beta"], "recency": 0.7, "time_decay": {"half_life": "2d"}},
        {"algorithms": ["CosineKNN"], "split": {"scheme": "random", "heldout_ratio": 0.3, "test": 0.4}},
    ],
    ids=lambda changes: changes["algorithms"][-1] + ("-test" if "split" in changes else ""),
)
def test_refitting_an_equal_model_gives_a_change_of_zero(changes: dict[str, Any], make_recipe: Make) -> None:
    """Class, parameters, epochs, blend weights, half-life and recency are restored, also with hidden rows."""
    early = {"hide": {"all": [{"item_id": {"any": [f"i{n}" for n in range(20)]}}, {"ts": {"lt": 1_600_040_000}}]}}
    loaded = make_recipe(output=OUTPUT, promotion={"mode": "report"}, cleansing=early, training=training(**changes))
    assert task_of(loaded).holdout.hidden is not None
    first = header(run(loaded).artifact)
    second = header(run(loaded).artifact)["promotion"]["against"][0]
    assert second["candidate"] == second["other"] > 0
    assert (second["change"], second["interval"]) == (0.0, [0.0, 0.0])
    if "test" in changes.get("split", {}):
        assert second["n_users"] == first["evaluation"]["test"]["n_scored_users"]
        assert second["candidate"] == pytest.approx(first["evaluation"]["test"]["ndcg"])
    else:
        assert second["candidate"] == pytest.approx(first["best_score"])


def test_a_live_model_with_features_is_refitted_with_features(make_recipe: Make, items_csv: Path, log: Log) -> None:
    """If the recipe no longer has features, the live model is not compared."""
    features = features_of(items_csv)
    blocks = {"output": OUTPUT, "promotion": {"mode": "report"}, "training": training("IALS")}
    run(make_recipe(features=features, **blocks))
    again = header(run(make_recipe(features=features, **blocks)).artifact)["promotion"]["against"][0]
    assert (again["name"], again["change"]) == ("incumbent", 0.0)
    log.clear()
    lost = header(run(make_recipe(**blocks)).artifact)["promotion"]["against"]
    assert [comparison["name"] for comparison in lost] == ["TopPop"]
    assert "features of the items" in records_of(log, "incumbent_not_comparable")[0]["reason"]


REASONS: list[tuple[dict[str, Any], str]] = [
    ({}, "does not tell its class"),
    ({"best_class": "Blend", "best_params": 3}, "does not tell its class"),
    ({"best_class": "BlendRecommender", "best_params": {"weights": {}}}, "does not tell its class"),
    ({"best_class": "GoneRecommender", "best_params": {}}, "cannot train the live model's class GoneRecommender"),
    ({"best_class": "TopPopRecommender", "best_params": {"odd": 1}}, "does not know the parameter odd"),
    ({"best_class": "TopPopRecommender", "best_params": {"half_life": "7d"}}, "with a half-life"),
    ({"best_class": "RP3betaRecommender", "best_params": {}, "recency": 0.7}, "no longer has training.recency"),
    (
        {
            "best_class": "BlendRecommender",
            "best_params": {},
            "parts": [{"class": "RP3betaRecommender", "params": {}, "weight": 1.0, "recency": 0.7}],
        },
        "its parts have recencies of their own",
    ),
]


def test_a_live_model_that_cannot_be_trained_again_is_logged_and_not_compared(
    make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event has the reason: the model is of an older svc or of another recipe, or its features are singular."""
    loaded = make_recipe(output=OUTPUT, training=training("TopPop", recency="off"))
    run(loaded)
    incumbent = read_incumbent(loaded, development_keys(), Settings())
    assert incumbent is not None
    task = task_of(loaded)

    def reason_of(incumbent: Incumbent) -> str:
        monkeypatch.setattr(comparison, "read_incumbent", lambda *_: incumbent)
        assert live_model(task, development_keys(), Settings()) is None
        return str(records_of(log, "incumbent_not_comparable")[-1]["reason"])

    for fields, reason in REASONS:
        assert reason in reason_of(Incumbent(fields, incumbent.sha256, incumbent.payload))

    def singular(*_: Any) -> None:
        raise FeatureRidgeFailed("singular")

    monkeypatch.setattr("svc.training.judging.task.train_trial", singular)
    assert reason_of(incumbent) == "singular"


def test_figures_of_a_comparison_are_rounded_to_twelve_digits() -> None:
    """The comparison has no coverage, because coverage has a guardrail of its own."""
    comparison = ModelComparison("incumbent", 0.2 + 0.1, 0.3, 1 / 3, (0.1 + 0.2, 1.0), 9, "live", (0.5, 0.6))
    assert comparison.as_fields() == {
        "name": "incumbent",
        "candidate": 0.3,
        "other": 0.3,
        "change": 0.333333333333,
        "interval": [0.3, 1.0],
        "n_users": 9,
        "scored": "live",
    }
