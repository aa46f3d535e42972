"""Artifacts in object stores: caps, changes while reading, and errors, over a store in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from svc.artifact import store_fsspec
from svc.artifact.store_fsspec import ObjectFolder
from svc.errors import ArtifactReadError, ArtifactWriteError, PayloadTooLarge
from svc.settings import Settings


class Objects:
    """A replacement of `svc.objects.ObjectStore` over a dictionary."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.tells_size = True
        self.broken: Exception | None = None

    def info(self, uri: str) -> Mapping[str, Any]:
        if self.broken is not None:
            raise self.broken
        if uri not in self.contents:
            raise FileNotFoundError(uri)
        size = {"size": len(self.contents[uri])} if self.tells_size else {}
        return {"type": "file", "ETag": str(hash(self.contents[uri])), **size}

    def read(self, uri: str, start: int, end: int, *, expected: int | None = None) -> bytes:
        return self.contents[uri][start:end]

    def write(self, uri: str, descriptor: int) -> None:
        if self.broken is not None:
            raise self.broken
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            self.contents[uri] = file.read()

    def remove(self, uri: str) -> None:
        if self.broken is not None:
            raise self.broken
        del self.contents[uri]


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    found = Objects()
    monkeypatch.setattr(store_fsspec, "ObjectStore", lambda uri, timeout_s: found)
    monkeypatch.setattr(store_fsspec, "_PIECE_BYTES", 4)
    return found


@pytest.fixture
def folder(objects: Objects) -> ObjectFolder:
    return ObjectFolder("s3://models/shop/a.svc", Settings(), "shop")


def test_a_written_object_is_read_in_pieces(folder: ObjectFolder, objects: Objects) -> None:
    """The object is in the folder of the URI, and its marker changes with the content."""
    folder.put(lambda out: out.write(b"0123456789"), lambda _: "a.svc")
    assert objects.contents == {"s3://models/shop/a.svc": b"0123456789"}
    assert bytes(folder.read("a.svc", 10)) == b"0123456789"
    before = folder.marker("a.svc")
    folder.put(lambda out: out.write(b"9876543210"), lambda _: "a.svc")
    assert folder.marker("a.svc") != before


@pytest.mark.parametrize("tells_size", [True, False])
def test_an_object_above_the_cap_is_refused(folder: ObjectFolder, objects: Objects, tells_size: bool) -> None:
    """The reported size decides, or the read of one byte more than the cap."""
    objects.tells_size = tells_size
    objects.contents[folder.uri_of("a.svc")] = b"0123456789"
    with pytest.raises(PayloadTooLarge, match="SVC_MAX_ARTIFACT_BYTES is 9"):
        folder.read("a.svc", 9)
    assert bytes(folder.read("a.svc", 10)) == b"0123456789"


def test_an_object_that_changes_between_two_pieces_is_refused(
    folder: ObjectFolder, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces would belong to two artifacts, even if the sizes are equal."""
    uri = folder.uri_of("a.svc")
    objects.contents[uri] = b"0123456789"
    read = objects.read

    def changing(uri: str, start: int, end: int, **more: Any) -> bytes:
        piece = read(uri, start, end, **more)
        objects.contents[uri] = b"abcdefghij"
        return piece

    monkeypatch.setattr(objects, "read", changing)
    with pytest.raises(ArtifactReadError, match="changed while it was read"):
        folder.read("a.svc", 100)


@pytest.mark.parametrize(("kept", "is_written"), [(10, True), (9, False), (0, False)])
def test_an_upload_with_a_lost_answer_succeeds_if_all_bytes_arrived(
    folder: ObjectFolder, objects: Objects, monkeypatch: pytest.MonkeyPatch, kept: int, is_written: bool
) -> None:
    """A part of the bytes, or other bytes of the same number, is a failure."""
    uri, write = folder.uri_of("a.svc"), objects.write
    objects.contents[uri] = b"abcdefghij"

    def losing(uri: str, descriptor: int) -> None:
        if kept:
            write(uri, descriptor)
            objects.contents[uri] = objects.contents[uri][:kept]
        raise ConnectionResetError("the store closed the connection")

    monkeypatch.setattr(objects, "write", losing)
    with nullcontext() if is_written else pytest.raises(ArtifactWriteError, match="cannot be written"):
        folder.put(lambda out: out.write(b"0123456789"), lambda _: "a.svc")


def test_errors_of_the_store_become_errors_of_the_folder(folder: ObjectFolder, objects: Objects) -> None:
    """A missing object is FileNotFoundError. Other errors name the failed operation.

    Removing a missing object is no error.
    """
    with pytest.raises(FileNotFoundError):
        folder.marker("a.svc")
    objects.broken = PermissionError("no")
    with pytest.raises(ArtifactReadError, match="cannot be read: permission denied"):
        folder.marker("a.svc")
    with pytest.raises(ArtifactWriteError, match="cannot be written: permission denied"):
        folder.put(lambda out: out.write(b"x"), lambda _: "a.svc")
    with pytest.raises(ArtifactWriteError, match="cannot be removed"):
        folder.remove("a.svc")
    objects.broken = FileNotFoundError("gone")
    folder.remove("a.svc")
