"""From recipe to recommendations with real processes: training, signed artifact, server, swap and shutdown."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import read_verified
from svc.settings import Settings
from tests.e2e.conftest import SIGNING_KEYS
from tests.e2e.server import put

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, Shop


def test_a_trained_recipe_answers_recommendations_and_batches(shop: Shop, serve: Callable[..., Server]) -> None:
    """A trained recipe can be inspected and served, and answers recommendations with titles and in batches."""
    trained = shop.process("train", str(shop.recipe), "--run-id", "first")
    assert trained.code == 0, trained.err
    names = [record["event"] for record in trained.records]
    order = (
        "training_started fetching_data data_fetched data_cleansed splitting_data split_done search_started"
        " search_done training_final_model final_model_trained artifact_written train_done"
    )
    assert " ".join(name for name in names if name in order.split()) == order
    done = trained.record("train_done")
    assert (done["name"], done["run_id"], done["kid"], done["n_users"]) == ("shop", "first", "test", 120)

    inspected = shop.svc("inspect", str(shop.artifact), "--json")
    header = json.loads(inspected.out)
    assert header["best_class"] == done["best_class"]
    assert header["recipe_hash"] == done["recipe_hash"]

    server = serve(fresh=True)
    status, answer = server.ask("/v1/recipes/shop:recommend", {"user_id": "u1", "limit": 3})
    assert status == 200
    assert answer["model_version"] == header["model_version"]
    assert len(answer["items"]) == 3
    assert all(item["title"] == f"Thing {item['item_id'][1:]}" for item in answer["items"])

    status, related = server.ask("/v1/recipes/shop:recommend-related", {"seed_items": ["i4"], "limit": 3})
    assert status == 200
    assert "i4" not in {item["item_id"] for item in related["items"]}

    batch = {"requests": [{"user_id": "u1", "limit": 3}, {"user_id": "nobody"}]}
    status, results = server.ask("/v1/recipes/shop:batch-recommend", batch)
    assert status == 200
    assert [(result["status"], result.get("code")) for result in results["results"]] == [
        ("ok", None),
        ("error", "UNKNOWN_USER"),
    ]
    assert [item["item_id"] for item in results["results"][0]["items"]] == [i["item_id"] for i in answer["items"]]
    status, _ = server.ask("/v1/recipes/shop:batch-recommend-related", {"requests": [{"seed_items": ["i1"]}]})
    assert status == 200

    assert server.ask("/v1/health") == (200, {"status": "ok", "total": 1, "loaded": 1})
    assert server.ask("/v1/recipes/nothing:recommend", {"user_id": "u1"})[1]["code"] == "RECIPE_NOT_FOUND"
    assert server.stop() == 0
    assert server.wait_for("serve_shutdown")["drain_seconds"] < 30


def test_the_same_recipe_data_and_seed_give_the_same_model(shop: Shop) -> None:
    """Trainings with different hash seeds, at the same time, give the same payload, parameters and score."""
    shop.edit("[CosineKNN, TopPop]", "[IALS, CosineKNN, RP3beta]")
    shop.edit("n_trials: 4", "n_trials: 6")
    text, running, seen = shop.recipe.read_text(), [], []
    for seed in ("1", "2"):
        put(shop.recipe, text.replace("shop.svc", f"{seed}.svc"))
        recipe = shop.recipe.rename(shop.folder / f"{seed}.yaml")
        running.append(shop.start("train", str(recipe), "--run-id", "r", fresh=True, PYTHONHASHSEED=seed))
    for seed, training in zip(("1", "2"), running, strict=True):
        _, err = training.communicate(timeout=150)
        assert training.returncode == 0, err
        artifact = str(shop.artifact.with_name(f"{seed}.svc"))
        parsed = read_verified(artifact, parse_signing_keys(SIGNING_KEYS), Settings())[1]
        facts = [parsed.header[name] for name in ("best_class", "best_params", "best_score")]
        seen.append((facts, hashlib.sha256(parsed.payload).hexdigest()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_training_logs_the_signal_and_writes_nothing(
    shop: Shop, number: signal.Signals, code: int
) -> None:
    """A training that gets SIGINT or SIGTERM ends with exit code 130 or 143 and leaves no artifact."""
    shop.edit("n_trials: 4", "n_trials: 100000")
    process = shop.start("train", str(shop.recipe))
    assert process.stderr is not None
    records: list[dict[str, Any]] = []
    for line in process.stderr:
        records.append(json.loads(line))
        if records[-1]["event"] == "search_started":
            process.send_signal(number)
    process.stderr.close()
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == code
    assert (records[-1]["event"], records[-1]["exit_code"]) == ("train_interrupted", code)
    assert [path for path in shop.folder.rglob("*") if ".svc" in path.suffixes and path.suffix != ".lock"] == []
