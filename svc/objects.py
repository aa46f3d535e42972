"""Object stores (S3, Google Cloud Storage, Azure Blob) for data and artifacts, through their fsspec file systems.

Credentials, endpoints and regions come from each client's own places: variables, files and instance metadata. Listings
are never cached, because a cached listing would hide another writer's object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from fsspec.asyn import sync
from fsspec.core import url_to_fs
from fsspec.exceptions import FSTimeoutError
from fsspec.registry import get_filesystem_class

from svc import install_command, logs
from svc.errors import ConfigError
from svc.late_imports import turn
from svc.names import EXTRAS_OF_SCHEMES

LEAST_BYTES_PER_S: Final = 256 << 10
"""Lowest permitted speed of a transfer. The time at this speed is added to the timeout of a call."""
_IDENTITY: Final = ("VersionId", "generation", "ETag", "etag", "size")
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_GIVEN_UP: Final = (FSTimeoutError, TimeoutError)


def client_of(uri: str, **options: Any) -> Any:
    """Return fsspec's client for the store of `uri`. Raises ImportError if its package is not installed."""
    with turn:
        # Imports the package of the client, so it takes a turn with other late imports.
        get_filesystem_class(uri.partition(":")[0].lower())
    return url_to_fs(uri, **options)[0]


class ObjectStore:
    """The client for the store of `uri`.

    `timeout_s` bounds each call, the client's own retries included. A transfer has more time, by LEAST_BYTES_PER_S.
    Calls raise the client's exceptions. `explain` describes such an exception in a line, and `is_missing` finds the
    exceptions for a missing object.
    """

    def __init__(self, uri: str, timeout_s: float) -> None:
        self._uri = uri
        self._timeout_s = timeout_s

    @cached_property
    def _fs(self) -> Any:
        scheme = self._uri.partition(":")[0].lower()
        try:
            return client_of(self._uri, **_options(scheme, self._timeout_s))
        except ImportError:
            extra = EXTRAS_OF_SCHEMES[scheme]
            raise ConfigError(f"{scheme}:// needs the extra {extra}: {install_command(extra)}") from None

    def _call(self, method: str, *arguments: Any, n_bytes: int = 0, **options: Any) -> Any:
        """Run one operation of the file system on fsspec's thread. Its timeout grows with `n_bytes`."""
        # The names with an underscore are the coroutines, which `sync` ends at a timeout.
        operation = getattr(self._fs, f"_{method}")
        timeout_s = self._timeout_s + n_bytes / LEAST_BYTES_PER_S
        return sync(self._fs.loop, operation, *arguments, timeout=timeout_s, **options)

    def _path(self, uri: str) -> str:
        return str(self._fs._strip_protocol(uri))

    def info(self, uri: str) -> Mapping[str, Any]:
        """Return the store's facts about an object without fetching it. Raises FileNotFoundError without an object."""
        info: Mapping[str, Any] = self._call("info", self._path(uri))
        if info.get("type") != "file":
            raise FileNotFoundError(uri)
        return info

    def kind(self, uri: str) -> str | None:
        """Return `file` for an object, `directory` for a prefix of other addresses, or None for neither."""
        try:
            return str(self._call("info", self._path(uri)).get("type"))
        except FileNotFoundError:
            return None

    def list_files(self, uri: str) -> list[tuple[str, int]]:
        """Return address and size of every object below the folder `uri`. A missing folder has none."""
        base, folder = uri.rstrip("/"), self._path(uri).rstrip("/")
        objects = self._call("find", folder, detail=True)
        return [
            (base + path[len(folder) :], int(info["size"]))
            for path, info in objects.items()
            if info.get("type") == "file" and path.startswith(f"{folder}/")
        ]

    def names(self, uri: str) -> list[str]:
        """Return the last parts of the addresses directly below the folder `uri`, of objects and of folders."""
        return [str(path).rstrip("/").rpartition("/")[2] for path in self._call("ls", self._path(uri), detail=False)]

    def remove(self, uri: str) -> None:
        self._call("rm_file", self._path(uri))

    def read(self, uri: str, start: int, end: int, *, expected: int | None = None) -> bytes:
        """Return the bytes from `start` to `end`, or fewer if the object ends before.

        `expected` is the probable number of bytes, if it is lower. The timeout is computed from it.
        """
        n_bytes = end - start if expected is None else expected
        content: bytes = self._call("cat_file", self._path(uri), n_bytes=n_bytes, start=start, end=end)
        return content

    def write(self, uri: str, descriptor: int) -> None:
        """Upload the whole of an open file, in one call of the client."""
        size = os.fstat(descriptor).st_size
        # put_file takes a path, but the temporary file has no name.
        self._call("put_file", f"/proc/self/fd/{descriptor}", self._path(uri), n_bytes=size)


def _options(scheme: str, timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        timeouts = {"connect_timeout": timeout_s, "read_timeout": timeout_s, "retries": {"max_attempts": 2}}
        return options | {"config_kwargs": timeouts}
    if scheme == "gs":
        # Otherwise gcsfs asks over gRPC for the kind of a bucket, and waits a minute if gRPC is blocked.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        return options | {"requests_timeout": timeout_s}
    return options | {"connection_timeout": int(timeout_s), "read_timeout": int(timeout_s)}


def identity(info: Mapping[str, Any]) -> str:
    """Return a text that changes with every write. It joins the version, generation, ETag and size of the object."""
    return "|".join(str(info[key]) for key in _IDENTITY if info.get(key) is not None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    # Bounded, because contexts of errors can form a circle.
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def is_missing(error: BaseException) -> bool:
    """Return whether a client's error means that there is no such object."""
    return isinstance(error, FileNotFoundError) or status_of(error) == 404


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind a client's error, or None.

    botocore, azure and gcsfs each keep the status in another place.
    """
    for cause in _causes(error):
        if type(cause) is OSError and str(cause).startswith("Forbidden: "):  # all that gcsfs keeps of a 403
            return 403
        told = _answer_of(cause).get("ResponseMetadata", {}).get("HTTPStatusCode")
        for status in (told, getattr(cause, "status_code", None), getattr(cause, "code", None)):
            if isinstance(status, int):
                return status
    return None


def _answer_of(error: BaseException) -> Mapping[str, Any]:
    """Return the parts of the store's answer that botocore keeps, or an empty mapping."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def explain(error: BaseException) -> str:
    """Return one line about the failure.

    It shows only the status and the code of the store's answer, because the text of the answer may repeat the request.
    """
    if isinstance(error, TimeoutError):
        last = [cause for cause in _causes(error) if isinstance(cause, Exception) and type(cause) not in _GIVEN_UP]
        before = f", last: {explain(last[0])}" if last else ""
        return f"the store gave no good answer in time (SVC_HTTP_TIMEOUT_SECONDS){before}"
    status = status_of(error)
    if status is None and not isinstance(error, PermissionError):
        first_line = next(iter(logs.redact_text(str(error)).splitlines()), "")
        return f"{type(error).__name__}: {first_line:.160}"
    codes = (
        _answer_of(cause).get("Error", {}).get("Code") or getattr(cause, "error_code", None) for cause in _causes(error)
    )
    code = next((str(getattr(code, "value", code)) for code in codes if code), type(error).__name__)
    refused = isinstance(error, PermissionError) or status in (401, 403)
    way_out = "; the credentials have expired" if code in _EXPIRED else "; check the credentials" if refused else ""
    return f"{'permission denied, ' if refused else ''}status {status or 'unknown'}, {code:.60}{way_out}"
