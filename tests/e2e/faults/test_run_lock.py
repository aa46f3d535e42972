"""Every transition of the training run lock, driven by real `svc train` processes."""

from __future__ import annotations

import pytest

from svc.artifact.lock import run_lock
from svc.settings import Settings
from tests.e2e.conftest import Shop
from tests.e2e.tables import missing_tests

# state | trigger | condition | next | test
TABLE = """
lock free | svc train starts | taken                 | running     | a_free_lock_is_taken_and_released
lock held | svc train starts | default flags         | exit 0      | a_held_lock_skips_the_training_by_default
lock held | svc train starts | --fail-on-busy        | exit 6      | a_held_lock_fails_the_training_with_fail_on_busy
lock held | svc train starts | --lock-timeout > 0    | waits, fails| a_training_fails_when_its_lock_timeout_ends
lock held | svc train starts | --lock-timeout -1     | waits       | an_endless_wait_ends_when_the_lock_is_released
any       | svc train starts | --no-lock             | no lock     | no_lock_ignores_a_held_lock
any       | svc train starts | remote output.path    | host-local  | a_remote_output_is_locked_on_this_host_only
"""


def test_every_row_names_a_test_that_exists() -> None:
    """Each row of the table names a test of this file."""
    assert not missing_tests(TABLE, globals())


@pytest.fixture
def held(shop: Shop) -> Shop:
    """A shop with an existing artifact folder, in which a test can take the lock."""
    shop.artifact.parent.mkdir()
    return shop


def test_a_free_lock_is_taken_and_released(held: Shop) -> None:
    """A training takes a free lock and releases it at its end."""
    assert held.train("--fail-on-busy").code == 0
    with run_lock(str(held.artifact), timeout_s=0, settings=Settings()):
        pass


def test_a_held_lock_skips_the_training_by_default(held: Shop) -> None:
    """A training whose lock is held ends with exit code 0, logs that it skips, and writes no artifact."""
    with run_lock(str(held.artifact), timeout_s=0, settings=Settings()):
        ended = held.train("--run-id", "second")
    skipped = ended.records[-1]
    assert ended.code == 0
    assert (skipped["event"], skipped["recipe"], skipped["run_id"]) == (
        "recipe_lock_contended_skipping",
        "shop",
        "second",
    )
    assert not held.artifact.exists()


def test_a_held_lock_fails_the_training_with_fail_on_busy(held: Shop) -> None:
    """With `--fail-on-busy`, a training whose lock is held ends with exit code 6."""
    with run_lock(str(held.artifact), timeout_s=0, settings=Settings()):
        ended = held.train("--fail-on-busy")
    assert (ended.code, ended.records[-1]["code"]) == (6, "lock_contested")


def test_a_training_fails_when_its_lock_timeout_ends(held: Shop) -> None:
    """With `--lock-timeout`, a training ends with exit code 6 if the lock is still held after that time."""
    with run_lock(str(held.artifact), timeout_s=0, settings=Settings()):
        ended = held.train("--lock-timeout", "0.1")
    assert (ended.code, ended.records[-1]["code"]) == (6, "lock_contested")


def test_an_endless_wait_ends_when_the_lock_is_released(held: Shop) -> None:
    """With `--lock-timeout -1`, a training starts as soon as the lock is released."""
    with run_lock(str(held.artifact), timeout_s=0, settings=Settings()):
        waiting = held.start("train", str(held.recipe), "--lock-timeout", "-1")
        assert waiting.stderr is not None
        assert "training_started" in waiting.stderr.readline()
    _, err = waiting.communicate(timeout=150)
    assert waiting.returncode == 0, err
    assert held.artifact.exists()


def test_no_lock_ignores_a_held_lock(held: Shop) -> None:
    """With `--no-lock`, a training runs although the lock is held."""
    with run_lock(str(held.artifact), timeout_s=0, settings=Settings()):
        assert held.train("--no-lock").code == 0
    assert held.artifact.exists()


def test_a_remote_output_is_locked_on_this_host_only(held: Shop) -> None:
    """The lock of a remote artifact lies in SVC_LOCK_DIR, and the log says that it binds only this host."""
    held.edit("path: artifacts/shop.svc", "path: http://127.0.0.1:9/shop.svc")
    locks = held.folder / "locks"
    with run_lock("http://127.0.0.1:9/shop.svc", timeout_s=0, settings=Settings(lock_dir=str(locks))) as path:
        ended = held.train("--fail-on-busy", SVC_LOCK_DIR=str(locks), SVC_HTTP_ALLOW_PRIVATE="1")
    assert ended.code == 6
    assert ended.record("recipe_lock_local_only")["lock"] == str(path)
