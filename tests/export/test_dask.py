"""Exports on a real Dask cluster: a scheduler and two workers in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from svc.artifact import layout
from svc.artifact.keys import parse_signing_keys, public_entry
from svc.export import dask
from svc.model.codec import encode
from svc.progress import Progress, State
from tests.export.conftest import manifest_of, rows_of
from tests.forked import program
from tests.serving.artifacts import SIGNING_KEYS, factor_model, header, write_artifact

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
N_SHARDS = 24


def recommend(*arguments: object, **environment: str) -> tuple[int, str]:
    """Run `svc recommend` in its own process, because Dask's client leaves threads. Returns exit code and log."""
    command = [program(), "recommend", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@contextmanager
def process(*arguments: str, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments], env={**os.environ, **environment}, stdout=out, stderr=out
        )
        try:
            yield started
        finally:
            started.terminate()
            started.wait()


@contextmanager
def running_scheduler(folder: Path, *more: str, **environment: str) -> Iterator[str]:
    """Yield the address of a scheduler without workers, in the form of --engine."""
    file = folder / "scheduler.json"
    options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file), *more)
    with process("scheduler", *options, log=folder / "scheduler.log", **environment):
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_text().strip():
            assert time.monotonic() < deadline, (folder / "scheduler.log").read_text()
            time.sleep(0.05)
        yield json.loads(file.read_text())["address"].replace("tcp://", "dask://")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    with running_scheduler(tmp_path) as address:
        yield address


@contextmanager
def workers(engine: str, folder: Path, count: int = 2, **environment: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    address = engine.replace("dask://", "tcp://")
    options = ("--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard")
    started = []
    with ExitStack() as stack:
        for number in range(count):
            options_here = (*options, "--local-directory", str(folder / f"worker-{number}"), address)
            log = folder / f"worker-{number}.log"
            started.append(stack.enter_context(process("worker", *options_here, log=log, **environment)))
        yield started


def test_an_export_survives_a_killed_worker(scheduler: str, tmp_path: Path) -> None:
    """One of two workers is killed halfway.

    The result has each row once, with the scores of a run without a cluster.
    """
    source, out, whole = tmp_path / "a.svc", tmp_path / "out/all.jsonl", tmp_path / "whole.jsonl"
    write_artifact(source, factor_model(8_000, 400, 16))
    assert recommend(source, "--output", whole, "--limit", "50")[0] == 0
    command = [program(), "recommend", str(source), "--output", str(out), "--limit", "50"]
    command += ["--engine", scheduler, "--shards", str(N_SHARDS)]
    with workers(scheduler, tmp_path, SVC_SCORING_THREADS="1") as (first, second):
        log = (tmp_path / "export.log").open("w+")
        export = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + 120
        while not list(out.parent.glob("*.manifest.json")):
            assert time.monotonic() < deadline
            assert export.poll() is None, (tmp_path / "export.log").read_text()
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        assert len(list(out.parent.glob("*-of-*.manifest.json"))) < N_SHARDS
        assert export.wait(150) == 0, (tmp_path / "export.log").read_text()
        log.close()
        assert second.poll() is None
    merged = manifest_of(out)
    parts = [out.parent / part["path"] for part in merged["parts"]]
    assert len(parts) == N_SHARDS
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in parts] == [p["sha256"] for p in merged["parts"]]
    key = lambda row: (row["user_id"], row["rank"])  # noqa: E731
    assert sorted((row for path in parts for row in rows_of(path)), key=key) == sorted(rows_of(whole), key=key)
    assert merged["rows"] == 8_000 * 50


def test_workers_verify_with_their_own_keys(scheduler: str, tmp_path: Path) -> None:
    """The command exits with 5 if a worker lacks the key that signed the artifact, and with 8 if it has no keys."""
    source, out = tmp_path / "a.svc", tmp_path / "all.csv"
    write_artifact(source, factor_model(50, 40, 4))
    arguments = (source, "--output", out, "--engine", scheduler, "--shards", "2")
    with workers(scheduler, tmp_path, 1, SVC_SIGNING_KEYS="other:" + "11" * 32):
        code, log = recommend(*arguments)
        assert (code, "unknown kid" in log) == (5, True)
    with workers(scheduler, tmp_path, 1, SVC_SIGNING_KEYS=""):
        code, log = recommend(*arguments)
        assert (code, "Dask workers" in log) == (8, True)
        assert "SVC_VERIFY_KEYS" in log
    assert not Path(f"{out}.manifest.json").exists()


def test_workers_need_no_signing_key(scheduler: str, tmp_path: Path) -> None:
    """A worker can verify with public keys or with a file of keys."""
    source = tmp_path / "a.svc"
    kid, key = parse_signing_keys(SIGNING_KEYS).active
    content = encode(factor_model(50, 40, 4))
    with source.open("wb") as out:
        layout.write(out, kid=kid, key=key, header=header(), payload=content, signature="ed25519")
    file = tmp_path / "keys.txt"
    file.write_text(f"{SIGNING_KEYS}\n")
    file.chmod(0o600)
    for number, own in enumerate(({"SVC_VERIFY_KEYS": public_entry(kid, key)}, {"SVC_SIGNING_KEYS_FILE": str(file)})):
        with workers(scheduler, tmp_path, 1, SVC_SIGNING_KEYS="", **own):
            out_file = tmp_path / f"all{number}.csv"
            code, log = recommend(source, "--output", out_file, "--engine", scheduler, "--shards", "2")
            assert code == 0, log


def certificates(folder: Path) -> dict[str, str]:
    """Return the variables by which a cluster uses a new self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*private))
    start = "DASK_DISTRIBUTED__COMM__"
    variables = {f"{start}REQUIRE_ENCRYPTION": "true", f"{start}TLS__CA_FILE": str(folder / "cert.pem")}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        variables[f"{start}TLS__{role}__CERT"] = str(folder / "cert.pem")
        variables[f"{start}TLS__{role}__KEY"] = str(folder / "key.pem")
    return variables


def test_a_cluster_can_be_encrypted(tmp_path: Path) -> None:
    """The certificates come from Dask's own variables. Without them the error names these variables."""
    source, out = tmp_path / "a.svc", tmp_path / "all.csv"
    write_artifact(source, factor_model(50, 40, 4))
    variables = certificates(tmp_path)
    with running_scheduler(tmp_path, "--protocol", "tls", **variables) as engine:
        assert engine.startswith("tls://")
        with workers(engine, tmp_path, 1, **variables):
            code, log = recommend(source, "--output", out, "--engine", engine, "--shards", "2", **variables)
            assert code == 0, log
        code, log = recommend(source, "--output", out, "--engine", engine, SVC_HTTP_TIMEOUT_SECONDS="5")
        assert (code, "certificates" in log) == (8, True), log


def test_an_unreachable_scheduler_ends_with_8_and_an_invalid_engine_with_2(tmp_path: Path) -> None:
    """A closed port of a scheduler ends with 8. An unknown scheme or an address without a port ends with 2."""
    write_artifact(tmp_path / "a.svc", factor_model(50, 40, 4))
    for engine, code in (("dask://127.0.0.1:9", 8), ("spark://h:1", 2), ("dask://h", 2), ("tls://127.0.0.1:9", 8)):
        arguments = (tmp_path / "a.svc", "--output", tmp_path / "x.csv", "--engine", engine)
        assert recommend(*arguments, SVC_HTTP_TIMEOUT_SECONDS="1")[0] == code


def test_progress_counts_the_finished_shards_and_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are retried by the cluster, and none is taken from another run of the same task."""
    monkeypatch.setattr("distributed.as_completed", lambda futures, loop: list(futures))
    shown: list[State] = []

    class Client:
        loop = None

        def submit(self, function: object, task: int, *, pure: bool, retries: int) -> Future[SimpleNamespace]:
            assert (function, pure, retries) == (dask.run_task, False, 3)
            future: Future[SimpleNamespace] = Future()
            future.set_result(SimpleNamespace(rows=task))
            return future

    display = SimpleNamespace(show=shown.append)
    dask._run(Client(), [30, 12], Progress(display))  # type: ignore[list-item]
    assert [(state.phase, state.done, state.total, state.rows) for state in shown] == [
        ("recommending", 0, None, 0),
        ("recommending", 1, 2, 30),
        ("recommending", 2, 2, 42),
    ]
