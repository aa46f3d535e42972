"""A file over http(s), fetched whole under the caps, with its events."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from svc import events, logs
from svc.errors import DataSourceError, FetchError, FetchTooLarge, SourceTooLarge
from svc.net import HttpRules, exchange
from svc.sources.base import Purpose, SourceContext


def download(url: str, out: BinaryIO, context: SourceContext, *, at_most: int | None = None) -> str:
    """Write the body of `url` to `out` and return its sha256 (hex).

    With `at_most`, reading stops quietly after that many bytes: for a look at a file's beginning. Raises
    SourceTooLarge above SVC_MAX_DOWNLOAD_BYTES, DataSourceError otherwise.
    """
    cap = context.settings.max_download_bytes
    digest = hashlib.sha256()
    read = 0
    redirect = events.METADATA_SOURCE_REDIRECT if context.purpose == "metadata" else events.CSV_SOURCE_REDIRECT

    def on_redirect(from_: str, to: str, status: int) -> None:
        logs.emit(redirect, from_=from_, to=to, status=status)

    try:
        with exchange("GET", url, HttpRules.of(context.settings), on_redirect=on_redirect) as response:
            response.require(200)
            for chunk in response.chunks(cap):
                out.write(chunk)
                digest.update(chunk)
                read += len(chunk)
                if at_most is not None and read >= at_most:
                    break
            _require_whole(response.url, response.length, read, partial=at_most is not None)
    except FetchTooLarge as error:
        too_large(response.url, error.fields.get("bytes_read", read), cap, context.purpose)
        raise SourceTooLarge(f"{error.message}: SVC_MAX_DOWNLOAD_BYTES", fields=error.fields) from None
    except FetchError as error:
        raise DataSourceError(error.message, fields=error.fields) from error
    return digest.hexdigest()


def too_large(path: str, bytes_read: int, cap: int, purpose: Purpose) -> None:
    """Report that reading `path` was stopped at a cap."""
    event = events.METADATA_SOURCE_SIZE_EXCEEDED if purpose == "metadata" else events.CSV_SOURCE_SIZE_EXCEEDED
    logs.emit(event, path=path, bytes_read=bytes_read, cap=cap)


def _require_whole(url: str, length: int | None, read: int, *, partial: bool) -> None:
    if not partial and length is not None and read != length:
        raise DataSourceError(f"{url} was cut: {read} of {length} bytes arrived")
