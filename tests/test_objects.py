"""Object stores: what their clients' errors mean, and what changes with every write."""

from __future__ import annotations

import pytest

from svc.errors import ConfigError
from svc.objects import ObjectStore, explain, identity, is_missing, status_of


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
    """Also where the error of the file system hides that of the client."""
    assert status_of(error) == status
    assert is_missing(error) == (status == 404)


def test_the_message_of_a_store_is_not_shown() -> None:
    """Its text may hold what was sent; status and code are enough, with the way out."""
    refused = explain(BotocoreError(403, "AccessDenied"))
    assert refused == "permission denied, status 403, AccessDenied; check the credentials"
    assert "the credentials have expired" in explain(BotocoreError(400, "ExpiredToken"))
    assert "SVC_HTTP_TIMEOUT_SECONDS" in explain(caused(TimeoutError(), BotocoreError(503, "SlowDown")))
    assert "SlowDown" in explain(caused(TimeoutError(), BotocoreError(503, "SlowDown")))
    assert all("SECRET" not in explain(error) for error in (BotocoreError(500, "x"), AzureError(500)))


def test_every_write_changes_the_identity() -> None:
    """By version or generation where there is one; the same content may be written twice."""
    assert identity({"ETag": "a", "size": 1}) != identity({"ETag": "b", "size": 1})
    assert identity({"generation": "1", "etag": "a"}) != identity({"generation": "2", "etag": "a"})
    assert identity({"ETag": "a", "size": 1, "LastModified": "now"}) == identity({"ETag": "a", "size": 1})


def test_a_client_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""

    def missing(*arguments: object, **options: object) -> None:
        raise ImportError

    monkeypatch.setattr("svc.objects.url_to_fs", missing)
    with pytest.raises(ConfigError, match=r"s3:// needs the extra s3: .*pip install"):
        ObjectStore("s3://bucket/key", 1.0).info("s3://bucket/key")
