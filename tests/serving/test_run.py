"""The life of a server in the process of the tests, and the settings that it refuses at its start."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio
from threadpoolctl import threadpool_info, threadpool_limits

from svc import logs
from svc.artifact.keys import development_keys
from svc.errors import ConfigError
from svc.serving import run
from svc.serving.api.authentication import hash_api_key
from svc.serving.process import Stop
from svc.serving.run import ServeOptions, serve
from svc.serving.transport.server import bind, listen
from svc.settings import MIB, Settings
from tests.serving.artifacts import SIGNING_KEYS, factor_model, write_artifact

pytestmark = pytest.mark.anyio

SETTINGS = Settings(signing_keys=SIGNING_KEYS)


def options(folder: Path, host: str = "127.0.0.1", port: int = 0) -> ServeOptions:
    return ServeOptions(folder, host, port)


def test_a_port_in_use_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    """The exit code is 8, with a message of one line that has the address."""
    with bind("127.0.0.1", 0, unread_timeout_s=1) as taken:
        _, port = listen(taken)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: address already in use") as caught:
            serve(options(tmp_path, port=port), SETTINGS, {})
    assert caught.value.exit_code == 8


def test_unsafe_modes_are_named() -> None:
    """The recurring warning and the event `security.posture` list the unsafe modes."""
    assert ServeOptions(Path(), "", 0).unsafe_modes == ()
    assert ServeOptions(Path(), "", 0, insecure_no_auth=True, dev_allow_unsigned=True).unsafe_modes == (
        "dev_allow_unsigned",
        "insecure_no_auth",
    )


class Records:
    """The server's log records, for a thread that waits for one."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._more = threading.Condition()

    def add(self, line: str) -> None:
        with self._more:
            self.all.append(json.loads(line))
            self._more.notify_all()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.all if record["event"] == event]

    def wait(self, event: str, count: int = 1) -> dict[str, Any]:
        """Return the record number `count` of the event."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.of(event)) >= count, timeout=60), (event, self.all)
        return self.of(event)[count - 1]


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, freezes: list[str]) -> Iterator[Records]:
    """Yield the records of a server. Undo afterwards the changes that the end of a process would undo."""
    bound: list[socket.socket] = []

    def kept(*arguments: Any, **options: Any) -> socket.socket:
        bound.append(bind(*arguments, **options))
        return bound[-1]

    monkeypatch.setattr(run.server, "bind", kept)
    collected, threshold, interval = Records(), gc.get_threshold(), sys.getswitchinterval()
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    logs.configure(Settings(log_format="json"), write=collected.add)
    with threadpool_limits(limits=2, user_api="blas"):
        yield collected
    signal.signal(signal.SIGHUP, hangup)
    for listener in bound:
        listener.close()
    logs.configure(Settings())
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)
    resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    ("folder", "host", "changes", "words"),
    [
        (".", "127.0.0.1", {"max_artifact_bytes": MIB, "max_payload_bytes": 2 * MIB}, "SVC_MAX_PAYLOAD_BYTES"),
        (".", "127.0.0.1", {"signing_keys": Settings().signing_keys}, "SVC_SIGNING_KEYS"),
        (".", "0.0.0.0", {}, "SVC_API_KEYS"),
        ("nowhere", "127.0.0.1", {}, "nowhere"),
        (".", "127.0.0.1", {"metrics_port": 0}, "SVC_METRICS_PORT needs SVC_METRICS_ENABLED=1"),
        (".", "127.0.0.1", {"api_key_policies": "none.yaml"}, "SVC_API_KEY_POLICIES is set, but SVC_API_KEYS is empty"),
        (
            ".",
            "127.0.0.1",
            {"api_keys": f"shop:{hash_api_key('s' * 43)}", "api_key_policies": "none.yaml"},
            "SVC_API_KEY_POLICIES: .*none.yaml cannot be read",
        ),
        (".", "127.0.0.1", {"tls_cert_file": "none.pem", "tls_key_file": "none.pem"}, "none.pem cannot be read"),
    ],
)
def test_a_server_that_could_not_do_what_its_settings_say_is_refused(
    tmp_path: Path, folder: str, host: str, changes: dict[str, Any], words: str
) -> None:
    """The error names the setting, file or folder that prevents it."""
    with pytest.raises(ConfigError, match=words):
        serve(options(tmp_path / folder, host), replace(SETTINGS, **changes), {})


def lived(options: ServeOptions, settings: Settings, user: Callable[[], None]) -> int:
    """Serve until `user` has returned in another thread. Raises the error of `user`."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            user()
        except BaseException as error:
            errors.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=act)
    thread.start()
    code = serve(options, settings, {})
    thread.join()
    for error in errors:
        raise error
    return code


def asked(port: int, key: str) -> tuple[int, list[str]]:
    """Return status and items of the answer to a request."""
    url = f"http://127.0.0.1:{port}/v1/recipes/shop:recommend"
    request = urllib.request.Request(url, b'{"user_id": "u1", "limit": 50}', {"X-API-Key": key})
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, [item["item_id"] for item in json.load(answer)["items"]]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, []


RECIPE = """
name: shop
source: {type: csv, path: none.csv}
schema: {user_column: u, item_column: i}
training: {algorithms: [IALS]}
output: {path: shop.svc}
serving: {availability: {source: {type: csv, path: there.csv}, id_column: item_id, mode: allow}}
"""
OLD, NEW = "o" * 43, "n" * 43


def test_a_server_answers_reloads_keys_and_drains_in_one_life(
    records: Records, freezes: list[str], tmp_path: Path
) -> None:
    """Valid new keys replace the old ones at once, and invalid ones change nothing. The drain ends regularly.

    A request that is refused during the drain is counted in the log.
    """
    write_artifact(tmp_path / "shop.svc", factor_model(10, 40, 4))
    (tmp_path / "shop.yaml").write_text(RECIPE)
    (tmp_path / "there.csv").write_text("item_id\n" + "".join(f"i{number}\n" for number in range(20, 24)))
    (tmp_path / "keys").write_text(f"k:{hash_api_key(OLD)}")
    (tmp_path / "keys").chmod(0o600)
    (tmp_path / "policies").write_text("two: {rate: 1/h, burst: 1}")
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    settings = replace(
        SETTINGS,
        api_keys_file=str(tmp_path / "keys"),
        api_key_policies=str(tmp_path / "policies"),
        env="development",
        metrics_enabled=True,
        metrics_port=0,
        drain_s=20.0,
    )

    def end_batch(client: socket.socket) -> None:
        with client:
            records.wait("serve_draining")
            client.sendall(b"{}, {}]}")
            assert client.recv(1000).startswith(b"HTTP/1.1 429 ")

    def use() -> None:
        port = records.wait("serve_started")["port"]
        status, items = asked(port, OLD)
        assert status == 200
        assert set(items) <= {"i20", "i21", "i22", "i23"}
        assert items
        assert asked(port, NEW) == (401, [])
        with urllib.request.urlopen(f"http://127.0.0.1:{records.of('monitoring_started')[0]['port']}/metrics") as page:
            assert b"svc_" in page.read()
        assert (gc.get_threshold()[2], freezes) == (100, ["freeze"])
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
        assert len(set(resource.getrlimit(resource.RLIMIT_NOFILE))) == 1
        for number, text in enumerate(("", "damaged"), start=1):
            (tmp_path / "keys").write_text(text)
            os.kill(os.getpid(), signal.SIGHUP)
            error = records.wait("keys_reload_failed", number)["error"]
            assert error.startswith(f"SVC_API_KEYS_FILE: {tmp_path / 'keys'}")
            assert asked(port, OLD)[0] == 200
        (tmp_path / "keys").write_text(f"k:{hash_api_key(NEW)},two:{hash_api_key('t' * 43)}")
        os.kill(os.getpid(), signal.SIGHUP)
        assert records.wait("keys_reloaded")["api_keys_configured"] == 2
        assert (asked(port, OLD)[0], asked(port, NEW)[0]) == (401, 200)
        client = socket.create_connection(("127.0.0.1", port))
        head = b"POST /v1/recipes/shop:batch-recommend HTTP/1.1\r\nHost: a\r\nX-API-Key: %b\r\n" % (b"t" * 43)
        client.sendall(head + b'Content-Length: 22\r\n\r\n{"requests": [')
        threading.Thread(target=end_batch, args=[client]).start()

    assert lived(ServeOptions(tmp_path, "127.0.0.1", 0, dev_allow_unsigned=True), settings, use) == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == handlers
    (posture,) = records.of("security.posture")
    assert [posture[name] for name in ("api_keys_configured", "env", "tls", "client_certificates")] == [
        1,
        "development",
        False,
        False,
    ]
    assert posture["unsafe_modes"] == ["dev_allow_unsigned"] == records.of("unsafe_mode_active")[0]["modes"]
    assert len(posture["signing_keys"]) == 2
    (started,) = records.of("serve_started")
    assert [started[name] for name in ("host", "recipes", "workers")] == ["127.0.0.1", 1, 1]
    (loaded,) = records.of("availability_loaded")
    assert (loaded["n_ids"], loaded["n_items"]) == (4, 4)
    (refused,) = records.of("requests_refused")
    assert (refused["code"], refused["kid"], refused["count"]) == ("RATE_LIMITED", "two", 1)
    (draining,), (ended,) = records.of("serve_draining"), records.of("serve_shutdown")
    assert (draining["signal"], draining["drain_seconds"]) == ("SIGTERM", 20.0)
    assert records.all[-1] == ended
    assert 0 < ended["drain_seconds"] < 20
    with pytest.raises(OSError, match="refused"):
        asked(started["port"], NEW)


def test_a_signal_during_the_first_loads_ends_the_server_before_it_answers(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server abandons a running load."""
    write_artifact(tmp_path / "shop.svc", factor_model(10, 40, 4))
    (tmp_path / "shop.yaml").write_text(RECIPE)
    load, is_loading, may_go_on = run.load_recipe, threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        is_loading.set()
        may_go_on.wait(60)
        return load(*arguments, **options)

    monkeypatch.setattr(run, "load_recipe", slow)
    try:
        assert lived(options(tmp_path), SETTINGS, lambda: is_loading.wait(60) and None) == 0
    finally:
        may_go_on.set()
    assert [record["event"] for record in records.all] == ["security.posture", "serve_shutdown"]


async def test_a_client_that_stays_does_not_outlast_the_drain(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process logs `serve_shutdown`, and ends a second after the time for the drain."""
    ended: list[float] = []
    monkeypatch.setattr(run.process, "exit_now", lambda: ended.append(trio.current_time()))
    stop, began = Stop(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run._end_drain, stop, 20.0)
        await trio.sleep(5)
        stop.set("SIGTERM")
    assert ended == [pytest.approx(began + 5 + 20 + 1)]
    assert [record["drain_seconds"] for record in records.of("serve_shutdown")] == [21.0]


async def test_unsafe_modes_are_logged_while_the_server_runs(records: Records) -> None:
    """The warning is repeated every five minutes."""
    with trio.move_on_after(601):
        await run._warn_of(("insecure_no_auth",))
    assert [record["modes"] for record in records.of("unsafe_mode_active")] == [["insecure_no_auth"]] * 3
    await run._warn_of(())


@pytest.mark.parametrize("certificate", [None, "c"], ids=["without TLS", "with TLS"])
async def test_workers_get_the_new_keys_and_the_new_certificate(
    certificate: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without a certificate sends its workers only the API keys."""
    options, state, loader, watcher, fleet = (mock.Mock() for _ in range(5))
    monkeypatch.setattr(run, "_read_keys", lambda *_: (development_keys(), {"k": "1"}, certificate))
    if certificate is None:
        state.tls = None
    await run._renew_keys(options, state, loader, watcher, fleet)
    told = [call.args for call in fleet.tell.call_args_list]
    assert told == [("keys", {"k": "1"})] + ([("certificate", "c")] if certificate else [])
    if certificate:
        state.tls.replace.assert_called_once_with(certificate)


async def test_a_certificate_without_a_descriptor_replaces_nothing(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error would end the whole server. Its context is made in a file in memory, which takes a descriptor."""
    options, state, loader, watcher, fleet = (mock.Mock() for _ in range(5))
    monkeypatch.setattr(run, "_read_keys", lambda *_: (development_keys(), {"k": "1"}, "c"))
    state.tls.replace.side_effect = OSError(24, "Too many open files")
    await run._renew_keys(options, state, loader, watcher, fleet)
    assert "Too many open files" in records.of("keys_reload_failed")[0]["error"]
    assert not state.auth.replace.called
    assert not fleet.tell.called
