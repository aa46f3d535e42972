"""The watcher, which polls recipes and artifacts, with fake stores and a fake loader in virtual time."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import trio
import trio.testing

from svc.errors import (
    ArtifactError,
    ArtifactExpired,
    ArtifactReadError,
    ArtifactReplayed,
    ConfigError,
    MagicMismatch,
    MetadataError,
    RecipeError,
    RehearsalFailed,
)
from svc.recipe.serving_schema import Serving
from svc.serving.models.recipes import Refused
from svc.settings import Settings
from tests.serving.watched import INTERVAL_S, FakeRecipe, World, failed, ticks, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Use virtual time that jumps at once, but stands still while a thread works (see `watched`)."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


async def test_an_unforeseen_error_at_the_start_leaves_a_stub() -> None:
    """The recipe has no model, and the error is logged and counted."""
    world = World("a")
    world.loader.errors["v1"] = MemoryError("no room")
    with world.listening():
        await world.watcher.start()
    assert [record["name"] for record in world.said("artifact_load_unexpected_error")] == ["a"]
    assert world.entry("a").error is not None
    assert world.count("svc_artifact_load_failures_total{") == 1


@pytest.mark.parametrize("error", [OSError("odd"), ArtifactReadError("reset"), MetadataError("metadata: no file")])
@pytest.mark.parametrize("succeeds", [True, False])
async def test_the_server_is_not_ready_before_a_failed_load_is_tried_again(error: Exception, succeeds: bool) -> None:
    """Its other recipe is served meanwhile. The retry ends the wait whether or not it succeeds."""
    world = World("a", "b")
    world.store("b").content = "v2"
    world.loader.errors["v2"] = error if isinstance(error, OSError) else failed(error)
    with world.listening():
        await world.watcher.start()
        assert world.served("a") == "v1"
        assert world.registry.unready_reason(names_recipes=True)
        if succeeds:
            world.loader.errors.clear()
        await first_tick(world)
    assert world.registry.unready_reason(names_recipes=True) is None
    assert (world.entry("b").served is not None) == succeeds


async def test_readiness_waits_for_no_load_that_is_not_tried_again() -> None:
    """An artifact is missing, one is refused for good, and the store of one does not answer at the retry."""
    world = World("a", "none", "refused")
    world.store("none").content = None
    world.store("refused").content = "bad"
    world.loader.errors["bad"] = failed(MagicMismatch("magic bytes mismatch"))
    with world.listening():
        await world.watcher.start()
        assert world.registry.unready_reason(names_recipes=True) is None
    world = World("a", "lost")
    world.store("lost").content = "v2"
    world.loader.errors["v2"] = failed(ArtifactReadError("reset"))
    with world.listening():
        await world.watcher.start()
        assert world.registry.unready_reason(names_recipes=True)
        world.store("lost").trouble = OSError("no answer")
        await first_tick(world)
    assert world.registry.unready_reason(names_recipes=True) is None


async def first_tick(world: World) -> None:
    """Run the watcher until its first tick after the start has ended."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.watcher.run)
        await ticks(0.5)
        nursery.cancel_scope.cancel()


async def test_health_shows_the_name_of_an_artifact_and_not_its_folder() -> None:
    """The log shows the folder."""
    world = World("a", "b")
    world.store("a").content = None
    world.store("b").trouble = ArtifactReadError("s3 says 403 for /fake/artifact.svc and /fake/artifact.12345678.svc")
    with world.listening():
        await world.watcher.start()
    recipes = world.registry.details()[0]["recipes"]
    assert recipes["a"]["error"] == "artifact not found: artifact.svc"
    assert recipes["b"]["error"] == "s3 says 403 for artifact.svc and artifact.12345678.svc"
    assert "/fake/artifact.svc" in world.said("recipe_not_loaded_at_startup")[0]["error"]


async def test_denied_fields_that_no_recipe_declares_are_logged() -> None:
    """The check ignores case. One recipe with the column is enough."""
    world = World(settings=Settings(metadata_field_deny=("COST", "margn")))
    world.folder.files = {"a.yaml": FakeRecipe("a", shown_columns=frozenset({"Cost"})), "b.yaml": FakeRecipe("b")}
    with world.listening():
        await world.watcher.start()
    assert [record["fields"] for record in world.said("denied_fields_unknown")] == [["margn"]]


async def test_start_needs_a_folder() -> None:
    """A folder that cannot be listed at the start is a configuration error."""
    world = World()
    world.folder.trouble = FileNotFoundError("no such folder")
    with world.listening(), pytest.raises(ConfigError):
        await world.watcher.start()


async def test_a_folder_that_is_slow_to_parse_only_delays_the_start() -> None:
    """The start waits for large or hostile recipe files, and then serves the models."""
    world = World("a")
    world.folder.hang = threading.Event()
    with world.listening():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.watcher.start)
            await trio.sleep(10 * INTERVAL_S)
            world.release(world.folder.hang)
    assert world.served("a") == "v1"


async def test_a_changed_artifact_becomes_the_model_and_the_old_lane_closes() -> None:
    """The next poll loads the new artifact and counts one swap."""
    world = World("a")
    async with world.running():
        world.store("a").content = "v2"
        await ticks(1)
        assert world.served("a") == "v2"
        assert [lane.closed for lane in world.lanes] == [True, False]
        assert world.count('svc_swap_total{result="ok"}') == 1


@pytest.mark.parametrize("marker_text", [None, "restored"], ids=["served marker", "new marker"])
@pytest.mark.parametrize("error", [MagicMismatch("magic bytes mismatch"), ArtifactReadError("cut short")])
async def test_a_rollback_to_the_served_bytes_clears_the_error(error: ArtifactError, marker_text: str | None) -> None:
    """The error clears without a swap when the artifact has the bytes of the served model again."""
    world = World("a")
    world.loader.errors["bad"] = failed(error)
    async with world.running():
        world.store("a").content = "bad"
        await ticks(3)
        assert world.entry("a").last_load_error == error.message
        world.store("a").content, world.store("a").marker_text = "v1", marker_text
        await ticks(1.1)
        cleared = world.said("artifact_load_error_cleared")
        assert [(one["reason"], one["previous_error"]) for one in cleared] == [("bytes_unchanged", error.message)]
        assert world.entry("a").last_load_error is None
        assert (world.served("a"), len(world.lanes)) == ("v1", 1)


async def test_a_load_error_survives_a_stat_failure_that_ends() -> None:
    """When the store answers again, it still has the refused artifact, so the error stays."""
    world = World("a")
    world.loader.errors["bad"] = failed(MagicMismatch("magic bytes mismatch"))
    async with world.running():
        world.store("a").content = "bad"
        await ticks(1)
        world.store("a").trouble = PermissionError(13, "Permission denied")
        await ticks(1)
        assert world.count("svc_artifact_stat_failures_total{") >= 1
        world.store("a").trouble = None
        await ticks(2)
        assert world.entry("a").last_load_error == "magic bytes mismatch"
        assert world.loader.loads.count(("a", "bad")) == 1


@pytest.mark.parametrize("error", [ArtifactReadError("reset"), MetadataError("metadata: no file"), OSError("odd")])
async def test_temporary_errors_are_retried(error: Exception) -> None:
    """Failed reads, failed metadata and unexpected errors are retried at growing intervals, without a new artifact.

    After a success, the first retry is at the next tick again.
    """
    world = World("a")
    trouble = failed(error) if not isinstance(error, OSError) else error
    world.loader.errors["v1"] = trouble
    async with world.running():
        await ticks(10)
        assert 2 <= world.loader.loads.count(("a", "v1")) <= 5
        world.loader.errors.clear()
        await ticks(10)
        assert world.served("a") == "v1"
        world.loader.errors["v2"] = trouble
        world.store("a").content = "v2"
        while ("a", "v2") not in world.loader.loads:
            await ticks(0.1)
        await ticks(1.5)
        assert world.loader.loads.count(("a", "v2")) == 2


async def test_a_missing_sidecar_is_logged_once() -> None:
    """A `.sha256` file that existed at the previous poll is gone."""
    world = World("a")
    world.store("a").sidecar = True
    async with world.running():
        await ticks(1)
        world.store("a").sidecar = False
        await ticks(3)
        assert len(world.said("sidecar_disappeared")) == 1


async def test_a_hung_store_is_asked_once_and_delays_no_other() -> None:
    """A change in another store takes effect within an interval."""
    world = World("hung", "well")
    async with world.running():
        release = threading.Event()
        world.store("hung").hang = release
        await ticks(2)
        looks = world.store("hung").looks
        world.store("well").content = "v2"
        await ticks(1)
        assert world.served("well") == "v2"
        assert world.store("hung").looks == looks
        assert [event["timeout_s"] for event in world.said("artifact_stat_timeout")] == [INTERVAL_S]
        assert "did not answer" in (world.entry("hung").last_load_error or "")
        world.store("hung").hang = None
        world.release(release)
        await until(lambda: world.entry("hung").last_load_error is None)
        assert world.said("artifact_load_error_cleared")[0]["reason"] == "marker_restored"


async def test_twenty_hung_stores_leave_slots_for_the_others() -> None:
    """The test has more hung stores than there are slots for calls to stores."""
    world = World(*(f"hung{number}" for number in range(20)), "well")
    async with world.running():
        release = threading.Event()
        for number in range(20):
            world.store(f"hung{number}").hang = release
        await ticks(3)
        world.store("well").content = "v2"
        await ticks(1)
        assert world.served("well") == "v2"
        world.release(release)


async def test_a_hanging_load_is_abandoned_and_not_repeated_while_it_hangs() -> None:
    """The previous model stays. The store is not asked again."""
    world = World("a", settings=Settings(watch_interval_s=INTERVAL_S, load_timeout_s=10))
    async with world.running():
        release = threading.Event()
        world.loader.hang = release
        world.store("a").content = "v2"
        await ticks(4)
        looks = world.store("a").looks
        await ticks(4)
        assert world.store("a").looks == looks
        assert "SVC_LOAD_TIMEOUT_SECONDS" in (world.entry("a").last_load_error or "")
        assert world.served("a") == "v1"
        world.loader.hang = None
        world.release(release)
        await until(lambda: world.served("a") == "v2")


async def test_the_lane_of_a_removed_recipe_is_closed() -> None:
    world = World("a")
    async with world.running():
        del world.folder.files["a.yaml"]
        await ticks(1)
        assert world.lanes[0].closed


async def test_the_lane_of_a_recipe_removed_during_publication_is_closed() -> None:
    """The watcher continues to run."""
    world = World("a", "b")
    async with world.running():
        world.hold_lanes = trio.Event()
        world.store("a").content = "v2"
        await ticks(1)
        del world.folder.files["a.yaml"]
        await ticks(1)
        assert world.registry.get("a") is None
        world.hold_lanes.set()
        await ticks(1)
        assert world.registry.get("a") is None
        assert world.lanes[-1].closed
        world.store("b").content = "v2"
        await ticks(1)
        assert world.served("b") == "v2"


async def test_a_model_loaded_for_a_previous_output_never_replaces_the_present_one() -> None:
    """The loaded model is closed unused, even if its lane starts later."""
    world = World("a")
    world.store("a", "other.svc").content = "elsewhere"
    async with world.running():
        first = world.hold_lanes = trio.Event()
        world.store("a").content = "v2"
        await ticks(1)
        world.folder.files["a.yaml"] = FakeRecipe("a", output="other.svc")
        world.hold_lanes = trio.Event()
        world.hold_lanes.set()
        await until(lambda: world.served("a") == "elsewhere")
        first.set()
        await ticks(2)
        assert world.served("a") == "elsewhere"
        assert {lane.model: lane.closed for lane in world.lanes} == {"v1": True, "elsewhere": False, "v2": True}
        assert [record["name"] for record in world.said("artifact_loaded")] == ["a", "a"]


@pytest.mark.parametrize(
    ("edited", "loads", "reloads"),
    [
        (FakeRecipe("a"), ["v1"], []),
        (FakeRecipe("a", text="n_trials: 3"), ["v1"], [False]),
        (FakeRecipe("a", item_metadata="titles.csv"), ["v1", "v1"], [True]),
        (FakeRecipe("a", serving=Serving(users=True)), ["v1", "v1"], [True]),
        (FakeRecipe("a", output="other.svc"), ["v1", "elsewhere"], [True]),
    ],
    ids=["same content", "training", "metadata", "users", "output"],
)
async def test_an_edit_loads_the_model_again_only_if_its_answers_need_it(
    edited: FakeRecipe, loads: list[str], reloads: list[bool]
) -> None:
    """Some edits change bytes or summaries that a load prepares. Each edit is logged."""
    world = World("a")
    world.store("a", "other.svc").content = "elsewhere"
    async with world.running():
        world.folder.files["a.yaml"] = edited
        await ticks(2)
        assert [text for _, text in world.loader.loads] == loads
        assert world.served("a") == loads[-1]
        assert [record["reload"] for record in world.said("recipe_changed")] == reloads


async def test_a_removed_permission_for_users_applies_without_a_load() -> None:
    world = World("a")
    world.folder.files["a.yaml"] = FakeRecipe("a", serving=Serving(users=True))
    async with world.running():
        assert world.entry("a").policy.users
        world.folder.files["a.yaml"] = FakeRecipe("a", serving=Serving())
        await ticks(1)
        assert len(world.loader.loads) == 1
        assert not world.entry("a").policy.users


async def test_a_changed_recipe_takes_its_new_file_name() -> None:
    """The recipe is edited and its file is renamed between two polls. Its model is not loaded again."""
    world = World("a")
    async with world.running():
        moved = dataclasses.replace(world.folder.files.pop("a.yaml"), text="n_trials: 3")
        world.folder.files["b.yaml"] = moved
        await ticks(2)
        entry = world.registry.get("a")
        assert entry is not None and entry.file == "b.yaml"
        assert world.loader.loads == [("a", "v1")]


async def test_a_skipped_file_is_logged_once_with_the_level_of_its_kind() -> None:
    """Security violations are errors, others warnings. All are counted."""
    world = World()
    world.folder.files = {
        "a.yaml": Refused("bad", "parse"),
        "b.yaml": Refused("evil", "security"),
        "c.yaml": FakeRecipe("same"),
        "d.yaml": FakeRecipe("same"),
    }
    async with world.running():
        await ticks(2)
        assert [(one["name"], one["level"]) for one in world.said("recipe_load_error_skipped")] == [("a", "warning")]
        assert [(one["name"], one["level"]) for one in world.said("recipe_security_violation_skipped")] == [
            ("b", "error")
        ]
        assert [one["file"] for one in world.said("recipe_duplicate_name")] == ["d.yaml"]
        assert [one["kept"] for one in world.said("recipe_duplicate_name")] == ["c.yaml"]
        assert world.registry.health()[0]["skipped"] == 3


async def test_an_unexpected_error_in_a_tick_is_counted_and_the_next_one_runs() -> None:
    """One failed poll stops neither the watcher nor other recipes."""
    world = World("a")
    async with world.running():
        world.folder.trouble = RecipeError("no rule foresees this")
        await ticks(1)
        assert world.count("svc_watcher_unhandled_errors_total") >= 1
        assert world.said("watcher_unhandled_error")
        world.folder.trouble = None
        world.store("a").content = "v2"
        await ticks(1.1)
        assert world.served("a") == "v2"


async def test_a_folder_that_cannot_be_listed_changes_nothing() -> None:
    """The recipes stay, and artifacts are still polled. The failure is logged and counted."""
    world = World("a")
    async with world.running():
        world.folder.trouble = PermissionError(13, "Permission denied")
        world.store("a").content = "v2"
        await ticks(1.1)
        assert world.served("a") == "v2"
        assert world.count("svc_recipes_dir_scan_failures_total") >= 1


async def test_ticks_keep_the_interval_within_a_tenth() -> None:
    """Thirty intervals have 27 to 33 ticks, and perhaps the end of a tick that began before."""
    world = World("a")
    async with world.running():
        before = world.store("a").looks
        await trio.sleep(INTERVAL_S * 30)
        assert 27 <= world.store("a").looks - before <= 34
        assert 27 <= world.count("svc_watcher_tick_seconds_count") <= 34


@pytest.mark.parametrize("error", [ArtifactReplayed("an older artifact"), ArtifactExpired("expired")])
async def test_a_temporary_refusal_is_retried(error: ArtifactError) -> None:
    """A reason such as a missing rollback line or a wrong clock may end. The old model answers until then."""
    world = World("a")
    async with world.running():
        world.loader.errors["v2"] = failed(error)
        world.store("a").content = "v2"
        await ticks(3)
        assert world.served("a") == "v1"
        assert world.entry("a").faults.load is not None
        world.loader.errors.clear()
        await ticks(8)
        assert world.served("a") == "v2"


async def test_a_model_that_expires_while_served_is_logged_once_and_stays() -> None:
    """Answers of an expired model are better than no answers."""
    world = World("a", "b")
    async with world.running():
        served = world.entry("a").served
        assert served is not None
        header = {**served.header, "expires_at": "2026-01-01T00:00:00+00:00"}
        world.registry.put(dataclasses.replace(world.entry("a"), served=dataclasses.replace(served, header=header)))
        await ticks(4)
        assert world.served("a") == "v1"
        assert [record["name"] for record in world.said("artifact_expired")] == ["a"]


async def test_a_refused_rehearsal_is_repeated_under_another_bound() -> None:
    """Refused bytes are loaded again only if they or the recipe's bounds change."""
    world = World("a")
    async with world.running():
        world.loader.errors["v2"] = failed(RehearsalFailed("rehearsal: 0 of the live model's 9 users are known"))
        world.store("a").content = "v2"
        await ticks(3)
        assert world.served("a") == "v1"
        assert world.entry("a").last_load_error == "rehearsal: 0 of the live model's 9 users are known"
        assert world.count('svc_artifact_load_failures_total{reason="rehearsal",recipe="a"}') == 1
        assert world.count('svc_swap_total{result="error"}') == 1
        world.loader.errors.clear()
        world.folder.files["a.yaml"] = FakeRecipe("a", serving=Serving(fallback="popular"))
        await ticks(3)
        assert world.served("a") == "v1"
        world.folder.files["a.yaml"] = FakeRecipe("a", serving=Serving(rehearsal={"min_known_users": 0.1}))
        await ticks(2)
        assert world.served("a") == "v2"


async def test_a_load_gets_the_model_that_it_would_replace() -> None:
    """The first load of a recipe gets None."""
    world = World("a")
    async with world.running():
        world.store("a").content = "v2"
        await ticks(1)
        assert world.loader.lives == [None, "v1"]
