"""Files in object stores, each on a real server of its protocol."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

import pytest

from svc.errors import DataSourceError
from svc.settings import Settings
from tests.artifact.conftest import (  # noqa: F401  # fixtures
    azure_endpoint,
    azure_place,
    gcs_endpoint,
    gcs_place,
    s3_endpoint,
    s3_place,
)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
DATA = b"user_id,item_id\n1,a\n2,b\n"
Put = Callable[[str, bytes], str]


@pytest.fixture(params=["s3", "gcs", "azure"])
def put(request: pytest.FixtureRequest) -> Put:
    """Return a function that writes an object and returns its URI."""
    place = request.getfixturevalue(f"{request.param}_place")

    def write(name: str, content: bytes) -> str:
        place.write(name, content)
        return str(place.uri(name))

    return write


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
    for missing in (path.replace("a.csv", "none.csv"), path.replace("://", "://absent-")):
        with pytest.raises(DataSourceError, match=r"does not exist|cannot be read") as caught:
            make("csv", path=missing, settings=Settings(http_timeout_s=20)).fetch()
        assert missing in caught.value.message


def test_the_error_of_an_unreachable_store_hides_credentials(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a refused connection does not contain the secret key."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(DataSourceError, match="cannot be read") as caught:
        make("csv", path="s3://svc-data/a.csv").fetch()
    assert "hunter2" not in caught.value.message
    s3fs.S3FileSystem.clear_instance_cache()
