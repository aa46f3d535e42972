"""One conformance suite for every kind of storage, through `open_store`."""

from __future__ import annotations

import hashlib
import io
import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from svc.artifact import layout
from svc.artifact.keys import development_keys
from svc.artifact.layout import Written
from svc.artifact.store import HttpFolder, Published, Store, open_store, read_verified
from svc.errors import ArtifactReadError, ArtifactWriteError, PayloadTooLarge, UsageError
from svc.settings import Settings
from tests.artifact.conftest import web_server

CAP = 1 << 20
NAME = "movies.svc"


def publish(store: Store, content: bytes, versioning: str = "always_overwrite") -> Published:
    def write(out: BinaryIO) -> Written:
        out.write(content)
        return Written(sha(content), len(content), 0)

    return store.publish(write, versioning)  # type: ignore[arg-type]


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def store(place) -> Store:  # type: ignore[no-untyped-def]
    return open_store(place.uri(NAME), place.settings, label="movies")


def test_a_published_artifact_is_read_back(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """Bytes, sha256 and location are the same."""
    uri = place.uri(NAME)
    assert publish(store, b"SVCMODEL one") == Published(uri, None, Written(sha(b"SVCMODEL one"), 12, 0))
    blob = store.read(CAP)
    assert (bytes(blob.view), blob.sha256, blob.resolved) == (b"SVCMODEL one", sha(b"SVCMODEL one"), uri)


def test_the_bytes_of_a_read_are_private_and_read_only(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """Overwriting the object after reading does not change them."""
    publish(store, b"SVCMODEL" + bytes(10_000))
    blob = store.read(CAP)
    place.write(NAME, b"x" * 10_008)
    assert bytes(blob.view[:9]) == b"SVCMODEL\0"
    assert blob.view.readonly
    assert isinstance(blob.view.obj, mmap.mmap)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # the Azure client, about itself
def test_large_artifacts_are_read_whole(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """An artifact that is fetched in several pieces arrives in order."""
    content = np.arange(9 << 19, dtype=">u4").tobytes()
    publish(store, content)
    assert store.read(len(content)).sha256 == sha(content)


def test_append_sha_writes_the_artifact_and_a_pointer(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """The artifact's name has its sha, the pointer is one line with this name, and reading follows it."""
    published = publish(store, b"SVCMODEL one", "append_sha")
    target = f"movies.{sha(b'SVCMODEL one')[:8]}.svc"
    assert (published.artifact, published.pointer) == (place.uri(target), place.uri(NAME))
    assert place.content(NAME) == f"{target}\n".encode()
    assert store.read(CAP).resolved == place.uri(target)
    publish(store, b"SVCMODEL two", "append_sha")
    assert bytes(store.read(CAP).view) == b"SVCMODEL two"
    assert place.content(target) == b"SVCMODEL one"


def test_versioning_may_change(store: Store) -> None:
    """A pointer may replace an artifact, and an artifact a pointer."""
    for versioning, content in (("always_overwrite", b"SVCMODEL 1"), ("append_sha", b"SVCMODEL 2")) * 2:
        publish(store, content, versioning)
        assert bytes(store.read(CAP).view) == content


@pytest.mark.parametrize(
    "text",
    [
        "../movies.0123abcd.svc",
        "/etc/passwd",
        "other.0123abcd.svc",
        "movies.0123ABCD.svc",
        "movies.0123abcd.svc\n\n",
        "movies.svc",
    ],
)
def test_a_pointer_leads_only_to_its_own_versions(store: Store, place, text: str) -> None:  # type: ignore[no-untyped-def]
    """Any text other than `<stem>.<8 hex>.svc` is no pointer. It is read as an artifact, which is then invalid."""
    place.write(NAME, text.encode())
    blob = store.read(CAP)
    assert (bytes(blob.view), blob.resolved) == (text.encode(), place.uri(NAME))


def test_a_pointer_to_a_missing_version_is_an_error(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """The message names the pointer and its target."""
    place.write(NAME, b"movies.0123abcd.svc\n")
    with pytest.raises(ArtifactReadError, match=r"movies\.svc points to .*movies\.0123abcd\.svc does not exist"):
        store.read(CAP)


def test_a_pointer_to_a_pointer_is_not_followed(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """Only one pointer is followed."""
    place.write(NAME, b"movies.0123abcd.svc\n")
    place.write("movies.0123abcd.svc", b"movies.89abcdef.svc\n")
    assert bytes(store.read(CAP).view) == b"movies.89abcdef.svc\n"


def test_a_missing_artifact_is_an_error_that_names_it(store: Store) -> None:
    """Reading it raises ArtifactReadError. Asking for its marker raises FileNotFoundError."""
    with pytest.raises(ArtifactReadError, match=r"movies\.svc does not exist"):
        store.read(CAP)
    with pytest.raises(FileNotFoundError):
        store.marker()


def test_a_file_above_the_cap_is_refused(store: Store) -> None:
    """A file of exactly the cap is read. One byte more is refused."""
    publish(store, b"x" * 100)
    assert len(store.read(100).view) == 100
    with pytest.raises(PayloadTooLarge, match=r"^payload exceeds max bytes.*SVC_MAX_ARTIFACT_BYTES"):
        store.read(99)


def test_markers_change_with_every_publication(store: Store) -> None:
    """Publishing the same bytes again changes the marker. Without a publication it stays."""
    publish(store, b"same")
    first = store.marker()
    assert store.marker() == first
    publish(store, b"same")
    assert store.marker() != first


def test_a_write_by_another_program_is_seen_at_once(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """Neither marker nor content come from a cache."""
    publish(store, b"one")
    first = store.marker()
    place.write(NAME, b"two")
    assert store.marker() != first
    assert bytes(store.read(CAP).view) == b"two"


def test_the_marker_of_a_pointer_changes_with_a_new_version(store: Store) -> None:
    """The marker changes although the file of the earlier version stays."""
    publish(store, b"SVCMODEL one", "append_sha")
    first = store.marker()
    publish(store, b"SVCMODEL two", "append_sha")
    assert store.marker() != first


def test_a_sha256_sidecar_is_detected(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """A `.sha256` object beside the artifact is detected. svc itself writes none."""
    publish(store, b"x")
    assert not store.sidecar_exists()
    place.write(f"{NAME}.sha256", b"whatever")
    assert store.sidecar_exists()


def test_an_empty_object_is_read(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """An empty object is no error of the store."""
    place.write(NAME, b"")
    assert len(store.read(CAP).view) == 0


def test_a_failed_write_leaves_the_old_artifact(store: Store, place) -> None:  # type: ignore[no-untyped-def]
    """If the writer raises halfway, the old artifact stays whole."""
    publish(store, b"old")

    def fails(out: BinaryIO) -> Written:
        out.write(b"half of the new")
        raise ArtifactWriteError("gave up")

    with pytest.raises(ArtifactWriteError, match="gave up"):
        store.publish(fails, "always_overwrite")
    assert place.content(NAME) == b"old"


def test_a_signed_artifact_is_verified_in_every_storage(place) -> None:  # type: ignore[no-untyped-def]
    """`read_verified` works on every kind of storage."""
    kid, key = development_keys().active
    out = io.BytesIO()
    layout.write(out, kid=kid, key=key, header={"recipe_name": "movies"}, payload=[b"payload"])
    place.write(NAME, out.getvalue())
    blob, parsed = read_verified(place.uri(NAME), development_keys(), place.settings)
    assert blob.sha256 == sha(out.getvalue())
    assert (parsed.header["recipe_name"], bytes(parsed.payload)) == ("movies", b"payload")


def test_file_uris_are_paths(tmp_path: Path) -> None:
    """A file:// URI with escapes and the path name the same artifact."""
    publish(open_store(str(tmp_path / "a b.svc"), Settings()), b"x")
    assert bytes(open_store(f"file://{tmp_path}/a%20b.svc", Settings()).read(CAP).view) == b"x"


@pytest.mark.parametrize(
    "uri",
    ["ftp://host/x.svc", "memory://x.svc", "github://u:r@/x.svc", "s3://bucket/", "s3://b/x.svc::file:///etc/passwd"],
)
def test_other_schemes_are_refused(uri: str) -> None:
    """A URI needs a scheme that svc supports, and an object name. Chained URIs of fsspec are refused."""
    with pytest.raises(UsageError, match="not a place for artifacts"):
        open_store(uri, Settings())


SETTINGS = Settings(http_allow_private=True, http_timeout_s=5.0)
Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def folder() -> Iterator[Callable[[Answer], HttpFolder]]:
    """Return a function from an answer to the folder of a server that always gives this answer."""
    with ExitStack() as stack:
        yield lambda answer: HttpFolder(f"{stack.enter_context(web_server(answer))}/m/a.svc", SETTINGS, "a")


def answering(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return answer


def test_the_marker_is_the_etag_or_the_time(folder: Callable[[Answer], HttpFolder]) -> None:
    """A server without ETag and Last-Modified is refused, because no change could be noticed."""
    tagged = folder(answering(200, b"x", ETag='"1"', Last_Modified="Mon, 01 Jan 2026 00:00:00 GMT"))
    assert tagged.marker("a.svc") == '"1":1'
    timed = folder(answering(200, b"xy", Last_Modified="Mon, 01 Jan 2026 00:00:00 GMT"))
    assert timed.marker("a.svc") == "Mon, 01 Jan 2026 00:00:00 GMT:2"
    with pytest.raises(ArtifactReadError, match="neither ETag nor Last-Modified"):
        folder(answering(200, b"x")).marker("a.svc")


def test_unreadable_objects_are_errors(folder: Callable[[Answer], HttpFolder]) -> None:
    """Missing, refused, too large and compressed objects each have their error."""
    for status in (404, 410):
        with pytest.raises(FileNotFoundError):
            folder(answering(status)).read("a.svc", 100)
    with pytest.raises(ArtifactReadError, match="403"):
        folder(answering(403)).read("a.svc", 100)
    with pytest.raises(PayloadTooLarge, match="SVC_MAX_ARTIFACT_BYTES"):
        folder(answering(200, b"x" * 101)).read("a.svc", 100)
    with pytest.raises(ArtifactReadError, match="compressed"):
        folder(answering(200, b"x", Content_Encoding="gzip")).read("a.svc", 100)
    assert bytes(folder(answering(200, b"x" * 100)).read("a.svc", 100)) == b"x" * 100


def test_a_refused_write_is_an_error(folder: Callable[[Answer], HttpFolder]) -> None:
    """A refused removal is an error too. Removing a missing version is none."""
    with pytest.raises(ArtifactWriteError, match="cannot be put in place"):
        folder(answering(405)).put(lambda out: out.write(b"x"), lambda _: "a.svc")
    with pytest.raises(ArtifactWriteError, match="cannot be removed"):
        folder(answering(403)).remove("a.svc")
    folder(answering(404)).remove("a.svc")
    for status in (200, 202, 204):
        folder(answering(status)).remove("a.svc")
    for status in (200, 201, 204):
        folder(answering(status)).put(lambda out: out.write(b"x"), lambda _: "a.svc")
    assert folder(answering(200)).names() is None
