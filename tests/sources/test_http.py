"""Files over http(s): caps, redirects, trust and faults, over real connections."""

from __future__ import annotations

import gzip
import hashlib
from typing import Any

import pytest

from svc.errors import DataSourceError, SourceTooLarge
from svc.settings import Settings

DATA = b"user_id,item_id\n1,a\n2,b\n"
CAPPED = Settings(http_allow_private=True, max_download_bytes=4096)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(web: Any, path: str, **options: Any) -> None:
    """Let the server answer `path` with a page as tests/sources/conftest.py defines it."""
    pages = type(web).answer.__globals__["Page"]
    web.pages[path] = pages(**options)


def test_tls_with_a_trusted_authority(make: Any, secure_web: Any) -> None:
    """A file over https whose digest is right is read."""
    put(secure_web, "/a.csv", body=DATA)
    frame = make("csv", path=f"{secure_web.url}/a.csv", sha256=sha256(DATA)).fetch()
    assert frame["item_id"].to_list() == ["a", "b"]


def test_a_certificate_for_another_name_is_refused(make: Any, secure_web: Any) -> None:
    """The server's certificate names localhost, not 127.0.0.1."""
    put(secure_web, "/a.csv", body=DATA)
    url = secure_web.url.replace("localhost", "127.0.0.1")
    with pytest.raises(DataSourceError, match=r"(?i)certificate"):
        make("csv", path=f"{url}/a.csv", sha256=sha256(DATA)).fetch()


def test_private_addresses_are_refused_by_default(make: Any, web: Any) -> None:
    """Nothing is asked of loopback unless SVC_HTTP_ALLOW_PRIVATE=1."""
    with pytest.raises(DataSourceError, match="SVC_HTTP_ALLOW_PRIVATE"):
        make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), settings=Settings()).fetch()
    assert web.hits == []


@pytest.mark.parametrize(
    ("purpose", "event"), [("interactions", "csv_source_redirect"), ("metadata", "metadata_source_redirect")]
)
def test_redirects_are_followed_and_logged(make: Any, web: Any, records: list[Any], purpose: str, event: str) -> None:
    """Each hop is an event with both addresses, without their queries."""
    put(web, "/a.csv", status=302, headers={"Location": "/b.csv?token=hunter2"})
    put(web, "/b.csv", body=DATA)
    make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), purpose=purpose).fetch()
    assert [(r["event"], r["from_"], r["to"], r["status"]) for r in records] == [
        (event, f"{web.url}/a.csv", f"{web.url}/b.csv", 302)
    ]


def test_redirects_are_bounded_and_keep_their_scheme(make: Any, web: Any) -> None:
    """More than five hops, or a hop to another scheme, ends the fetch."""
    put(web, "/loop", status=302, headers={"Location": "/loop"})
    with pytest.raises(DataSourceError, match="more than 5"):
        make("csv", path=f"{web.url}/loop", sha256=sha256(DATA)).fetch()
    put(web, "/file", status=302, headers={"Location": "file:///etc/passwd"})
    with pytest.raises(DataSourceError, match="another scheme"):
        make("csv", path=f"{web.url}/file", sha256=sha256(DATA)).fetch()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("purpose", "event"), [("features", "csv_source_size_exceeded"), ("metadata", "metadata_source_size_exceeded")]
)
def test_large_bodies_are_stopped(
    make: Any, web: Any, records: list[Any], purpose: str, event: str, *, chunked: bool
) -> None:
    """With and without a told length; the event says where and how much."""
    put(web, "/a.csv", body=b"x" * 2_000_000, chunked=chunked)
    with pytest.raises(SourceTooLarge, match="SVC_MAX_DOWNLOAD_BYTES"):
        make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), settings=CAPPED, purpose=purpose).fetch()
    assert [(r["event"], r["path"], r["cap"]) for r in records] == [(event, f"{web.url}/a.csv", 4096)]


def test_a_compressed_bomb_is_stopped(make: Any, web: Any, records: list[Any]) -> None:
    """What a file expands to is capped at eight times its own cap."""
    bomb = gzip.compress(b"user_id,item_id\n" + b"1,a\n" * 200_000)
    assert len(bomb) < 4096
    put(web, "/a.csv.gz", body=bomb)
    with pytest.raises(SourceTooLarge, match="expands to more than 32768 bytes"):
        make("csv", path=f"{web.url}/a.csv.gz", sha256=sha256(bomb), settings=CAPPED).fetch()
    assert records[-1]["event"] == "csv_source_size_exceeded"


def test_a_parquet_bomb_is_stopped(make: Any, web: Any, tmp_path: Any) -> None:
    """A few bytes of run-length encoding are a million rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"user_id": ["u"] * 1_000_000}), tmp_path / "bomb.parquet", compression="zstd")
    bomb = (tmp_path / "bomb.parquet").read_bytes()
    put(web, "/a.parquet", body=bomb)
    settings = Settings(http_allow_private=True, max_download_bytes=max(len(bomb), 4096))
    with pytest.raises(SourceTooLarge, match="expands"):
        make("parquet", path=f"{web.url}/a.parquet", sha256=sha256(bomb), settings=settings).fetch()


def test_probe_reads_the_beginning_only(make: Any, web: Any) -> None:
    """The header row of a large file, without the rest."""
    put(web, "/a.csv", body=DATA + b"3,c\n" * 1_000_000)
    source = make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), columns=("user_id",))
    assert any("has the columns user_id" in line for line in source.probe())


@pytest.mark.parametrize(("parts", "names"), [(True, 3), (False, 3), (True, 9000)])
def test_probe_reads_a_parquet_files_end_only(make: Any, web: Any, tmp_path: Any, *, parts: bool, names: int) -> None:
    """The columns are found in the footer; where it cannot be had alone, that is said, and what is missing is not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    noise = pa.array([hashlib.sha256(b"%d" % k).hexdigest() for k in range(10_000)])
    columns = {"user_id": noise} | {f"c{k}": pa.nulls(10_000) for k in range(names)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    body = (tmp_path / "a.parquet").read_bytes()
    put(web, "/a.parquet", body=body, parts=parts)
    source = make("parquet", path=f"{web.url}/a.parquet", sha256=sha256(body), columns=("user_id",))
    lines = source.probe()
    if parts and names == 3:
        assert any("has the columns user_id" in line for line in lines)
        assert web.sent < len(body)
        with pytest.raises(DataSourceError, match="has no column absent"):
            make("parquet", path=f"{web.url}/a.parquet", sha256=sha256(body), columns=("absent",)).probe()
    else:
        assert lines == [f"{web.url}/a.parquet: answers; columns and sha256 are checked when it is read"]
    assert len(source.fetch()) == 10_000
