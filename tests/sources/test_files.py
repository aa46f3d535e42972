"""Opening the file of a source: verified, bounded, and named in every message."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest

from svc.errors import DataSourceError, SourceTooLarge
from svc.recipe.filter_tree import parse_row_filter
from svc.recipe.paths import parse_location
from svc.recipe.source_options import CsvOptions
from svc.settings import Settings
from svc.sources import files
from svc.sources.base import SourceContext
from svc.sources.files import CappedReader, DataFile, file_errors, in_memory, open_location
from svc.training.data.where import fetch_kept

DATA = b"user_id,item_id\n1,a\n2,b\n"
CAPPED = Settings(http_allow_private=True, max_download_bytes=4096)
CSV = b"user_id,item_id\n1,a\n2,b\n"


@pytest.fixture
def context(tmp_path: Path) -> SourceContext:
    return SourceContext(tmp_path, Settings(), None, frozenset(), "interactions", {}, None)


def test_a_relative_path_starts_at_the_recipes_folder(context: SourceContext, tmp_path: Path) -> None:
    """The opened file has its size. A wrong sha256 is refused."""
    (tmp_path / "a.csv").write_bytes(b"u,i\n")
    digest = hashlib.sha256(b"u,i\n").hexdigest()
    options = CsvOptions(path="a.csv", sha256=digest.upper())
    with open_location(options.location, context, sha256=options.sha256) as found:
        assert (found.file.read(), found.size, found.where) == (b"u,i\n", 4, str(tmp_path / "a.csv"))
    with (
        pytest.raises(DataSourceError, match="is not the expected file"),
        open_location(options.location, context, sha256="0" * 64),
    ):
        raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(), "x does not exist"),
        (IsADirectoryError(), "x is a folder"),
        (PermissionError(), "permission denied"),
        (OSError(5, "Input/output error"), "x cannot be read: Input/output error"),
    ],
)
def test_errors_of_the_file_system_name_the_file(error: OSError, words: str) -> None:
    """Every OSError becomes a DataSourceError."""
    with pytest.raises(DataSourceError, match=words), file_errors("x"):
        raise error


def test_only_regular_files_are_opened(context: SourceContext, tmp_path: Path) -> None:
    """Opening a pipe would block for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("pipe", "not a regular file"),
        ("folder", "is a folder"),
        ("none", "does not exist"),
        ("/dev/zero", "not a regular"),
    ):
        with pytest.raises(DataSourceError, match=words), open_location(parse_location(name), context):
            raise AssertionError("it was opened")


def test_a_file_that_shrinks_while_it_is_read_is_refused(make: Any, tmp_path: Path) -> None:
    """Without this, a table that another program writes anew would be read as a part of itself."""
    path = tmp_path / "a.csv"
    path.write_text("user_id,item_id\n" + "u,i\n" * 10)
    half = len("user_id,item_id\n" + "u,i\n" * 5)
    with pytest.raises(DataSourceError, match=r"a\.csv was cut while it was read"):
        make("csv", path="a.csv", progress=lambda _: os.truncate(path, half)).fetch()
    assert len(make("csv", path="a.csv").fetch()) == 5


def test_bytes_in_memory_are_opened_as_a_file(context: SourceContext) -> None:
    """Small objects of a store are opened this way."""
    with in_memory(lambda: b"abc", "s3://bucket/a") as found:
        assert (found.file.read(), found.size, found.where) == (b"abc", 3, "s3://bucket/a")


def test_a_stream_above_its_cap_is_refused(context: SourceContext, records: list[dict[str, Any]]) -> None:
    """The refusal is logged. Without a cap, everything is read."""
    for cap, reads in ((None, True), (10, True), (9, False)):
        found = DataFile(io.BytesIO(), "a.csv.gz", 4, cap)
        reader = io.BufferedReader(CappedReader(io.BytesIO(b"0123456789"), found, context), buffer_size=4)
        if reads:
            assert reader.read() == b"0123456789"
        else:
            with pytest.raises(SourceTooLarge, match="expands to more than 9 bytes"):
                reader.read()
    assert len(records) == 1


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(web: Any, path: str, **options: Any) -> None:
    """Let the server answer `path` with a Page of tests/sources/conftest.py."""
    pages = type(web).answer.__globals__["Page"]
    web.pages[path] = pages(**options)


def test_a_file_over_https_is_read(make: Any, secure_web: Any) -> None:
    """The authority of the server is trusted, and the sha256 is correct."""
    put(secure_web, "/a.csv", body=DATA)
    frame = make("csv", path=f"{secure_web.url}/a.csv", sha256=sha256(DATA)).fetch()
    assert frame["item_id"].to_list() == ["a", "b"]


def test_a_certificate_for_another_name_is_refused(make: Any, secure_web: Any) -> None:
    """The server's certificate is for localhost, not for 127.0.0.1."""
    put(secure_web, "/a.csv", body=DATA)
    url = secure_web.url.replace("localhost", "127.0.0.1")
    with pytest.raises(DataSourceError, match=r"(?i)certificate"):
        make("csv", path=f"{url}/a.csv", sha256=sha256(DATA)).fetch()


def test_private_addresses_are_refused_by_default(make: Any, web: Any) -> None:
    """Without SVC_HTTP_ALLOW_PRIVATE=1 no request goes to loopback."""
    with pytest.raises(DataSourceError, match="SVC_HTTP_ALLOW_PRIVATE"):
        make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), settings=Settings()).fetch()
    assert web.hits == []


@pytest.mark.parametrize(
    ("purpose", "event"), [("interactions", "csv_source_redirect"), ("metadata", "metadata_source_redirect")]
)
def test_redirects_are_followed_and_logged(make: Any, web: Any, records: list[Any], purpose: str, event: str) -> None:
    """Each redirect is an event with both URLs, without their queries."""
    put(web, "/a.csv", status=302, headers={"Location": "/b.csv?token=hunter2"})
    put(web, "/b.csv", body=DATA)
    make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), purpose=purpose).fetch()
    assert [(r["event"], r["from_"], r["to"], r["status"]) for r in records] == [
        (event, f"{web.url}/a.csv", f"{web.url}/b.csv", 302)
    ]


def test_redirects_are_bounded_and_keep_their_scheme(make: Any, web: Any) -> None:
    """More than five redirects are an error, and so is one to another scheme."""
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
def test_bodies_above_the_cap_are_stopped(
    make: Any, web: Any, records: list[Any], purpose: str, event: str, *, chunked: bool
) -> None:
    """This holds with and without Content-Length. The event has the path and the cap."""
    put(web, "/a.csv", body=b"x" * 2_000_000, chunked=chunked)
    with pytest.raises(SourceTooLarge, match="SVC_MAX_DOWNLOAD_BYTES"):
        make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), settings=CAPPED, purpose=purpose).fetch()
    assert [(r["event"], r["path"], r["cap"]) for r in records] == [(event, f"{web.url}/a.csv", 4096)]


def test_a_compressed_bomb_is_stopped(make: Any, web: Any, records: list[Any]) -> None:
    """The expanded size is capped at eight times the cap of downloads."""
    bomb = gzip.compress(b"user_id,item_id\n" + b"1,a\n" * 200_000)
    assert len(bomb) < 4096
    put(web, "/a.csv.gz", body=bomb)
    with pytest.raises(SourceTooLarge, match="expands to more than 32768 bytes"):
        make("csv", path=f"{web.url}/a.csv.gz", sha256=sha256(bomb), settings=CAPPED).fetch()
    assert records[-1]["event"] == "csv_source_size_exceeded"


@pytest.mark.parametrize("where", [None, {"user_id": {"any": ["u"]}}])
def test_a_parquet_bomb_is_stopped(make: Any, web: Any, tmp_path: Any, where: Any) -> None:
    """A few bytes of run-length encoding expand to a million rows, in row groups that are small alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"user_id": ["u"] * 1_000_000})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", row_group_size=10_000)
    bomb = (tmp_path / "bomb.parquet").read_bytes()
    put(web, "/a.parquet", body=bomb)
    settings = Settings(http_allow_private=True, max_download_bytes=max(len(bomb), 4096))
    source = make("parquet", path=f"{web.url}/a.parquet", sha256=sha256(bomb), settings=settings)
    with pytest.raises(SourceTooLarge, match="expands"):
        source.fetch() if where is None else fetch_kept(source, parse_row_filter(where))


def test_a_probe_of_csv_reads_only_the_beginning(make: Any, web: Any) -> None:
    """The header row of a large file is enough."""
    put(web, "/a.csv", body=DATA + b"3,c\n" * 1_000_000)
    source = make("csv", path=f"{web.url}/a.csv", sha256=sha256(DATA), columns=("user_id",))
    assert any("has the columns user_id" in line for line in source.probe())


@pytest.mark.parametrize(("parts", "names"), [(True, 3), (False, 3), (True, 9000)])
def test_a_probe_of_parquet_reads_only_the_end(make: Any, web: Any, tmp_path: Any, *, parts: bool, names: int) -> None:
    """The footer has the columns. If the server cannot send it alone, the probe says so and checks no columns."""
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


def heard(source: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    with files.record_digests(found.__setitem__):
        source.fetch()
    return found


def test_a_file_is_recorded_with_its_digest(make: Any, tmp_path: Path) -> None:
    """Files are recorded with and without a sha256 in the recipe."""
    (tmp_path / "a.csv").write_bytes(CSV)
    digest = hashlib.sha256(CSV).hexdigest()
    for options in ({}, {"sha256": digest}):
        assert heard(make("csv", path=str(tmp_path / "a.csv"), **options)) == {str(tmp_path / "a.csv"): digest}


def test_each_file_of_a_folder_is_recorded(make: Any, tmp_path: Path) -> None:
    """Each file is recorded under its own path."""
    contents = {f"{n}.csv": CSV + b"%d,c\n" % n for n in range(3)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = heard(make("csv", path=str(tmp_path)))
    assert found == {str(tmp_path / name): hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_without_a_recorder_nothing_is_hashed(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a sha256 in the recipe is not read a second time."""
    (tmp_path / "a.csv").write_bytes(CSV)
    source = make("csv", path=str(tmp_path / "a.csv"))
    assert heard(source)
    assert not files.records_digests()
    monkeypatch.setattr("svc.sources.files._digest", lambda _: pytest.fail("hashed"))
    assert len(source.fetch()) == 2


def test_a_wrong_digest_is_an_error_while_recording(make: Any, tmp_path: Path) -> None:
    """Recording does not change the check of the sha256."""
    (tmp_path / "a.csv").write_bytes(CSV)
    with pytest.raises(DataSourceError, match="is not the expected file"):
        heard(make("csv", path=str(tmp_path / "a.csv"), sha256="0" * 64))
