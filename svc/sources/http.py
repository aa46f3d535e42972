"""Downloads files over http(s) within the size caps, and logs redirects and exceeded caps."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, Final

from svc import events, logs
from svc.errors import DataSourceError, FetchError, FetchTooLarge, SourceTooLarge
from svc.net import HttpRules, Response, exchange
from svc.sources.base import Purpose, SourceContext

_CONTENT_RANGE: Final = re.compile(r"bytes (?P<begin>[0-9]{1,18})-[0-9]{1,18}/[0-9]{1,18}")


def download(url: str, out: BinaryIO, context: SourceContext, *, at_most: int | None = None) -> str:
    """Write the body of `url` to `out` and return its sha256 (hex).

    With `at_most`, reading stops without an error after that many bytes. Raises SourceTooLarge above
    SVC_MAX_DOWNLOAD_BYTES, DataSourceError for every other failure.
    """
    digest = hashlib.sha256()
    read = 0
    with _answer(url, context) as response:
        response.require(200)
        for chunk in response.chunks(context.settings.max_download_bytes):
            out.write(chunk)
            digest.update(chunk)
            read += len(chunk)
            if at_most is not None and read >= at_most:
                break
        _require_whole(response.url, response.length, read, partial=at_most is not None)
    return digest.hexdigest()


def download_end(url: str, out: BinaryIO, context: SourceContext, n_bytes: int) -> int | None:
    """Write the last `n_bytes` of the body at their own offset in `out`, and return that offset.

    None if the server ignores ranges and the body is larger than `n_bytes`. Raises as `download` does.
    """
    with _answer(url, context, {"Range": f"bytes=-{n_bytes}"}) as response:
        response.require(200, 206)
        content_range = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        begin = int(content_range["begin"]) if response.status == 206 and content_range else 0
        if response.length is None or response.length > n_bytes:
            return None
        out.seek(begin)
        out.writelines(response.chunks(n_bytes))
        _require_whole(response.url, response.length, out.tell() - begin, partial=False)
    return begin


@contextmanager
def _answer(url: str, context: SourceContext, headers: Mapping[str, str] | None = None) -> Iterator[Response]:
    """Yield the final response to a GET.

    Logs redirects. Every failure becomes a DataSourceError.
    """
    redirect = events.METADATA_SOURCE_REDIRECT if context.purpose == "metadata" else events.CSV_SOURCE_REDIRECT

    def on_redirect(from_: str, to: str, status: int) -> None:
        logs.emit(redirect, from_=from_, to=to, status=status)

    where = url
    rules = HttpRules.of(context.settings)
    try:
        with exchange("GET", url, rules, headers=headers, on_redirect=on_redirect) as response:
            where = response.url
            yield response
    except FetchTooLarge as error:
        too_large(where, error.fields["bytes_read"], context.settings.max_download_bytes, context.purpose)
        raise SourceTooLarge(f"{error.message}: SVC_MAX_DOWNLOAD_BYTES", fields=error.fields) from None
    except FetchError as error:
        raise DataSourceError(error.message, fields=error.fields) from error


def too_large(path: str, bytes_read: int, cap: int, purpose: Purpose) -> None:
    """Log that reading `path` stopped at a cap."""
    event = events.METADATA_SOURCE_SIZE_EXCEEDED if purpose == "metadata" else events.CSV_SOURCE_SIZE_EXCEEDED
    logs.emit(event, path=path, bytes_read=bytes_read, cap=cap)


def _require_whole(url: str, length: int | None, read: int, *, partial: bool) -> None:
    if not partial and length is not None and read != length:
        raise DataSourceError(f"{url} was cut: {read} of {length} bytes arrived")
