"""Files in object stores, through fsspec's clients (extras s3, gcs, azure)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from svc.errors import ConfigError, DataSourceError, SvcError
from svc.logs import redact_text
from svc.recipe.paths import Location
from svc.settings import Settings

_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}


@contextmanager
def open_object(location: Location, settings: Settings) -> Iterator[tuple[BinaryIO, int]]:
    """The object as a file that can seek, and its size in bytes. Whatever the client raises is a DataSourceError."""
    where = redact_text(location.uri)
    try:
        filesystem, path = _filesystem(location, settings)
        size = int(filesystem.info(path)["size"])
        with filesystem.open(path, "rb", cache_type="readahead", block_size=8 << 20) as file:
            yield cast("BinaryIO", file), size
    except SvcError:
        raise
    except FileNotFoundError:
        raise DataSourceError(f"{where} does not exist") from None
    except PermissionError:
        raise DataSourceError(f"{where} may not be read: the store denied it; check the credentials") from None
    except Exception as error:
        reason = redact_text(str(error)).splitlines()[:1] or [""]
        raise DataSourceError(f"{where} cannot be read: {type(error).__name__}: {reason[0][:300]}") from error


def _filesystem(location: Location, settings: Settings) -> tuple[Any, str]:
    if location.scheme == "gs":
        # gcsfs asks the store's layout over gRPC, and waits a minute for it where only HTTP passes.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import fsspec

    extra = _EXTRAS[location.scheme]
    try:
        filesystem, path = fsspec.core.url_to_fs(location.uri, **_options(extra, settings.http_timeout_s))
    except ImportError:
        raise ConfigError(f"{location.scheme}:// needs an extra: pip install 'svc[{extra}]'") from None
    return filesystem, path


def _options(extra: str, timeout_s: float) -> dict[str, Any]:
    """Another writer's overwrite must be seen at once, and a store that hangs must not hang the run."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if extra == "s3":
        timeouts = {"connect_timeout": timeout_s, "read_timeout": timeout_s, "retries": {"max_attempts": 2}}
        return options | {"config_kwargs": timeouts}
    if extra == "gcs":
        return options | {"requests_timeout": timeout_s}
    return options | {"connection_timeout": int(timeout_s), "read_timeout": int(timeout_s)}
