"""Exports on a fake cluster that runs its tasks in this process, in another order."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from svc.cores import usable_cores
from svc.export import dask
from svc.export.manifest import Manifest
from svc.export.run import export
from svc.settings import Settings
from tests.export.conftest import MODELS, Artifact, Export, manifest_of, rows_of
from tests.serving.artifacts import write_artifact


class Cluster:
    """A fake of the module `distributed`: its client, its futures and its worker.

    `refusal` is the error of connecting, `broken` maps the index of a shard to its error, and `n_threads` is the number
    of the worker's threads.
    """

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.broken: Callable[[int], Any] = {}.get
        self.n_threads = 1
        self.calls: list[Any] = []
        self.loop = object()

    def Client(self, address: str, **options: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append((address, options))
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append("closed")

    def submit(self, function: Callable[[Any], Manifest], task: Any, **options: Any) -> Any:
        self.calls.append(options)
        result: Any = None
        try:
            error = self.broken(task.request.shard.index)
            with threadpool_limits(2, user_api="blas"):
                result = function(task) if error is None else None
        except Exception as raised:
            error = raised
        future = SimpleNamespace(exception=lambda: error, result=lambda: result)
        return _Hashed(**vars(future))

    def as_completed(self, futures: Iterable[Any], *, loop: object) -> list[Any]:
        assert loop is self.loop
        return list(futures)[::-1]

    def get_worker(self) -> Any:
        return SimpleNamespace(state=SimpleNamespace(nthreads=self.n_threads))


class _Hashed(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "distributed", cluster)
    monkeypatch.setattr(dask, "_last", {})
    return cluster


def version_of(artifact: str) -> str:
    return f"sha256:{hashlib.sha256(Path(artifact).read_bytes()).hexdigest()}"


def test_each_shard_is_a_task(
    cluster: Cluster, artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of all tasks are merged, and have the rows of an export without a cluster.

    A worker opens the artifact once, scores on its own cores, and limits BLAS to one thread.
    """
    seen: list[tuple[int | None, set[int]]] = []
    opened: list[Any] = []

    def watched(request: Any, artifact: Any, settings: Settings, progress: Any) -> Manifest:
        blas = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
        seen.append((settings.scoring_threads, blas))
        opened.append(artifact)
        return export(request, artifact, settings, progress)

    monkeypatch.setattr(dask, "export", watched)
    monkeypatch.delenv("SVC_SCORING_THREADS")
    monkeypatch.setenv("SVC_HTTP_TIMEOUT_SECONDS", "7")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.txt").write_text("u5\nu1\nnobody\nu2\nu3\n")
    source = Path(artifact("factors")).name
    more = ("--users", "ids.txt", "--limit", "3")
    assert recommend(source, "--output", "whole.csv", *more) == 0
    assert recommend(source, "--output", "all.csv", *more, "--engine", "dask://h:1", "--shards", "3") == 0
    assert cluster.calls[0] == ("tcp://h:1", {"timeout": 7.0, "set_as_default": False})
    assert cluster.calls[1:] == [*[{"pure": False, "retries": dask.RETRIES}] * 3, "closed"]
    assert seen == [(usable_cores(), {1})] * 3
    assert len(set(map(id, opened))) == 1
    merged = manifest_of(tmp_path / "all.csv")
    rows = [row for part in merged["parts"] for row in rows_of(tmp_path / part["path"])]
    assert sorted(map(str, rows)) == sorted(map(str, rows_of(tmp_path / "whole.csv")))
    assert (merged["rows"], merged["skipped"], len(merged["parts"])) == (12, 1, 3)


@pytest.mark.parametrize(
    ("n_threads", "own", "expected"), [(1, "", 8), (3, "", 2), (8, "", 1), (9, "", 1), (3, "5", 5)]
)
def test_the_threads_of_a_worker_share_its_cores(
    cluster: Cluster,
    artifact: Artifact,
    recommend: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    n_threads: int,
    own: str,
    expected: int,
) -> None:
    """Each thread has at least one scoring thread. SVC_SCORING_THREADS of the worker overrides the share."""
    seen: list[int | None] = []

    def watched(request: Any, artifact: Any, settings: Settings, progress: Any) -> Manifest:
        seen.append(settings.scoring_threads)
        return export(request, artifact, settings, progress)

    monkeypatch.setattr(dask, "export", watched)
    monkeypatch.setattr(dask, "usable_cores", lambda: 8)
    monkeypatch.setenv("SVC_SCORING_THREADS", own)
    cluster.n_threads = n_threads
    more = ("--engine", "dask://h:1", "--shards", "1")
    assert recommend(artifact("popularity"), "--output", tmp_path / "all.csv", *more) == 0
    assert seen == [expected]


def test_a_failed_shard_ends_the_export(
    cluster: Cluster, artifact: Artifact, recommend: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of svc keeps its exit code. Any other error ends with 5 and names the shard. Nothing is merged."""
    out, source = tmp_path / "all.csv", artifact("popularity")
    arguments = (source, "--output", out, "--engine", "tls://h:1", "--shards", "2")
    cluster.broken = lambda _index: write_artifact(Path(source), MODELS["factors"]()) and None
    assert recommend(*arguments) == 5
    assert f"{source} is now {version_of(source)}, but the export began with" in capsys.readouterr().err
    assert cluster.calls[0][0] == "tls://h:1"
    cluster.broken = lambda index: RuntimeError("gone") if index == 1 else None
    assert recommend(*arguments) == 5
    assert "shard 1/2 failed on the cluster: RuntimeError: gone" in capsys.readouterr().err
    assert not Path(f"{out}.manifest.json").exists()


def test_workers_read_a_replaced_artifact_again(
    cluster: Cluster, artifact: Artifact, recommend: Export, tmp_path: Path
) -> None:
    """A worker outlives an export, and a later model may have the same path."""
    source, out = artifact("popularity"), tmp_path / "all.csv"
    for model in (MODELS["popularity"], MODELS["factors"]):
        write_artifact(Path(source), model())
        assert recommend(source, "--output", out, "--engine", "dask://h:1", "--shards", "2") == 0
        assert manifest_of(out)["model_version"] == version_of(source)


@pytest.mark.parametrize(
    ("engine", "refusal", "code", "words"),
    [
        ("spark://h:1", None, 2, "'spark://h:1' is not an engine"),
        ("dask://h", None, 2, "'dask://h' is not an engine"),
        ("tls://h:1", TypeError("no context"), 8, "DASK_DISTRIBUTED__COMM__TLS__*: no context"),
        ("dask://h:1", OSError("refused"), 8, "no Dask scheduler answers at h:1: refused"),
        ("dask://h:1", TimeoutError("late"), 8, "no Dask scheduler answers at h:1: late"),
    ],
)
def test_an_unreachable_cluster_is_an_error(
    cluster: Cluster,
    artifact: Artifact,
    recommend: Export,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    engine: str,
    refusal: Exception | None,
    code: int,
    words: str,
) -> None:
    """The message has the invalid engine, the unreachable address or the variables of the certificates."""
    cluster.refusal = refusal
    assert recommend(artifact("popularity"), "--output", tmp_path / "x.csv", "--engine", engine) == code
    assert words in capsys.readouterr().err


def test_without_dask_the_extra_is_named(
    artifact: Artifact,
    recommend: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without the package `distributed`, the command ends with 8."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert recommend(artifact("popularity"), "--output", tmp_path / "x.csv", "--engine", "dask://h:1") == 8
    assert "needs the extra dask" in capsys.readouterr().err
