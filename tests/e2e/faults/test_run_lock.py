"""Every transition of the training run lock, driven by `svc train`."""

from __future__ import annotations

import pytest

from svc.artifact.lock import run_lock
from svc.settings import Settings
from tests.e2e.conftest import Shop

LOCAL, REMOTE = "artifacts/shop.svc", "http://127.0.0.1:9/shop.svc"
SKIPPED = {"event": "recipe_lock_contended_skipping", "recipe": "shop", "run_id": "second"}
REFUSED = {"event": "train_error", "code": "lock_contested", "exit_code": 6}
DONE = {"event": "train_done", "run_id": "second"}


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """Return a shop with a folder of artifacts, a quick training, and locks of its own for remote outputs."""
    shop.artifact.parent.mkdir()
    shop.edit("[CosineKNN, TopPop]", "[TopPop]")
    shop.edit("n_trials: 4", "n_trials: 1")
    shop.environment |= {"SVC_LOCK_DIR": str(shop.folder / "locks"), "SVC_HTTP_ALLOW_PRIVATE": "1"}
    return shop


@pytest.mark.parametrize(
    ("flags", "code", "last"),
    [
        ([], 0, SKIPPED),
        (["--fail-on-busy"], 6, REFUSED),
        (["--lock-timeout", "0.1"], 6, REFUSED),
        (["--no-lock"], 0, DONE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_held_lock_skips_refuses_or_is_ignored(shop: Shop, flags: list[str], code: int, last: object) -> None:
    """Without flags a training whose lock is held skips. Only with `--no-lock` it writes an artifact."""
    with run_lock(str(shop.artifact), timeout_s=0, settings=Settings()):
        ended = shop.train("--run-id", "second", *flags)
    assert ended.code == code, ended.err
    assert ended.records[-1] | dict(last) == ended.records[-1]  # type: ignore[call-overload]
    assert shop.artifact.exists() == (last is DONE)


def test_an_endless_wait_ends_when_the_lock_is_released(shop: Shop) -> None:
    """With `--lock-timeout -1`, a training waits for the lock, takes it, and releases it at its end."""
    with run_lock(str(shop.artifact), timeout_s=0, settings=Settings()):
        waiting = shop.start("train", str(shop.recipe), "--lock-timeout", "-1")
        assert waiting.stderr is not None
        assert "training_started" in waiting.stderr.readline()
        assert not shop.artifact.exists()
    _, err = waiting.communicate(timeout=150)
    assert waiting.returncode == 0, err
    assert shop.artifact.exists()
    with run_lock(str(shop.artifact), timeout_s=0, settings=Settings()):
        pass


def test_a_remote_output_is_locked_on_this_host_only(shop: Shop) -> None:
    """The lock of a remote artifact lies in SVC_LOCK_DIR, and the log says that it binds only this host."""
    shop.edit(f"path: {LOCAL}", f"path: {REMOTE}")
    with run_lock(REMOTE, timeout_s=0, settings=Settings(lock_dir=shop.environment["SVC_LOCK_DIR"])) as path:
        ended = shop.train("--fail-on-busy")
    assert ended.code == 6
    assert ended.record("recipe_lock_local_only")["lock"] == str(path)
