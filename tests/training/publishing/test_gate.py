"""The promotion of a new model: the decision, its reasons, and the warning of a tight bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svc.artifact.keys import development_keys
from svc.artifact.versions import Versions
from svc.recipe.schema import Promotion
from svc.settings import Settings
from svc.training.publishing.gate import check_guardrails, refusal, warn_of_tight_bound
from tests.training.runs import ENFORCE, OUTPUT, Log, Make, header, live, payload, records_of, run, training


def test_a_worse_model_is_written_and_does_not_go_live(make_recipe: Make, log: Log) -> None:
    """The pointer stays, and the exit code is 9. The decision is signed, logged, and in the log of versions."""
    good = make_recipe(output=OUTPUT, promotion=ENFORCE, training=training())
    assert run(good).exit_code == 0
    assert run(good).exit_code == 0
    assert "refused" not in records_of(log, "train_done")[0]
    before, log[:] = live(good), []
    worse = run(make_recipe(output=OUTPUT, promotion=ENFORCE, training=training("TopPop")))
    assert worse.exit_code == 9
    assert live(good) == before
    decision = header(worse.artifact)["promotion"]
    assert json.loads(json.dumps(decision)) == decision
    assert (decision["decision"], decision["mode"], decision["metric"]) == ("refused", "enforce", "ndcg")
    incumbent, baseline = decision["against"]
    assert (incumbent["name"], incumbent["scored"], incumbent["n_users"]) == ("incumbent", "refitted", 80)
    assert incumbent["change"] == pytest.approx(incumbent["candidate"] / incumbent["other"] - 1)
    assert incumbent["interval"][0] < incumbent["change"] < incumbent["interval"][1] < -0.5
    assert (baseline["name"], baseline["interval"]) == ("TopPop", [0.0, 0.0])
    event = records_of(log, "promotion_decided")[0]
    assert event["recipe"] == "small"
    assert {name: event[name] for name in ("decision", "mode", "metric", "against", "guardrails")} == {
        name: decision[name] for name in ("decision", "mode", "metric", "against", "guardrails")
    }
    done = records_of(log, "train_done")[0]
    assert (done["exit_code"], done["promoted"], done["artifact"]) == (9, False, worse.artifact)
    text = str(done["refused"])
    assert f"against the live {before}" in text and f"; {before} stays live; `svc promote " in text
    versions = Versions(good.output_uri, development_keys(), Settings())
    newest = versions.log().lines[-1]
    assert (newest.version["decision"], newest.before, newest.live) == ("refused", before, before)
    assert [version.decision for version in versions.history()] == ["refused", "promoted", "promoted"]
    assert versions.problems() == []


def test_a_refused_first_model_makes_no_pointer(make_recipe: Make) -> None:
    """Without a live model, the first model is compared with popularity only. Here it must score 50% more."""
    bold = {"mode": "enforce", "min_relative_change": 0.5}
    loaded = make_recipe(output=OUTPUT, promotion=bold, training=training("TopPop"))
    assert run(loaded).exit_code == 9
    assert not Path(loaded.output_uri).exists()


def test_mode_report_decides_and_moves_the_pointer(make_recipe: Make, log: Log) -> None:
    """An operator can observe decisions before enforcing them. A single file works, too."""
    bold = {"mode": "report", "min_relative_change": 0.5}  # more than popularity gains over itself
    for output in (OUTPUT, {"path": "out/single.svc"}):
        log.clear()
        loaded = make_recipe(output=output, promotion=bold, training=training("TopPop"))
        assert run(loaded).exit_code == 0
        assert records_of(log, "promotion_decided")[0]["decision"] == "refused"
        assert records_of(log, "train_done")[0]["promoted"] is True
        assert header(loaded.output_uri)["promotion"]["decision"] == "refused"


def test_promotion_off_changes_nothing_but_the_log_of_versions(make_recipe: Make, log: Log, tmp_path: Path) -> None:
    """Header and payload are as without the block. Neither a decision nor `promoted` is logged."""
    found = []
    for name, blocks in (("plain", {}), ("off", {"promotion": {"mode": "off"}})):
        output = {**OUTPUT, "path": f"out/{name}/small.svc"}
        result = run(make_recipe(output=output, training=training(), **blocks))
        timed = {"trained_at", "tuning", "rank_ms", "recipe", "recipe_hash"}
        head = {key: value for key, value in header(result.artifact).items() if key not in timed}
        found.append((head, payload(result.artifact)))
    assert found[0] == found[1]
    assert "promoted" not in records_of(log, "train_done")[0] | records_of(log, "train_done")[1]
    assert records_of(log, "promotion_decided") == []
    assert {path.name for path in (tmp_path / "out" / "plain").iterdir()} >= {"small.svc"}
    assert not (tmp_path / "out" / "plain" / "small.svc.log.jsonl").exists()
    assert (tmp_path / "out" / "off" / "small.svc.log.jsonl").exists()


def test_the_promotion_block_is_neither_in_the_hash_nor_in_the_header(make_recipe: Make) -> None:
    """The block does not change the model."""
    plain, gated = make_recipe(output=OUTPUT), make_recipe(output=OUTPUT, promotion=ENFORCE)
    assert plain.recipe_hash == gated.recipe_hash
    assert "promotion" not in gated.unexpanded


def test_a_refused_model_under_a_hold_exits_with_0(make_recipe: Make, log: Log) -> None:
    """A hold keeps the pointer in any case. `promoted` is false."""
    good = make_recipe(output=OUTPUT, promotion=ENFORCE, training=training())
    assert (run(good).exit_code, run(good).exit_code) == (0, 0)
    held, _ = Versions(good.output_uri, development_keys(), Settings()).rollback(None, hold=True)
    log.clear()
    assert run(make_recipe(output=OUTPUT, promotion=ENFORCE, training=training("TopPop"))).exit_code == 0
    assert run(make_recipe(output=OUTPUT, promotion=ENFORCE, training=training())).exit_code == 0
    assert [record["decision"] for record in records_of(log, "promotion_decided")] == ["refused", "promoted"]
    assert [record["promoted"] for record in records_of(log, "train_done")] == [False, False]
    written = [record["artifact"] for record in records_of(log, "train_done")]
    assert [record["artifact"] for record in records_of(log, "promotion_held")] == written
    assert live(good) == held


@pytest.mark.parametrize(
    ("pointer", "reason"), [(b"no artifact", "magic bytes mismatch"), (None, "does not exist")], ids=["damaged", "lost"]
)
def test_an_incumbent_that_cannot_be_verified_is_not_compared(
    pointer: bytes | None, reason: str, make_recipe: Make, log: Log
) -> None:
    """The file of the live model is damaged or missing. An event has the reason.

    The bounds of data changes do not apply. The comparison with popularity remains.
    """
    bounds = {"max_change": {"n_rows": 0.1}}
    loaded = make_recipe(output=OUTPUT, promotion=ENFORCE, training=training(), cleansing=bounds)
    if pointer is None:
        Path(str(run(loaded).artifact)).unlink()
        log.clear()
    else:
        Path(loaded.output_uri).write_bytes(pointer)
    result = run(loaded)
    assert result.exit_code == 0
    reasons = [record["reason"] for record in records_of(log, "incumbent_not_comparable")]
    assert reasons and all(reason in text for text in reasons)
    decision = header(result.artifact)["promotion"]
    assert [comparison["name"] for comparison in decision["against"]] == ["TopPop"]
    assert decision["guardrails"] == {}


def test_a_guardrail_refuses_a_model_whose_metric_improves(
    make_recipe: Make, make_ratings: Callable[..., Path], log: Log
) -> None:
    """A model with half of the users is refused for `n_users`, whatever its score. Without this guardrail it passes."""
    rules = {"mode": "enforce", "against": ["incumbent"], "min_relative_change": -1}
    assert run(make_recipe(output=OUTPUT, promotion=rules, training=training())).exit_code == 0
    half = {"ratings": make_ratings("half.csv", n_users=40), "output": OUTPUT, "training": training()}
    refused = run(make_recipe(promotion=rules, **half))
    assert refused.exit_code == 9
    found = header(refused.artifact)["promotion"]["guardrails"]
    assert found["n_users"] == {
        "candidate": 40, "other": 80, "change": -0.5, "min_relative_change": -0.3, "passed": False
    }  # fmt: skip
    assert found["n_items"]["passed"]
    assert run(make_recipe(promotion={**rules, "guardrails": {"n_users": None}}, **half)).exit_code == 0
    assert records_of(log, "promotion_decided")[-1]["guardrails"].keys() == {"catalog_coverage", "n_items"}


def test_a_model_that_is_too_slow_is_refused(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guardrail allows twice the ranking time of the live model. The new model takes three times as long."""
    free = {"mode": "enforce", "against": ["incumbent"], "min_relative_change": -1}
    assert run(make_recipe(output=OUTPUT, promotion=free, training=training())).exit_code == 0
    monkeypatch.setattr("svc.training.judging.rankers.rank_ms", lambda _: 6.0)
    monkeypatch.setattr("svc.training.publishing.gate.rank_ms", lambda _: 2.0)
    guarded = {**free, "guardrails": {"rank_ms": {"max_relative_change": 1.0}}}
    refused = run(make_recipe(output=OUTPUT, promotion=guarded, training=training()))
    assert refused.exit_code == 9
    head = header(refused.artifact)
    assert head["rank_ms"] == 6.0
    assert head["promotion"]["guardrails"]["rank_ms"] == {
        "candidate": 6.0, "other": 2.0, "change": 2.0, "max_relative_change": 1.0, "passed": False
    }  # fmt: skip
    wider = {**guarded, "guardrails": {"rank_ms": {"max_relative_change": 2.0}}}
    assert run(make_recipe(output=OUTPUT, promotion=wider, training=training())).exit_code == 0
    history = Versions(make_recipe(output=OUTPUT).output_uri, development_keys(), Settings()).history()
    assert [version.rank_ms for version in history[:2]] == [6.0, 6.0]


@pytest.mark.parametrize(
    ("name", "bound", "candidate", "passes"),
    [
        ("n_users", {"min_relative_change": -0.5}, 50, True),
        ("n_users", {"min_relative_change": -0.5}, 49, False),
        ("catalog_coverage", {"min_relative_change": 0.25}, 125, True),
        ("catalog_coverage", {"min_relative_change": 0.25}, 124, False),
        ("rank_ms", {"max_relative_change": 0.5}, 150, True),
        ("rank_ms", {"max_relative_change": 0.5}, 151, False),
    ],
)
def test_a_change_equal_to_its_bound_passes(name: str, bound: dict[str, float], candidate: int, passes: bool) -> None:
    """Guardrails refuse only what lies beyond the bound."""
    rules = Promotion.model_validate({"mode": "enforce", "guardrails": {name: bound}})
    assert check_guardrails({name: (candidate, 100)}, rules)[name]["passed"] is passes


DECISION: dict[str, Any] = {
    "metric": "ndcg",
    "min_relative_change": -0.01,
    "against": [
        {"name": "incumbent", "change": -0.061, "interval": [-0.077, -0.045], "n_users": 4700},
        {"name": "TopPop", "change": 0.4, "interval": [0.3, 0.5], "n_users": 4700},
    ],
    "guardrails": {"catalog_coverage": {"change": -0.95, "passed": False}, "n_users": {"change": 0.1, "passed": True}},
}


def test_a_refusal_names_its_reasons_and_the_override_command() -> None:
    """The message has the failed comparisons, the live version, and the command that makes the new model live."""
    text = refusal(DECISION, Path("gate.yaml"), "out/gate.aa37d428.svc", "c4f490e5")
    assert text == (
        "ndcg -6.1% (-7.7% to -4.5%) against the live c4f490e5, coverage -95.0%; c4f490e5 stays live; "
        "`svc promote gate.yaml aa37d428` overrides"
    )
    (comparison, *_), even = DECISION["against"], {**DECISION, "min_relative_change": -0.077}
    equal = refusal(
        {**even, "against": [{**comparison, "interval": [-0.077, 0.1]}]}, Path("gate.yaml"), "a.b.svc", None
    )
    assert equal.startswith("coverage -95.0%; "), "an interval that begins at the bound passes"
    first = refusal({**DECISION, "against": DECISION["against"][:1]}, Path("gate.yaml"), "gate.aa37d428.svc", None)
    assert "against the live model" in first and "no version is live" in first
    few = {"name": "TopPop", "change": 1e306, "interval": [-1.0, 1e306], "n_users": 3}
    words = "ndcg more than a thousandfold (-100.0% to more than a thousandfold) against popularity"
    assert words in refusal({**DECISION, "against": [few]}, Path("gate.yaml"), "gate.aa37d428.svc", None)


@pytest.mark.parametrize(
    ("bound", "against", "text"),
    [
        (-0.01, DECISION["against"], "reaches 1.6% below the change, over 4700 judged users"),
        (-0.01, DECISION["against"], "write -0.016 or less"),
        (-0.05, DECISION["against"], None),
        (-0.001, DECISION["against"][1:], None),
    ],
)
def test_a_bound_that_would_refuse_an_equal_model_causes_a_warning(
    log: Log, bound: float, against: list[Any], text: str | None
) -> None:
    """The warning needs the interval against the live model, so a first run has none."""
    rules = Promotion(mode="enforce", min_relative_change=bound)
    warn_of_tight_bound({**DECISION, "against": against}, rules)
    assert [record["event"] for record in log] == ([] if text is None else ["recipe_warning"])
    assert text is None or text in log[0]["message"]


def test_an_identical_model_causes_no_warning(log: Log) -> None:
    """The interval of a model against itself has zero width, so it is no estimate for other models."""
    against = [{**DECISION["against"][0], "change": 0.0, "interval": [0.0, 0.0]}]
    warn_of_tight_bound({**DECISION, "against": against}, Promotion(mode="enforce"))
    assert log == []
