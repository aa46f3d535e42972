"""Every transition of a recipe's entry in a server with real files, stores and models.

Each row of `TABLE` is a row of the specification's state tables and names its test, without `test_`. The tables of
the run lock and of the shutdown are in `tests/e2e/faults`.
"""
# ruff: noqa: E501 (the table is one line a row)

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import make_home, put, write_recipe
from tests.e2e.tables import missing_tests
from tests.serving.artifacts import OTHER_KEYS, popularity_model, write_artifact
from tests.serving.live import Live, live

# state, trigger, condition, next state, test
TABLE = """
(absent)     |startup load             |loads and verifies    |loaded            |startup_loads_a_good_artifact
(absent)     |startup load             |fails                 |stub              |startup_makes_a_stub_of_a_bad_artifact
(absent)     |new .yaml on a poll      |artifact loads        |loaded            |a_new_recipe_file_is_served
(absent)     |new .yaml on a poll      |artifact fails        |stub              |a_new_recipe_file_without_artifact_is_a_stub
(absent)     |broken .yaml, startup    |any                   |skipped           |an_unparseable_file_is_skipped
(absent)     |broken .yaml, poll       |any                   |skipped           |an_unparseable_file_is_skipped
loaded       |new marker and sha256    |loads                 |new model         |a_changed_artifact_is_swapped_in
loaded       |new marker               |same bytes            |loaded, same model|an_artifact_with_the_same_bytes_causes_no_swap
loaded       |new marker and sha256    |reload fails          |old model         |a_bad_artifact_keeps_the_old_model
loaded, error|new artifact             |loads                 |cleared           |a_bad_artifact_keeps_the_old_model
loaded, error|stat succeeds again      |stat-side failure     |cleared           |the_error_of_a_vanished_artifact_clears_when_it_is_back
loaded, error|bytes as in memory       |rollback              |cleared           |a_rollback_clears_the_error
loaded, error|nothing changes          |load failure on disk  |unchanged         |a_load_error_stays_until_the_artifact_changes
loaded, error|nothing changes          |recipe stopped parsing|unchanged         |a_recipe_that_stops_parsing_keeps_its_model
stub         |retrain                  |good artifact         |loaded            |a_stub_loads_when_an_artifact_comes
any          |recipe file removed      |poll                  |removed           |a_removed_recipe_file_removes_its_recipe
health       |every recipe loaded      |                      |ok, 200           |startup_loads_a_good_artifact
health       |reload failed            |old model serves      |ok, 200           |a_bad_artifact_keeps_the_old_model
health       |a valid recipe is a stub |                      |degraded, 503     |startup_makes_a_stub_of_a_bad_artifact
details      |no current error         |                      |ok, 200           |startup_loads_a_good_artifact
details      |kept old model with error|                      |degraded, 503     |a_bad_artifact_keeps_the_old_model
"""


def test_every_row_names_a_test_that_exists() -> None:
    """Each row of the table names a test of this file."""
    assert not missing_tests(TABLE, globals())


def first_item(server: Live, name: str = "a") -> str:
    answer = server.recommend(name)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["items"][0]["item_id"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with one recipe, `a`, whose artifact recommends `i0`."""
    return make_home(tmp_path, "a", popularity_model(0))


def test_startup_loads_a_good_artifact(home: Path) -> None:
    """A good artifact is served after the start, and health and details report status `ok`."""
    with live(home) as server:
        assert first_item(server) == "i0"
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1})
        status, document = server.details()
        age_s, version = document["recipes"]["a"].pop("age_seconds"), document["recipes"]["a"].pop("model_version")
        assert age_s > 0
        assert version == server.recommend("a").json()["model_version"]
        assert (status, document) == (
            200,
            {"status": "ok", "recipes": {"a": {"loaded": True, "best_class": "TopPopRecommender"}}},
        )
        assert server.get("/v1/health/ready").status_code == 200
        assert server.metric('svc_model_loaded{recipe="a"}') == 1


@pytest.mark.parametrize(
    ("damage", "event", "error"),
    [
        ("missing", "initial_artifact_read_failed", "artifact not found"),
        ("truncated", "initial_artifact_parse_failed", "magic bytes mismatch"),
        ("foreign", "initial_artifact_hmac_failed", "unknown kid: k2"),
        ("flipped", "initial_artifact_hmac_failed", "signature mismatch"),
    ],
)
def test_startup_makes_a_stub_of_a_bad_artifact(home: Path, damage: str, event: str, error: str) -> None:
    """A server with a bad artifact starts, and answers 503 for health and recommendations.

    The event names the failed stage: reading, parsing or verifying.
    """
    file = home.parent / "a.svc"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        put(file, data[:100])
    elif damage == "foreign":
        write_artifact(file, popularity_model(0), keys=OTHER_KEYS)
    else:
        put(file, data)
    with live(home) as server:
        assert [record["name"] for record in server.said(event)] == ["a"]
        assert server.said("recipe_not_loaded_at_startup", name="a")
        assert server.health() == (503, {"status": "degraded", "total": 1, "loaded": 0})
        status, document = server.details()
        assert (status, document["status"]) == (503, "degraded")
        assert document["recipes"]["a"]["loaded"] is False
        assert document["recipes"]["a"]["error"].startswith(error)
        answer = server.recommend("a")
        assert (answer.status_code, answer.json()["code"]) == (503, "RECIPE_UNAVAILABLE")
        assert server.get("/v1/health/ready").status_code == 503
        assert server.get("/v1/health/live").status_code == 200


def test_a_new_recipe_file_is_served(home: Path) -> None:
    """A poll finds a new recipe file and loads its artifact without a restart."""
    write_artifact(home.parent / "b.svc", popularity_model(1))
    with live(home) as server:
        assert server.recommend("b").json()["code"] == "RECIPE_NOT_FOUND"
        write_recipe(home, "b", "../b.svc")
        server.wait_for("recipe_discovered", name="b", file="b.yaml")
        server.wait_for("artifact_loaded", name="b")
        assert first_item(server, "b") == "i1"


def test_a_new_recipe_file_without_artifact_is_a_stub(home: Path) -> None:
    """A new recipe file without an artifact counts as a recipe without a model, and health reports 503."""
    with live(home) as server:
        write_recipe(home, "b", "../b.svc")
        server.wait_for("artifact_disappeared", name="b")
        assert server.health() == (503, {"status": "degraded", "total": 2, "loaded": 1})
        assert server.recipe("b") == {"loaded": False, "error": "artifact not found: b.svc"}


def test_an_unparseable_file_is_skipped(home: Path) -> None:
    """A recipe file that does not parse is skipped at the start and on polls.

    Health counts it apart, details name its error, and both keep status `ok`.
    """
    put(home / "broken.yaml", "name: [")
    with live(home) as server:
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1, "skipped": 1})
        put(home / "later.yaml", "name: 7")
        server.wait_for("recipe_load_error_skipped", name="later")
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1, "skipped": 2})
        status, document = server.details()
        assert (status, document["status"]) == (200, "ok")
        assert document["recipes"]["broken"]["skipped"] is True
        assert "broken.yaml" in document["recipes"]["broken"]["error"]
        (home / "broken.yaml").unlink()
        write_recipe(home, "later", "../a.svc")
        server.wait_for("artifact_loaded", name="later")
        assert server.health() == (200, {"status": "ok", "total": 2, "loaded": 2})


def test_a_changed_artifact_is_swapped_in(home: Path) -> None:
    """A changed artifact is loaded and answers under its own version."""
    with live(home) as server:
        sha256 = write_artifact(home.parent / "a.svc", popularity_model(1))
        server.wait_for("artifact_loaded", model_version=f"sha256:{sha256}")
        assert first_item(server) == "i1"
        assert server.recommend("a").json()["model_version"] == f"sha256:{sha256}"
        assert server.metric('svc_swap_total{result="ok"}') == 1


def test_an_artifact_with_the_same_bytes_causes_no_swap(home: Path) -> None:
    """A new file with the same bytes causes neither a load nor a swap."""
    with live(home) as server:
        write_artifact(home.parent / "a.svc", popularity_model(0))
        server.poll(times=2)
        assert len(server.said("artifact_loaded")) == 1
        assert server.metric('svc_swap_total{result="ok"}') == 0


def test_a_bad_artifact_keeps_the_old_model(home: Path) -> None:
    """The old model serves if its new artifact is bad, and health stays 200.

    Details show the error until a good artifact is loaded.
    """
    file = home.parent / "a.svc"
    with live(home) as server:
        put(file, b"NOTMODEL" + file.read_bytes()[8:])
        failed = server.wait_for("artifact_load_failed", name="a")
        assert failed["kid"] == "k1"
        assert re.fullmatch(rf"magic bytes mismatch: not an artifact but \d+ bytes of .* \({file}\)", failed["error"])
        assert first_item(server) == "i0"
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1})
        status, document = server.details()
        assert (status, document["status"]) == (503, "degraded")
        assert document["recipes"]["a"]["last_load_error"] == failed["error"].replace(str(file), "a.svc")[:200]
        assert server.metric('svc_swap_total{result="error"}') == 1
        assert server.metric('svc_artifact_load_failures_total{reason="magic",recipe="a"}') == 1
        write_artifact(file, popularity_model(1))
        cleared = server.wait_for("artifact_load_error_cleared", name="a")
        assert (cleared["reason"], cleared["previous_error"]) == ("artifact_loaded", failed["error"][:200])
        assert first_item(server) == "i1"
        assert server.details()[0] == 200


def test_the_error_of_a_vanished_artifact_clears_when_it_is_back(home: Path) -> None:
    """A vanished artifact is logged once, and its error clears when the same file is back."""
    file = home.parent / "a.svc"
    with live(home) as server:
        file.rename(home.parent / "away")
        server.wait_for("artifact_disappeared", name="a")
        assert server.recipe("a")["last_load_error"] == "artifact not found: a.svc"
        assert first_item(server) == "i0"
        server.poll(times=2)
        (vanished,) = server.said("artifact_disappeared")
        assert "timeout_s" not in vanished
        (home.parent / "away").rename(file)
        assert server.wait_for("artifact_load_error_cleared")["reason"] == "marker_restored"
        assert server.details()[0] == 200
        assert len(server.said("artifact_loaded")) == 1


def test_a_rollback_clears_the_error(home: Path) -> None:
    """A load error clears without a swap when the bytes of the loaded model are back on disk."""
    file = home.parent / "a.svc"
    good = file.read_bytes()
    with live(home) as server:
        put(file, good[:200])
        server.wait_for("artifact_load_failed", name="a")
        put(file, good)
        assert server.wait_for("artifact_load_error_cleared")["reason"] == "bytes_unchanged"
        assert server.details()[0] == 200
        assert len(server.said("artifact_loaded")) == 1


def test_a_load_error_stays_until_the_artifact_changes(home: Path) -> None:
    """A bad artifact that does not change keeps its error and is not loaded again."""
    file = home.parent / "a.svc"
    with live(home) as server:
        put(file, file.read_bytes()[:200])
        server.wait_for("artifact_load_failed", name="a")
        server.poll(times=2)
        assert server.recipe("a")["last_load_error"].startswith("magic bytes mismatch")
        assert len(server.said("artifact_load_failed")) == 1


def test_a_recipe_that_stops_parsing_keeps_its_model(home: Path) -> None:
    """A recipe file that no longer parses keeps its model, and details show the error until it parses again."""
    with live(home) as server:
        good = (home / "a.yaml").read_text(encoding="utf-8")
        put(home / "a.yaml", "name: [")
        server.wait_for("recipe_load_error_skipped", name="a")
        server.poll(times=2)
        assert first_item(server) == "i0"
        assert "a.yaml" in server.recipe("a")["last_load_error"]
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1})
        assert len(server.said("recipe_parse_failed", name="a")) == 1
        assert server.metric("svc_skipped_recipes") == 1
        assert server.metric('svc_recipe_parse_failed{recipe="a"}') == 1
        put(home / "a.yaml", good)
        assert server.wait_for("artifact_load_error_cleared", name="a")["reason"] == "recipe_parsed"
        assert server.details()[0] == 200
        assert server.metric("svc_skipped_recipes") == 0
        assert server.metric('svc_recipe_parse_failed{recipe="a"}') == 0


def test_a_stub_loads_when_an_artifact_comes(home: Path) -> None:
    """A recipe without an artifact is served after its first training, without a restart."""
    (home.parent / "a.svc").unlink()
    with live(home) as server:
        assert server.health()[0] == 503
        write_artifact(home.parent / "a.svc", popularity_model(1), versioning="append_sha")
        server.wait_for("artifact_loaded", name="a")
        assert first_item(server) == "i1"
        assert server.health()[0] == 200


def test_a_removed_recipe_file_removes_its_recipe(home: Path) -> None:
    """A removed recipe file removes its recipe from answers, health and metrics."""
    with live(home) as server:
        (home / "a.yaml").unlink()
        server.wait_for("recipe_removed", name="a")
        answer = server.recommend("a")
        assert (answer.status_code, answer.json()["code"]) == (404, "RECIPE_NOT_FOUND")
        assert server.health() == (200, {"status": "ok", "total": 0, "loaded": 0})
        assert 'svc_model_loaded{recipe="a"}' not in server.get("/v1/metrics").text


def test_a_new_output_path_and_new_metadata_take_effect(home: Path) -> None:
    """A changed `output.path` or `item_metadata` takes effect on the next poll."""
    write_artifact(home.parent / "other.svc", popularity_model(1))
    put(home / "titles.csv", "item_id,title\ni1,One\n")
    metadata: dict[str, Any] = {
        "source": {"type": "csv", "path": "titles.csv"},
        "id_column": "item_id",
        "fields": ["title"],
    }
    with live(home) as server:
        write_recipe(home, "a", "../other.svc")
        server.wait_for("artifact_loaded", times=2)
        assert first_item(server) == "i1"
        write_recipe(home, "a", "../other.svc", item_metadata=metadata)
        server.wait_for("artifact_loaded", times=3)
        assert server.recommend("a").json()["items"][0]["title"] == "One"


def test_other_files_are_ignored_and_forbidden_ones_skipped(home: Path, tmp_path: Path) -> None:
    """Files that do not end in `.yaml` and folders are ignored.

    Links out of the folder, forbidden schemes and names that are taken are skipped.
    """
    put(home / "x.yml", "name: x")
    (home / "sub").mkdir()
    write_recipe(home / "sub", "y", "y.svc")
    outside = write_recipe(tmp_path, "outside", "o.svc")
    (home / "link.yaml").symlink_to(outside)
    write_recipe(home, "evil", "ftp://host/m.svc")
    write_recipe(home, "a", "../other.svc", file="second.yaml")
    with live(home) as server:
        assert server.health() == (200, {"status": "ok", "total": 1, "loaded": 1, "skipped": 3})
        assert {one["name"] for one in server.said("recipe_security_violation_skipped")} == {"link", "evil"}
        assert server.said("recipe_duplicate_name")[0]["file"] == "second.yaml"
        assert json.dumps(server.details()[1]).count('"skipped"') == 3
