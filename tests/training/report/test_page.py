"""The HTML page of the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from svc.artifact.keys import development_keys
from svc.cli import main
from svc.model import codec
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.report.page import Counts, RunReport, render
from svc.training.report.sentences import NO_BREAK, span, with_interval
from tests.serving.artifacts import SIGNING_KEYS, popularity_model, write_artifact
from tests.training.conftest import leave_plots_empty
from tests.training.runs import ENFORCE, OUTPUT, SPLIT, Make, header, payload, run, small_training, training

CONFIRMED = ["--dev-allow-unsigned", "--i-understand-this-loads-arbitrary-code"]


@pytest.fixture(autouse=True)
def development(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the development key, which these artifacts need."""
    monkeypatch.setenv("SVC_ENV", "development")
    monkeypatch.delenv("SVC_SIGNING_KEYS", raising=False)


def written(loaded: LoadedRecipe, report: Path) -> str:
    """Return the artifact of a training that writes this report."""
    artifact = run(loaded, report=report).artifact
    assert artifact is not None
    return artifact


def recipe(make_recipe: Make, **changes: Any) -> LoadedRecipe:
    return make_recipe(training=small_training(n_trials=4, split={**SPLIT, "test": 0.2}, **changes), output=OUTPUT)


class Trained(NamedTuple):
    """A training with its report."""

    artifact: str
    page: str
    header: Mapping[str, Any]


@pytest.fixture(scope="module")
def reported(make_shared_recipe: Make, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    target = tmp_path_factory.mktemp("page") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        leave_plots_empty(patch)
        artifact = written(recipe(make_shared_recipe), target)
    return Trained(artifact, target.read_text(encoding="utf-8"), header(artifact))


@pytest.mark.usefixtures("without_drawing")
def test_the_page_made_again_is_the_page_of_the_training(reported: Trained, tmp_path: Path) -> None:
    """The page needs only the artifact. Both pages have the same bytes."""
    again = tmp_path / "again.html"
    assert main.run(["report", reported.artifact, "--output", str(again), *CONFIRMED]) == 0
    assert again.read_text(encoding="utf-8") == reported.page


def test_the_report_is_one_page_without_network(reported: Trained, tmp_path: Path) -> None:
    """Plots and styles are inline. The page has no scripts and loads nothing. Algorithms have their plain names."""
    target = tmp_path / "report.html"
    assert main.run(["report", reported.artifact, "--output", str(target), *CONFIRMED]) == 0
    page = target.read_text(encoding="utf-8")
    assert page.count("<svg") == reported.page.count("<svg") == 7
    assert page.count("viewBox") == 7
    assert "TopPop" in page
    for text in ("TopPopRecommender", "<script", 'src="http', 'href="http'):
        assert text not in page


def test_the_page_has_interval_scored_users_lead_and_cutoffs(reported: Trained) -> None:
    """The page also has the scores on test users."""
    page, found = reported.page, reported.header["evaluation"]
    for interval in (found["interval"], found["test"]["interval"]):
        assert span(interval) in page
    headline = (
        f'<p class="score">{found["test"]["ndcg"]:.4f} <small>ndcg@5 {span(found["test"]["interval"])}</small></p>'
    )
    assert headline in page, "the score of users by whom nothing was chosen"
    scores = {name: best["score"] for name, best in reported.header["tuning"]["best_per_algorithm"].items()}
    both = f"{scores['CosineKNNRecommender']:.3f} against {scores['TopPopRecommender']:.3f}"
    assert f"{both} ndcg@5 on the validation users." in page
    assert "corrected for the choice among 4 trials" in page
    assert "Only 16 users were scored: with fewer than 200 the intervals are too narrow." in page
    assert "64 of 80 users were scored" in page
    assert "on 16 test users that no trial has seen" in page
    assert f" {span(found['lead']['interval'])} on the test users" in page
    counts = np.bincount(codec.decode(memoryview(payload(reported.artifact))).history.columns)
    assert f"1% of items hold {counts.max() / counts.sum():.0%} of all interactions" in page, "1% of 40 are one item"
    for cutoff, at in found["cutoffs"].items():
        assert f'>everybody, {cutoff} items</td><td class="" data-label="ndcg">{at["ndcg"]:.4f}' in page
    assert "earlier" not in page
    assert "Score of each trial against what a ranking costs" in page


def test_the_page_breaks_metrics_down_by_users_and_items(reported: Trained) -> None:
    """Users and items have three groups each, with intervals. The figures over all users equal those of the search."""
    _, page, head = reported
    rows = {(row["group"], row["part"], row["metric"]): row for row in head["evaluation"]["breakdown"]}
    assert {part for group, part, _ in rows if group == "activity"} == {"few", "some", "many"}
    assert {part for group, part, _ in rows if group == "popularity"} == {"head", "middle", "tail"}
    everybody = rows["all", "all", "ndcg"]
    assert everybody["value"] == pytest.approx(head["best_score"])
    assert everybody["low"] < everybody["value"] < everybody["high"]
    assert with_interval(everybody["value"], head["evaluation"]["interval"]) in page
    recall = rows["all", "all", "recall"]
    assert with_interval(recall["value"], (recall["low"], recall["high"])) in page
    assert f"Novelty {rows['all', 'all', 'novelty']['value']:.4f}" in page


@pytest.mark.usefixtures("without_drawing")
def test_an_earlier_run_is_compared_in_tables(make_recipe: Make, tmp_path: Path) -> None:
    """`svc report` finds the earlier run among the versions, or gets it by name.

    A training compares with the artifact that it replaces.
    """
    before = written(recipe(make_recipe), tmp_path / "before.html")
    target, again, named = tmp_path / "page.html", tmp_path / "again.html", tmp_path / "named.html"
    after = written(recipe(make_recipe, seed=7), target)
    assert after != before
    page = target.read_text(encoding="utf-8")
    assert "Beside the earlier run" in page
    assert "everybody, 5 items, earlier run" in page
    assert "The recipe has changed in between." in page
    assert main.run(["report", "out/small.svc", "--output", str(again), *CONFIRMED]) == 5
    assert main.run(["report", str(tmp_path / "out/small.svc"), "--output", str(again), *CONFIRMED]) == 0
    assert again.read_bytes() == target.read_bytes()
    assert main.run(["report", after, "--earlier", before, "--output", str(named), *CONFIRMED]) == 0
    assert named.read_bytes() == target.read_bytes()


@pytest.mark.usefixtures("without_drawing")
def test_the_page_shows_the_decision_with_its_comparisons(make_recipe: Make, tmp_path: Path) -> None:
    """The page has a chart of the changes with their intervals, both tables, and the decision in words."""
    blocks = {"output": OUTPUT, "promotion": ENFORCE}
    first = tmp_path / "first.html"
    written(make_recipe(training=training(), **blocks), first)
    page = first.read_text(encoding="utf-8")
    assert "Going live: promoted" in page
    assert '<td class="" data-label="against">popularity</td>' in page
    second = tmp_path / "second.html"
    artifact = written(make_recipe(training=training("TopPop"), **blocks), second)
    page = second.read_text(encoding="utf-8")
    assert "Going live: refused" in page
    assert "The new model is refused." in page
    assert "the lower end of each 95% interval must reach -1.0%" in page
    assert 'aria-label="Relative change from each opponent, with its interval"' in page
    assert "the live model" in page
    assert "trained on the same data as the new model" in page
    assert "catalog_coverage" in page
    assert "refuses the model" in page
    head = header(artifact)
    live = head["promotion"]["against"][0]
    assert f"({live['interval'][0]:+.1%} to {live['interval'][1]:+.1%})" in page.replace(NO_BREAK, " ")
    reported = {**head, "promotion": {**head["promotion"], "mode": "report", "against": []}}
    page = render(reported, Counts.of(codec.decode(memoryview(payload(artifact))).history, 40))
    assert "the recipe only reports" in page
    assert "There was nothing to compare with." in page


@pytest.mark.usefixtures("without_drawing")
def test_headers_of_earlier_releases_still_make_a_page(reported: Trained) -> None:
    """Such headers lack intervals, cutoffs and the trials of the search."""
    head = reported.header
    measured = {name: value for name, value in head["evaluation"].items() if isinstance(value, float)}
    best = {
        name: {key: one[key] for key in ("score", "params", "seconds")}
        for name, one in head["tuning"]["best_per_algorithm"].items()
    }
    tuning = {key: value for key, value in head["tuning"].items() if key not in {"trials", "workers"}}
    old = {**head, "evaluation": measured, "tuning": {**tuning, "best_per_algorithm": best}}
    model = popularity_model()
    page = render(old, Counts.of(model.history, model.n_items), old)
    assert page.count("<svg") == 2
    untimed = {key: values for key, values in head["tuning"]["trials"].items() if key != "rank_ms"}
    course = {**old, "tuning": {**old["tuning"], "trials": untimed}}
    assert "What a ranking costs" not in render(course, Counts.of(model.history, model.n_items))
    assert "interval" not in page


@pytest.mark.usefixtures("without_drawing")
def test_text_of_the_data_is_never_markup(reported: Trained) -> None:
    """Ids, titles and parameters are escaped."""
    text = "<script>alert(1)</script>"
    model = popularity_model()
    tuning = {**reported.header["tuning"], "too_slow": 4}
    page = render(
        {**reported.header, "best_params": {text: text}, "tuning": tuning}, Counts.of(model.history, model.n_items)
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 2
    assert "4 of the pruned too slow for training.max_rank_ms" in page


def test_an_artifact_without_training_facts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report needs the facts of the training in the header."""
    path = tmp_path / "a.svc"
    write_artifact(path, popularity_model())
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    assert main.run(["report", str(path), "--output", str(tmp_path / "a.html")]) == 5
    assert not (tmp_path / "a.html").exists()


def report_at(path: Path | None, loaded: LoadedRecipe) -> RunReport:
    return RunReport(path, loaded, Settings(), Progress())


def test_without_a_report_path_nothing_is_measured(make_recipe: Make) -> None:
    """A training without a report measures no curves, and does not read the earlier artifact."""
    report, unused = report_at(None, make_recipe()), Any
    report.check()
    assert report.curves(unused, unused, unused) == {}
    assert report.earlier(development_keys()) is None
    report.write({}, unused, None)


def test_a_first_run_has_no_earlier_artifact(make_recipe: Make, tmp_path: Path) -> None:
    """The report of a first run has no artifact to compare with, because the output is empty."""
    assert report_at(tmp_path / "page.html", make_recipe()).earlier(development_keys()) is None
