"""Exports on a Dask cluster.

Each shard is one task, and the worker that runs the task writes the shard. The parts are merged at the end.

A worker reads and verifies the artifact itself, with the keys of its own environment, once for all of its shards. It
signs nothing, so public keys are enough. A shard runs twice if its worker dies or if Dask wrongly takes it for dead.
Both runs write the same bytes, and each part is published atomically.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from svc import events, install_command, logs
from svc.artifact.keys import SigningKeys, load_signing_keys
from svc.artifact.store import scheme_of
from svc.cores import one_blas_thread, usable_cores
from svc.env_file import environment
from svc.errors import ConfigError, ExportIncomplete, SvcError, UsageError
from svc.export.manifest import Manifest, MergedManifest, merge
from svc.export.request import EVERYBODY, ExportRequest, Shard
from svc.export.run import LogDisplay, OpenedArtifact, export, open_artifact
from svc.progress import Progress
from svc.settings import Settings

SCHEMES: Final = {"dask://": "tcp://", "tls://": "tls://"}
"""Schemes of `--engine`, with Dask's names for them."""
DEFAULT_SHARDS: Final = 16
RETRIES: Final = 3
"""Number of times that the cluster retries a failed shard. Dask counts workers that die separately."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One shard, as the client sends it to a worker. `model_version` is the artifact that the client verified."""

    artifact: str
    model_version: str
    request: ExportRequest


def export_on_dask(
    request: ExportRequest,
    opened: OpenedArtifact,
    engine: str,
    shards: int,
    settings: Settings,
    *,
    progress: Progress | None = None,
) -> MergedManifest:
    """Write an export in `shards` parts on the workers of a cluster, and merge the parts.

    `opened` is the artifact that the client has verified, and workers refuse another version. `engine` is the
    scheduler, `dask://host:port` or `tls://host:port`.

    Raises UsageError for another address. Raises ConfigError without the extra `dask`, without certificates for
    `tls://`, and if no scheduler answers. If a shard still fails after RETRIES, raises its error if this is one of
    svc's, else ExportIncomplete. Raises the errors of `merge` too.
    """
    whole = replace(
        request,
        output=_absolute(request.output),
        users=request.users if request.users == EVERYBODY else _absolute(request.users),
        items=request.items if request.items == EVERYBODY else _absolute(request.items),
    )
    artifact = _absolute(opened.resolved)
    tasks = [
        _Task(artifact, opened.model_version, replace(whole, shard=Shard(index, shards))) for index in range(shards)
    ]
    logs.emit(events.EXPORT_STARTED, output=whole.output, model_version=opened.model_version)
    with _client(engine, settings) as client:
        _run(client, tasks, progress or Progress(LogDisplay()))
    return merge(whole.output, shards, settings)


def _absolute(address: str) -> str:
    """Return `address`, made absolute if it is a local path, because workers have other working folders."""
    return str(Path(address).absolute()) if not scheme_of(address) else address


@contextmanager
def _client(engine: str, settings: Settings) -> Iterator[Any]:
    """Yield a connection to the scheduler. Raises UsageError and ConfigError, as `export_on_dask`.

    Closing it cancels the tasks that have not run. The certificates of `tls://` come from Dask's own configuration.
    """
    try:
        import distributed
    except ImportError:
        raise ConfigError(f"--engine: dask:// needs the extra dask: {install_command('dask')}") from None
    scheme = next((prefix for prefix in SCHEMES if engine.startswith(prefix)), None)
    address = engine.removeprefix(scheme or "")
    if scheme is None or not address.rpartition(":")[2].isdigit():
        raise UsageError(
            f"--engine: {engine!r} is not an engine; give the address of a scheduler as dask://HOST:PORT or tls://HOST:PORT"
        )
    connect: Any = distributed.Client  # has no type information
    try:
        client = connect(f"{SCHEMES[scheme]}{address}", timeout=settings.http_timeout_s, set_as_default=False)
    except TypeError as error:  # Dask's error for an encrypted address without certificates
        raise ConfigError(f"--engine: {scheme} needs certificates, DASK_DISTRIBUTED__COMM__TLS__*: {error}") from None
    except (OSError, TimeoutError) as error:
        raise ConfigError(f"--engine: no Dask scheduler answers at {address}: {error}") from None
    with client:
        yield client


def _run(client: Any, tasks: list[_Task], progress: Progress) -> None:
    """Run every task, in any order. If a task still fails after RETRIES, raises the error from `_as_svc_error`."""
    import distributed

    as_completed: Any = distributed.as_completed
    progress.phase("recommending")
    # Impure, because Dask takes equal tasks for one, and would return the results of an earlier export.
    futures = {client.submit(run_task, task, pure=False, retries=RETRIES): task for task in tasks}
    for done, future in enumerate(as_completed(futures, loop=client.loop), start=1):
        error = future.exception()
        if error is not None:
            raise _as_svc_error(error, futures[future])
        progress.advance(done, len(tasks), rows=future.result().rows)


def _as_svc_error(error: BaseException, task: _Task) -> SvcError:
    """Return svc's own errors unchanged, and all other errors as an ExportIncomplete that names the shard."""
    if isinstance(error, SvcError):
        return error
    shard = task.request.shard
    assert shard is not None, "every task of a cluster is a shard"
    return ExportIncomplete(f"shard {shard.index}/{shard.count} failed on the cluster: {type(error).__name__}: {error}")


def run_task(task: _Task) -> Manifest:
    """Write one shard, in a worker. Raises ExportIncomplete if the artifact was replaced since the client read it."""
    logs.configure_for_library()
    settings = _worker_settings()
    opened = _open_once(task, settings)
    with one_blas_thread():  # for each of the threads that export starts
        return export(task.request, opened, settings, Progress())  # the client shows the progress of all shards


def _worker_settings() -> Settings:
    """Return the worker's settings. Unless SVC_SCORING_THREADS is set, its Dask threads share the cores evenly."""
    from distributed import get_worker

    settings = Settings.from_env(environment())
    if settings.scoring_threads is not None:
        return settings

    threads: Any = get_worker().state.nthreads
    return replace(settings, scoring_threads=max(1, usable_cores() // threads))


_lock = threading.Lock()
_last: dict[tuple[str, str], OpenedArtifact] = {}
"""The artifact that this worker process used last, by its address and version."""


def _open_once(task: _Task, settings: Settings) -> OpenedArtifact:
    """Return the verified artifact of the task. It is read only if it is not the last artifact that this process used.

    One thread of the worker reads and verifies it while the others wait. Raises ExportIncomplete if the artifact has
    another version than the task names, ConfigError if no keys are set, and ArtifactError if the artifact cannot be
    used.
    """
    wanted = (task.artifact, task.model_version)
    # Otherwise all threads of a worker would read the same artifact at its first shards.
    with _lock:
        if wanted not in _last:
            _last.clear()  # before the next artifact is read, so that memory holds only one
            opened = open_artifact(task.artifact, _keys(settings), settings)
            if opened.model_version != task.model_version:
                raise ExportIncomplete(
                    f"{task.artifact} is now {opened.model_version}, but the export began with {task.model_version}"
                )
            _last[wanted] = opened
        return _last[wanted]


def _keys(settings: Settings) -> SigningKeys:
    keys = load_signing_keys(settings)
    if not keys:
        raise ConfigError(
            "no key is set in the environment of the Dask workers, which verify too: set SVC_VERIFY_KEYS there, or "
            "SVC_SIGNING_KEYS for artifacts that are signed with HMAC"
        )
    return keys
