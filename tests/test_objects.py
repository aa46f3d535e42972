"""Object stores: what their clients' errors mean, and what changes with every write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import sync

from svc.errors import ConfigError
from svc.objects import LEAST_BYTES_PER_S, ObjectStore, explain, identity, is_missing, status_of
from tests.object_store import ObjectsInMemory


class BotocoreError(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__("the store repeats what was sent: SECRET")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}


class AzureError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("SECRET")
        self.status_code = status


def caused(outer: Exception, by: Exception) -> Exception:
    outer.__cause__ = by
    return outer


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BotocoreError(403, "AccessDenied"), 403),
        (AzureError(404), 404),
        (caused(OSError("failed"), BotocoreError(500, "InternalError")), 500),
        (OSError("Forbidden: https://storage.googleapis.com/b"), 403),
        (ValueError("no answer at all"), None),
    ],
)
def test_the_status_of_every_clients_error_is_found(error: Exception, status: int | None) -> None:
    """An error of the file system may hide the client's error as its cause, or have the status only in its text."""
    assert status_of(error) == status
    assert is_missing(error) == (status == 404)


def test_the_message_of_a_store_is_not_shown() -> None:
    """A store may repeat what was sent, so svc shows status, error code and advice."""
    refused = explain(BotocoreError(403, "AccessDenied"))
    assert refused == "permission denied, status 403, AccessDenied; check the credentials"
    assert "the credentials have expired" in explain(BotocoreError(400, "ExpiredToken"))
    assert "SVC_HTTP_TIMEOUT_SECONDS" in explain(caused(TimeoutError(), BotocoreError(503, "SlowDown")))
    assert "SlowDown" in explain(caused(TimeoutError(), BotocoreError(503, "SlowDown")))
    assert all("SECRET" not in explain(error) for error in (BotocoreError(500, "x"), AzureError(500)))


def test_an_identity_has_the_etag_or_the_generation() -> None:
    """The identity has the generation or the ETag. Without a write it stays the same."""
    assert identity({"ETag": "a", "size": 1}) != identity({"ETag": "b", "size": 1})
    assert identity({"generation": "1", "etag": "a"}) != identity({"generation": "2", "etag": "a"})
    assert identity({"ETag": "a", "size": 1, "LastModified": "now"}) == identity({"ETag": "a", "size": 1})


def test_a_client_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error also has the command that installs the extra."""

    def missing(*arguments: object, **options: object) -> None:
        raise ImportError

    monkeypatch.setattr("svc.objects.client_of", missing)
    with pytest.raises(ConfigError, match=r"s3:// needs the extra s3: .*pip install"):
        ObjectStore("s3://bucket/key", 1.0).info("s3://bucket/key")


def test_objects_are_written_listed_read_and_removed(objects_in_memory: ObjectsInMemory, tmp_path: Path) -> None:
    """Listed addresses have the scheme of the store. The listing of a folder has only objects below it."""
    store, uri = ObjectStore("s3://shop/out", 1.0), "s3://shop/out/a.svc"
    (tmp_path / "a.svc").write_bytes(b"0123456789")
    with (tmp_path / "a.svc").open("rb") as file:
        store.write(uri, file.fileno())
    objects_in_memory.pipe_file("s3://shop/out/deeper/b.svc", b"01")
    objects_in_memory.pipe_file("s3://shop/outer/c.svc", b"012")
    assert (store.info(uri)["size"], store.read(uri, 2, 5)) == (10, b"234")
    assert [store.kind(f"s3://shop/out{name}") for name in ("/a.svc", "/deeper", "/none")] == [
        "file",
        "directory",
        None,
    ]
    for folder in ("s3://shop/out", "s3://shop/out/"):
        assert sorted(store.list_files(folder)) == [(uri, 10), ("s3://shop/out/deeper/b.svc", 2)]
        assert sorted(store.names(folder)) == ["a.svc", "deeper"]
    assert store.list_files("s3://shop/none") == []
    store.remove(uri)
    assert store.kind(uri) is None
    for call in (store.info, store.remove):
        with pytest.raises(FileNotFoundError):
            call(uri)
    with pytest.raises(FileNotFoundError):
        store.info("s3://shop/out/deeper")


@pytest.mark.usefixtures("objects_in_memory")
def test_the_timeout_of_a_transfer_grows_with_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that transfer no content have the configured timeout."""
    timeouts: list[float] = []

    def timed(*arguments: Any, timeout: float, **options: Any) -> Any:
        timeouts.append(timeout)
        return sync(*arguments, timeout=timeout, **options)

    monkeypatch.setattr("svc.objects.sync", timed)
    store, uri = ObjectStore("s3://shop/out", 2.0), "s3://shop/out/a.svc"
    (tmp_path / "a.svc").write_bytes(b"0" * LEAST_BYTES_PER_S)
    with (tmp_path / "a.svc").open("rb") as file:
        store.write(uri, file.fileno())
    store.read(uri, 0, 3 * LEAST_BYTES_PER_S)
    store.read(uri, 0, 3 * LEAST_BYTES_PER_S, expected=0)
    store.info(uri)
    store.remove(uri)
    assert timeouts == [3.0, 5.0, 2.0, 2.0, 2.0]
