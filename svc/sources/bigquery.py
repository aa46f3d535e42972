"""Rows of a BigQuery query, read over the Storage Read API, or over REST when that API is unavailable.

The query never runs twice, because REST reads the result of the same job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import pyarrow as pa

from svc import events, install_command, logs
from svc.errors import DataSourceError
from svc.late_imports import LateModule, import_late
from svc.recipe.source_options import BigQueryOptions, Scalar
from svc.sources.arrow import table_of_rows
from svc.sources.table import QUERY_RESULT, QuerySource, choose_columns, library_errors, require_query_rows

bigquery = LateModule("google.cloud.bigquery")
credentials = LateModule("google.auth.credentials")
exceptions = LateModule("google.api_core.exceptions")
retry = LateModule("google.api_core.retry")

_PAGE_ROWS = 50_000
_TYPES = {bool: "BOOL", int: "INT64", float: "FLOAT64", str: "STRING"}


class BigQuerySource(QuerySource[BigQueryOptions]):
    """A source that runs one BigQuery query, billed to the Google project in the option `project`.

    Google's libraries find the credentials.
    """

    type_name: ClassVar[str] = "bigquery"
    Config: ClassVar[type[BigQueryOptions]] = BigQueryOptions

    @contextmanager
    def _answer(self, most_rows: int) -> Iterator[tuple[list[str], Iterator[pa.RecordBatch | pa.Table]]]:  # noqa: ARG002
        with self._client() as client:
            job = self._start(client, dry_run=False)
            rows = job.result(retry=self._retry())
            names = [field.name for field in rows.schema]
            wanted = choose_columns(self._context, names, QUERY_RESULT)
            require_query_rows(rows.total_rows or 0, self._context.settings.max_sql_rows)
            yield [], self._batches(client, job, {name: names.index(name) for name in wanted})

    def probe(self) -> list[str]:
        """Check the query by a dry run, which reads and bills nothing.

        The lines have an estimate of the bytes to process, and the columns if BigQuery names them.
        """
        with self._client() as client:
            job = self._start(client, dry_run=True)
            checks = [f"query: valid, would process {job.total_bytes_processed} bytes"]
            if job.schema:
                names = [field.name for field in job.schema]
                columns = choose_columns(self._context, names, QUERY_RESULT)
                checks.append(f"query: has the columns {', '.join(columns)}")
            return checks

    def _batches(self, client: Any, job: Any, positions: Mapping[str, int]) -> Iterator[pa.RecordBatch | pa.Table]:
        """Yield batches with the wanted columns, which have the indexes `positions` in each row.

        The first batch is empty, so that an empty result has columns too.
        """
        yield table_of_rows([], positions, self._context.text_columns)
        stream = self._storage_batches(client, job, list(positions))
        if stream is not None:
            yield from stream
            return
        for page in job.result(page_size=_PAGE_ROWS, retry=self._retry()).pages:
            yield table_of_rows([row.values() for row in page], positions, self._context.text_columns)

    def _storage_batches(self, client: Any, job: Any, wanted: list[str]) -> Iterator[pa.RecordBatch] | None:
        """Return batches from the Storage Read API, or None if it is unavailable and the settings allow REST.

        It is unavailable if its library is not installed or the account may not use it. Raises DataSourceError if it is
        unavailable and the settings forbid REST.
        """
        try:
            storage = import_late("google.cloud.bigquery_storage")
        except ImportError:
            self._fall_back("missing_extra")
            return None
        reader = storage.BigQueryReadClient(credentials=_credentials(), client_options=_read_options())
        request = {
            "parent": f"projects/{client.project}",
            "read_session": {
                "table": job.destination.to_bqstorage(),
                "data_format": storage.types.DataFormat.ARROW,
                "read_options": {"selected_fields": wanted},
            },
            # Rows of several streams come in any order, and `keep_last` depends on the order.
            "max_stream_count": 1,
        }
        timeout = self._context.settings.http_timeout_s
        unreachable = retry.if_exception_type(exceptions.ServiceUnavailable, exceptions.DeadlineExceeded)
        try:
            session = reader.create_read_session(
                request, retry=retry.Retry(unreachable, timeout=timeout), timeout=timeout
            )
        except exceptions.PermissionDenied:
            self._fall_back("permission_denied")
            return None
        pages = (page for stream in session.streams for page in reader.read_rows(stream.name).rows(session).pages)
        # The API returns columns in the order of the table, not of `selected_fields`.
        return (page.to_arrow().select(wanted) for page in _each_within(timeout, pages, reader.transport.close))

    def _retry(self) -> Any:
        """Return Google's default retries, limited to the HTTP timeout of the settings."""
        return bigquery.DEFAULT_RETRY.with_timeout(self._context.settings.http_timeout_s)

    def _fall_back(self, reason: str) -> None:
        if self._context.settings.bq_require_storage_api:
            raise DataSourceError(
                f"the BigQuery Storage Read API is unavailable ({reason}), and SVC_BQ_REQUIRE_STORAGE_API=1 "
                f"forbids REST; grant bigquery.readsessions.create, or {install_command('bigquery')}"
            )
        logs.emit(events.BIGQUERY_STORAGE_FALLBACK, reason=reason)

    def _start(self, client: Any, *, dry_run: bool) -> Any:
        parameters = [_parameter(name, value) for name, value in self._config.query_parameters.items()]
        # A cached result would make the estimate of a dry run 0 bytes.
        config = bigquery.QueryJobConfig(query_parameters=parameters, dry_run=dry_run, use_query_cache=not dry_run)
        timeout = self._context.settings.http_timeout_s
        # job_retry=None: Google's default would run, and bill, a failed query again.
        return client.query(self._config.query, job_config=config, retry=self._retry(), job_retry=None, timeout=timeout)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """Yield a client and close it after the block. Raises ConfigError without Google's library.

        Every other failure becomes a DataSourceError.
        """
        with library_errors("bigquery"):
            import_late("google.cloud.bigquery")
            with bigquery.Client(project=self._config.project, credentials=_credentials()) as client:
                yield client


def _each_within(limit_s: float, pages: Iterator[Any], end: Callable[[], None]) -> Iterator[Any]:
    """Yield the pages of a stream. Afterwards call `end`, which closes the stream.

    Raises DataSourceError if a page takes longer than `limit_s` seconds, because gRPC would wait for a day.
    """
    with ThreadPoolExecutor(1) as waiting:
        try:
            while (page := waiting.submit(next, pages, None).result(limit_s)) is not None:
                yield page
        except TimeoutError:
            raise DataSourceError(f"bigquery: the stream of rows was silent for more than {limit_s:g} s") from None
        finally:
            # Within the pool's block, which waits for its thread: closing the transport ends the thread's read.
            end()


def _credentials() -> Any:
    """Return anonymous credentials if BIGQUERY_EMULATOR_HOST is set, because an emulator checks none.

    Otherwise return None, and Google's libraries find the credentials.
    """
    if not os.environ.get("BIGQUERY_EMULATOR_HOST"):
        return None
    return credentials.AnonymousCredentials()  # type: ignore[no-untyped-call, unused-ignore]


def _read_options() -> dict[str, str] | None:
    address = os.environ.get("BIGQUERY_STORAGE_EMULATOR_HOST")
    return {"api_endpoint": address} if address else None


def _parameter(name: str, value: Scalar) -> Any:
    return bigquery.ScalarQueryParameter(name, _TYPES.get(type(value), "STRING"), value)
