"""Fixtures for every test: trio under virtual time, events that are checked against their table, an object store."""

from __future__ import annotations

import functools
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
import trio.testing

from svc import logs
from svc.cores import limit_blas_threads
from svc.events import Event
from svc.serving.models import threads
from svc.settings import Settings
from tests.object_store import ObjectsInMemory

# Examples have no deadline: the first one may import a library, and machines are busy.
hypothesis.settings.register_profile("svc", deadline=None)
hypothesis.settings.load_profile("svc")

# The tracebacks of rich, structlog's default, take half a second each.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback

SYSTEM_FOLDERS = (Path(__file__).parent / "e2e",)
"""Folders whose tests all start processes or simulate load."""


def pytest_report_header(config: pytest.Config) -> str | None:
    """Tell how to run the fast tests alone, unless the command line selects tests."""
    if config.option.file_or_dir or config.option.markexpr or config.option.keyword:
        return None
    return 'all tests, with those that start servers; the fast ones: nox, or pytest -m "not integration and not system"'


MARKERS = ("integration", "system")


@functools.cache
def markers_of(path: Path) -> frozenset[str]:
    """Return the markers that tests of this file may have: it names them, or the conftest.py beside it does."""
    beside = path.with_name("conftest.py")
    files = [path, *([beside] if beside.exists() and beside != Path(__file__) else [])]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    named = {marker for marker in MARKERS if f"mark.{marker}" in text}
    return frozenset({*named, "system"} if any(folder in path.parents for folder in SYSTEM_FOLDERS) else named)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without a wanted marker. Importing all 430 files takes each worker 18 s."""
    expression = config.option.markexpr
    if "not system" in expression and collection_path in SYSTEM_FOLDERS:
        return True
    wanted = set(re.sub(r"not \w+", "", expression).split()) & set(MARKERS)
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if wanted and is_test and not wanted & markers_of(collection_path) else None


def pytest_collection() -> None:
    """Disable the garbage collector: it takes a sixth of the time, and the million objects made here all stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests in SYSTEM_FOLDERS with `system`. Refuse a marker that `markers_of` does not see."""
    for item in items:
        if any(folder in item.path.parents for folder in SYSTEM_FOLDERS):
            item.add_marker(pytest.mark.system)
        if unseen := {mark.name for mark in item.iter_markers()} & set(MARKERS) - markers_of(item.path):
            raise pytest.UsageError(f"{item.nodeid}: neither its file nor the conftest.py beside it names {unseen}")


@pytest.fixture(autouse=True)
def no_interpreter_unless_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that starts a Python process, which costs seconds, without the marker `system` or `integration`."""
    if any(request.node.get_closest_marker(marker) for marker in ("system", "integration")):
        return
    start = subprocess.Popen.__init__

    def checked(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
        command = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        if sys.executable in map(str, command):
            pytest.fail("starts a Python process: mark it with pytest.mark.system")
        start(self, args, *more, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", checked)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run async tests on trio, with a clock that jumps to the next deadline when no task can run."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.01)})


SUBJECTS = frozenset({"name", "file", "error", "variable", "path"})
"""Fields of events that are never empty."""


@pytest.fixture(autouse=True)
def declared_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Require the fields that `svc.events` declares for an event in every event that a test causes.

    The fields in SUBJECTS must have values.
    """
    emit = logs.emit

    def checked(event: Event, /, **fields: Any) -> None:
        missing = set(event.fields) - fields.keys()
        missing |= {name for name in SUBJECTS & fields.keys() if fields[name] is None}
        assert not missing, f"{event.name} lacks {sorted(missing)}, which svc.events declares"
        emit(event, **fields)

    monkeypatch.setattr(logs, "emit", checked)


@pytest.fixture(autouse=True, scope="session")
def own_priority() -> None:
    """Keep the priority of the main thread in tests that run the work of the server's worker threads in it.

    A process without privileges cannot raise it again, so all later tests and their processes would be slower.
    """
    threads._thread.nice = True


@pytest.fixture(autouse=True, scope="session")
def one_blas_thread() -> None:
    """Limit array operations to one thread in this process. Halves the processor time of trainings.

    Each worker of pytest has about one core, and threads of OpenBLAS keep their core busy while they wait. Processes
    that a test starts choose their own number.
    """
    import scipy.linalg  # noqa: F401  # loads its own library beside that of numpy

    limit_blas_threads(1)


@pytest.fixture
def objects_in_memory(monkeypatch: pytest.MonkeyPatch) -> ObjectsInMemory:
    """Replace the stores of all object URIs, s3://, gs:// and az://, by one in memory."""
    objects = ObjectsInMemory()
    monkeypatch.setattr("svc.objects.client_of", lambda uri, **_options: objects.client())
    return objects


@pytest.fixture
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """Yield the URI of an empty bucket on a real S3 server, and a file system to fill it."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem(use_listings_cache=False)
    bucket = f"svc-{os.urandom(4).hex()}"
    filesystem.mkdir(bucket)
    yield f"s3://{bucket}", filesystem
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture
def records() -> Iterator[list[dict[str, Any]]]:
    """Return the log records of the test."""
    found: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), lambda line: found.append(json.loads(line)))
    yield found
    logs.configure(Settings())
