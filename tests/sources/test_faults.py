"""Faults of each kind of source: `svc train` ends with 3, names the reason, and leaves nothing behind."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import os
import re
import resource
import secrets
import socket
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from svc import logs
from svc.cli.main import run
from svc.settings import Settings
from tests.artifact.test_store_faults import ENVIRONMENTS, faulty_server
from tests.privileges import permissions_hold
from tests.serving.artifacts import SIGNING_KEYS
from tests.sources.conftest import BigQuery, Page, WebServer, tls_context

SECRET = "hunter2"
DSN = "SVC_RECIPE_DSN"
DATA = b"user_id,item_id\n" + b"".join(b"u%d,i%d\n" % (k, k % 7) for k in range(200_000))
MANY_ROWS = "SELECT a.user_id, b.item_id FROM {0}_open a, {0}_open b"
Fails = Callable[..., dict[str, Any]]


@pytest.fixture
def fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Fails]:
    """Return a function that trains on a source and returns the record of the error.

    It checks that the exit code is 3, the old artifact stays, and no other file is left.
    """
    environment = {"SVC_SIGNING_KEYS": SIGNING_KEYS, "SVC_HTTP_ALLOW_PRIVATE": "1", "SVC_HTTP_TIMEOUT_SECONDS": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "run"
    (folder / "spool").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "spool"))

    def train(source: dict[str, Any]) -> dict[str, Any]:
        recipe = {"name": "shop", "source": source, "schema": {"user_column": "user_id", "item_column": "item_id"}}
        recipe |= {"training": {"algorithms": ["TopPop"]}, "output": {"path": "shop.svc"}}
        (folder / "shop.yaml").write_text(json.dumps(recipe))
        (folder / "shop.svc").write_bytes(b"old")
        code = run(["train", str(folder / "shop.yaml")])
        output = "".join(capfd.readouterr())
        last: dict[str, Any] = json.loads(output.splitlines()[-1])
        assert (code, last["event"], last["exit_code"]) == (3, "train_error", 3), output
        assert SECRET not in output
        remaining = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        assert remaining == {"shop.yaml", "shop.svc", "spool"}
        assert (folder / "shop.svc").read_bytes() == b"old"
        return last

    yield train
    logs.configure(Settings())


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """Limit the size of written files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def at(url: str, data: bytes = DATA) -> dict[str, Any]:
    return {"type": "csv", "path": f"{url}/a.csv?sig={SECRET}", "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(Page(DATA, cut=True), "cannot be fetched", id="cut"),
        pytest.param(Page(DATA, chunked=True, cut=True), "cannot be fetched", id="cut between chunks"),
        pytest.param(Page(DATA, hang=True), "did not answer in time", id="hung"),
        pytest.param(Page(DATA, trickle=True), "too slow", id="slow"),
        pytest.param(Page(status=401), "status 401", id="expired"),
        pytest.param(Page(status=403), "status 403", id="denied"),
        pytest.param(Page(status=429), "status 429", id="throttled"),
        pytest.param(Page(status=503), "status 503", id="busy"),
        pytest.param(Page(b"user_id,item_id\n"), "not the expected file", id="another file"),
    ],
)
def test_faulty_web_servers_end_the_training_with_their_fault(
    fails: Fails, web: WebServer, page: Page, words: str
) -> None:
    """The error has the URL without its query, and the fault."""
    web.pages["/a.csv"] = page
    error = fails(at(web.url))["error"]
    assert words in error
    assert f"{web.url}/a.csv" in error


def test_a_refused_connection_is_an_error(fails: Fails) -> None:
    """The error says that the connection was refused."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert "refused" in fails(at(f"http://127.0.0.1:{unused.getsockname()[1]}"))["error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": ["other.example"]}, "Hostname mismatch"),
        ({"names": ["localhost"], "ends": datetime.datetime(2020, 1, 1)}, "expired"),
        ({"names": ["localhost"], "stranger": True}, "issuer"),
    ],
)
def test_invalid_certificates_are_refused(fails: Fails, authority: Any, options: dict[str, Any], words: str) -> None:
    """The certificate has another name, has expired, or comes from an unknown authority."""
    import trustme

    issuer = trustme.CA() if options.get("stranger") else authority
    certificate = issuer.issue_cert(*options["names"], not_after=options.get("ends"))
    for server in WebServer("https", tls_context(certificate)).run():
        server.pages["/a.csv"] = Page(DATA)
        error = fails(at(server.url))["error"]
        assert "CERTIFICATE_VERIFY_FAILED" in error
        assert words in error


def test_a_full_disk_for_the_fetched_copy_is_an_error(fails: Fails, web: WebServer) -> None:
    """The message names the folder, and the variable that sets it."""
    web.pages["/a.csv"] = Page(DATA)
    with files_of_at_most(1 << 20):
        assert "spool (TMPDIR) cannot hold a copy of http://localhost" in fails(at(web.url))["error"]


def test_a_file_without_read_permission_is_an_error(fails: Fails, tmp_path: Path) -> None:
    """The message says that permission is denied."""
    (tmp_path / "closed.csv").touch(mode=0)
    with permissions_hold():
        assert "permission denied" in fails({"type": "csv", "path": str(tmp_path / "closed.csv")})["error"]


def zipped(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, DATA)
    return content.getvalue()


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        (("a.zip", zipped("a.csv", "b.csv")), {"type": "csv"}, "holds 2 tables, and one is read: a.csv, b.csv"),
        (("a.zip", zipped("a.csv")[:99]), {"type": "csv"}, "cannot be read as a zip archive"),
        (("a.csv", b"user_id,item_id\n1.0,1\n1.5,2\n"), {"type": "csv", "dtype": {"user_id": "int"}}, "data row 2: "),
        (("a.csv", DATA), {"type": "csv", "skip_rows": 1}, "has no columns user_id, item_id"),
        (
            ("a.jsonl", b'{"user_id": 1, "item_id": 2}\n{"user_id": 1\n'),
            {"type": "jsonl"},
            "line 2: Expecting ',' delimiter",
        ),
        (("a.jsonl.gz", gzip.compress(DATA)[:-99]), {"type": "jsonl"}, "a.jsonl.gz"),
        (("a.jsonl", b'{"user_id": 1}\n'), {"type": "jsonl"}, "has no column item_id"),
        (("a.jsonl", DATA), {"type": "jsonl"}, "line 1: Expecting value at character 1: 'user_id,item_id'"),
    ],
)
def test_faulty_files_end_the_training_with_their_fault(
    fails: Fails, tmp_path: Path, file: tuple[str, bytes], options: dict[str, Any], words: str
) -> None:
    """The error has the file and the place in it."""
    path = tmp_path / file[0]
    path.write_bytes(file[1])
    error = fails({"path": str(path), **options})["error"]
    assert words in error
    assert str(path) in error


def test_faulty_tables_of_a_lake_end_the_training_with_their_fault(fails: Fails, tmp_path: Path) -> None:
    """A folder with removed rows is no Parquet folder. A missing table, and metadata that is none, are named."""
    (tmp_path / "lake/_delta_log").mkdir(parents=True)
    (tmp_path / "a.metadata.json").write_text("{}")
    assert "set `type: delta`" in fails({"type": "parquet", "path": str(tmp_path / "lake")})["error"]
    for kind, name, words in (
        ("delta", "lake", "delta: "),
        ("delta", "absent", "absent does not exist"),
        ("iceberg", "absent.metadata.json", "absent.metadata.json does not exist"),
        ("iceberg", "a.metadata.json", "iceberg: "),
    ):
        assert words in fails({"type": kind, "path": str(tmp_path / name)})["error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"query": "FROM 'absent.csv'"}, "duckdb: IO Error"),
        ({"query": "SELECT 1; SELECT 2"}, "query: must be one SELECT, and is SELECT, SELECT"),
        ({"query": "FROM t", "database": "absent.duckdb"}, "absent.duckdb does not exist"),
        ({"query": "FROM t", "database": "shop.yaml"}, "duckdb: "),
        ({"query": "SELECT 'u' AS user_id"}, "the query's result has no column item_id"),
        ({"query": "SELECT k AS user_id, error('broken') AS item_id FROM range(9) t(k)"}, "duckdb: "),
    ],
)
def test_faulty_queries_of_duckdb_end_the_training_with_their_fault(
    fails: Fails, options: dict[str, Any], words: str
) -> None:
    """The error has DuckDB's own message."""
    assert words in fails({"type": "duckdb", **options})["error"]


class Front:
    """A proxy of a database that forwards `limit` bytes and then sends nothing more or closes the connection."""

    def __init__(self, address: tuple[str, int], limit: int, *, leaves: bool) -> None:
        self._address, self._limit, self._leaves = address, limit, leaves
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._done = threading.Event()
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Front:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._listener.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._address)
        threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
        with client, server:
            passed = 0
            while passed < self._limit and (data := server.recv(1 << 14)):
                client.sendall(data)
                passed += len(data)
            if not self._leaves:
                self._done.wait(60)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        """Forward until the client leaves. The database session must then end and release the table."""
        with suppress(OSError):
            while data := client.recv(1 << 14):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["postgres", "mysql"])
def admin(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Connect as the owner of the database."""
    import sqlalchemy

    variable = f"SVC_TEST_{request.param.upper()}_URL"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set; give the SQLAlchemy URL of a database whose user may create users")
    engine = sqlalchemy.create_engine(os.environ[variable], poolclass=sqlalchemy.pool.NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def reader(admin: Any) -> Iterator[Any]:
    """Return the URL of a user with access to one of two tables, which has 2,000 rows."""
    name = f"svc_{secrets.token_hex(4)}"
    postgres = admin.dialect.name == "postgresql"
    kind, identified = ("ROLE", "LOGIN PASSWORD") if postgres else ("USER", "IDENTIFIED BY")
    for table in (name, f"{name}_open"):
        admin.exec_driver_sql(f"CREATE TABLE {table} (user_id INTEGER, item_id INTEGER)")
    admin.exec_driver_sql(f"CREATE {kind} {name} {identified} '{SECRET}'")
    admin.exec_driver_sql(f"GRANT SELECT ON {name}_open TO {name}")
    admin.exec_driver_sql(f"INSERT INTO {name}_open VALUES {', '.join(f'({k}, 1)' for k in range(2000))}")
    yield admin.engine.url.set(username=name, password=SECRET)
    admin.exec_driver_sql(f"DROP TABLE {name}, {name}_open")
    admin.exec_driver_sql(f"DROP {kind} {name}")


def kill(admin: Any, user: str) -> None:
    """Terminate the user's session while it sends rows, as an administrator would."""
    find, end = {
        "postgresql": (
            f"SELECT pid FROM pg_stat_activity WHERE usename = '{user}' AND query LIKE 'FETCH%%'",
            "SELECT pg_terminate_backend",
        ),
        "mysql": (
            f"SELECT id FROM information_schema.processlist WHERE user = '{user}' AND info LIKE '%%item_id%%'",
            "KILL",
        ),
    }["postgresql" if admin.dialect.name == "postgresql" else "mysql"]
    deadline = time.monotonic() + 60
    while not (found := admin.exec_driver_sql(find).scalars().all()) and time.monotonic() < deadline:
        time.sleep(0.01)
    for session in found:
        admin.exec_driver_sql(f"{end} ({session})" if end.startswith("SELECT") else f"{end} {session}")


@pytest.mark.integration
@pytest.mark.parametrize("fault", ["denied", "locked out", "killed", "hung", "cut", "statement timeout", "no table"])
def test_faulty_databases_end_the_training_with_their_fault(
    fails: Fails, admin: Any, reader: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the fault, whether it comes before the first row or between rows."""
    postgres, name = admin.dialect.name == "postgresql", reader.username
    source = {"type": "sql", "dsn_env": DSN, "connect_timeout_seconds": 5, "query": MANY_ROWS.format(name)}
    url, words = reader, r"(?i)denied"
    if fault == "denied":
        source["query"] = f"SELECT user_id, item_id FROM {name}"
    elif fault == "locked out":
        admin.exec_driver_sql(f"ALTER ROLE {name} NOLOGIN" if postgres else f"ALTER USER {name} PASSWORD EXPIRE")
        words = r"not permitted to log in|[Pp]assword has expired|must SET PASSWORD"
    elif fault == "no table":
        source["query"] = "SELECT user_id, item_id FROM svc_absent"
        words = "svc_absent"
    elif fault == "statement timeout":
        source |= {"query": f"SELECT {'pg_' if postgres else ''}sleep(60) AS user_id", "statement_timeout_seconds": 1}
        words = "statement timeout|max_statement_time"
    elif fault == "killed":
        killer = threading.Thread(target=kill, args=(admin, name))
        killer.start()
        words = "administrator command|Lost connection|terminated|killed|closed"
    else:
        monkeypatch.setattr("svc.sources.sql.GRACE_S", 0)
        monkeypatch.setattr("svc.sources.sql_dialects.GRACE_S", 0)
        source["statement_timeout_seconds"] = 2 if fault == "hung" else 60
        words = "sent nothing for 2 s|timed out" if fault == "hung" else "closed|[Ll]ost connection"
    if fault not in ("hung", "cut"):
        monkeypatch.setenv(DSN, url.render_as_string(hide_password=False))
        error = fails(source)["error"]
        if fault == "killed":
            killer.join()
    else:
        with Front((url.host, url.port), limit=1 << 20, leaves=fault == "cut") as front:
            reader = url.set(host="127.0.0.1", port=front.port)
            monkeypatch.setenv(DSN, reader.render_as_string(hide_password=False))
            error = fails(source)["error"]
    assert re.search(words, error), error


@pytest.mark.integration
def test_a_database_with_a_certificate_of_another_host_is_refused(
    fails: Fails, authority: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's certificate is compared with the host if the URL asks for it."""
    context = tls_context(authority.issue_cert("other.example"))

    def answer(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, suppress(OSError):
            peer.recv(8)  # the request for TLS
            peer.sendall(b"S")
            with context.wrap_socket(peer, server_side=True) as secured:
                secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        options = f"sslmode=verify-full&sslrootcert={os.environ['SSL_CERT_FILE']}&connect_timeout=5"
        url = f"postgresql+psycopg://svc:{SECRET}@localhost:{listener.getsockname()[1]}/test?{options}"
        monkeypatch.setenv(DSN, url)
        error = fails({"type": "sql", "dsn_env": DSN, "query": "SELECT 1"})["error"]
        assert "other.example" in error
        assert "does not match host name" in error


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # the clients leave connections open
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_refusal_of_an_object_store_names_object_and_status(
    fails: Fails, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other faults are in tests/artifact/test_store_faults.py."""
    with faulty_server(scheme, "403") as endpoint:
        ENVIRONMENTS[scheme](monkeypatch, endpoint)
        monkeypatch.setenv("SVC_HTTP_TIMEOUT_SECONDS", "20")
        error = fails({"type": "parquet", "path": f"{scheme}://bucket/sales.parquet"})["error"]
    assert f"{scheme}://bucket/sales.parquet cannot be read: permission denied, status 403" in error
    assert "check the credentials" in error


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"deny_query": True}, "Access Denied"),
        ({"rest_status": 401}, "401|[Uu]nauth|[Cc]redentials"),
        ({"rest_status": 503}, "503|[Uu]navailable|Timeout"),
        ({"hang_rest": True}, "(?i)time"),
        ({"cut_for_good": True}, "cut"),
        ({"hang_storage": True}, "silent for more than 1 s"),
    ],
)
def test_faults_of_bigquery_end_the_training_with_their_reason(
    fails: Fails, bigquery: BigQuery, fault: dict[str, Any], words: str
) -> None:
    """The error names the fault, whether REST fails before the first row or the Storage Read API between rows."""
    for name, value in fault.items():
        setattr(bigquery, name, value)
    error = fails({"type": "bigquery", "query": "SELECT * FROM t", "project": "test"})["error"]
    assert re.search(words, error), error
