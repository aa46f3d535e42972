"""The template process that forks workers: its environment, its restarts and the pauses before them."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import threading
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from svc.serving.workers.template import PID, POLL_S, Pauses, Template, environment
from svc.settings import variables
from tests.serving.workers.test_fleet import few_descriptors, open_descriptors

pytestmark = pytest.mark.anyio

SECRETS = {
    "SVC_SIGNING_KEYS": "k1:00",
    "SVC_VERIFY_KEYS": "k1:ed25519:00",
    "SVC_SIGNING_KEYS_FILE": "/keys",
    "SVC_API_KEYS": "shop:sha256:00",
    "SVC_RECIPE_DSN": "postgresql://me:secret@db",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "GOOGLE_APPLICATION_CREDENTIALS": "/credentials",
    "SVC_TLS_CERT_FILE": "/chain.pem",
    "SVC_TLS_KEY_FILE": "/key.pem",
    "SVC_TLS_CLIENT_CA_FILE": "/ca.pem",
    "SVC_ARTIFACT_ROOT": "/models",
    "SVC_LOCK_DIR": "/locks",
}


def test_workers_get_no_keys_and_no_stores() -> None:
    """The environment of workers has settings, and the variables of spans and of Python."""
    kept = environment({**SECRETS, "SVC_MAX_QUEUE_SECONDS": "3", "OTEL_SERVICE_NAME": "shop", "PATH": "/bin"}, 1)
    assert not SECRETS.keys() & kept.keys()
    assert not any(value in kept.values() for value in SECRETS.values())
    assert kept["SVC_MAX_QUEUE_SECONDS"] == "3"
    assert (kept["OTEL_SERVICE_NAME"], kept["PATH"]) == ("shop", "/bin")


def test_no_secret_setting_reaches_a_worker() -> None:
    named = {variable.env: "x" for _, _, variable in variables()}
    kept = environment(named, 1)
    assert not {variable.env for _, _, variable in variables() if variable.secret} & kept.keys()


def test_workers_share_the_scoring_threads_of_the_machine() -> None:
    """A configured number applies to each worker."""
    assert environment({}, 2)["SVC_SCORING_THREADS"] == "2"
    assert environment({"SVC_SCORING_THREADS": "5"}, 2)["SVC_SCORING_THREADS"] == "5"


class FakeProcess:
    """A template process that is ready at once, forks one worker, and ends on demand or at once."""

    started: list[FakeProcess]
    dies_at_once = False
    is_slow = False

    def __init__(self, command: list[str], **_: object) -> None:
        self._end = socket.socket(fileno=os.dup(int(command[-2])))
        self._code: int | None = None
        FakeProcess.started.append(self)
        if not self.is_slow:
            self.become_ready()
        if self.dies_at_once:
            self.kill()

    def become_ready(self) -> None:
        self._end.send(PID.pack(len(FakeProcess.started)))

    def poll(self) -> int | None:
        return self._code

    def kill(self) -> None:
        self._code = -9
        self._end.close()

    def wait(self) -> int:
        assert self._code is not None
        return self._code


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    monkeypatch.setattr(FakeProcess, "started", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", FakeProcess)
    return FakeProcess.started


async def test_an_ended_template_is_restarted_at_once(fakes: list[FakeProcess]) -> None:
    """`copy` raises OSError until the restart. The log has the exit code of the ended process."""
    kept = Template({})
    with capture_logs() as log:
        await end_and_copy(kept, fakes)
    assert [(record["event"], record["error"]) for record in log] == [
        ("worker_template_restarted", "it ended with exit code -9")
    ]
    assert all(fake.poll() == -9 for fake in fakes)


async def end_and_copy(kept: Template, fakes: list[FakeProcess]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(kept.run)
        assert await kept.copy([]) == 1
        await trio.sleep(60)
        fakes[0].kill()
        with pytest.raises(OSError):  # the system chooses the subclass
            await kept.copy([])
        await trio.sleep(2 * POLL_S)
        assert await kept.copy([]) == 2
        nursery.cancel_scope.cancel()


async def test_other_tasks_go_on_while_a_template_imports_its_modules(
    fakes: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`copy` waits until the template process is ready, and blocks no other task."""
    monkeypatch.setattr(FakeProcess, "is_slow", True)
    kept, copied = Template({}), list[int]()

    async def copy() -> None:
        copied.append(await kept.copy([]))

    async with trio.open_nursery() as nursery:
        await nursery.start(kept.run)
        latest = threading.Timer(1.0, fakes[0].become_ready)
        latest.start()
        nursery.start_soon(copy)
        await trio.sleep(0.01)
        latest.cancel()
        assert copied == []
        fakes[0].become_ready()
        await trio.sleep(0.01)
        assert copied == [1]
        nursery.cancel_scope.cancel()


async def test_early_ends_of_a_template_cause_growing_pauses(
    fakes: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses before a restart grow up to half a minute. `copy` raises OSError during a pause."""
    monkeypatch.setattr(FakeProcess, "dies_at_once", True)
    kept = Template({})
    with trio.move_on_after(3600):
        async with trio.open_nursery() as nursery:
            await nursery.start(kept.run)
            while True:
                with pytest.raises(OSError):  # the system chooses the subclass
                    await kept.copy([])
                await trio.sleep(1)
    assert 100 < len(fakes) < 140


async def test_a_template_restarts_as_soon_as_file_descriptors_are_free(
    fakes: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`copy` raises OSError until then. No descriptor is leaked."""
    kept = Template({})
    gc.collect()
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        await nursery.start(kept.run)
        for free in range(2):
            await trio.sleep(60)
            fakes[-1].kill()
            with few_descriptors(free):
                await trio.sleep(60)
                with pytest.raises(OSError):  # the system chooses the subclass
                    await kept.copy([])
            await trio.sleep(1)
            assert await kept.copy([]) == len(fakes) == free + 2
        nursery.cancel_scope.cancel()
    gc.collect()
    assert open_descriptors() == before


def test_a_worker_that_served_is_replaced_at_once() -> None:
    """Many deaths of workers that have served cause no pause either."""
    pauses = Pauses()
    assert [pauses.after(served_s=60.0) for _ in range(100)] == [0.0] * 100


def test_early_deaths_of_workers_cause_growing_pauses() -> None:
    """The pauses grow up to half a minute. A worker that has served resets them."""
    pauses = Pauses()
    found = [pauses.after(served_s=0.0) for _ in range(14)]
    assert found[:3] == [0.0, 0.0, 0.0]
    assert found[3:6] == [0.1, 0.2, 0.4]
    assert found == sorted(found)
    assert found[-1] == 30.0
    assert pauses.is_failing
    assert pauses.after(served_s=5.0) == 0.0
    assert not pauses.is_failing
