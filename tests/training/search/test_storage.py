"""Valid and invalid values of `training.storage_path`, the advice in its errors, and owners of trials."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from svc.errors import StoragePathUnusable
from svc.training.search.storage import is_dead, locate, open_storage, own_identity, preflight
from tests.privileges import permissions_hold


def test_an_empty_path_means_memory(tmp_path: Path) -> None:
    """The search then has no shared storage."""
    location = preflight("", tmp_path)
    assert not location.shared
    assert not open_storage(location).shared


@pytest.mark.parametrize("form", ["search.db", "sqlite:///search.db"])
def test_a_path_is_a_sqlite_file_beside_the_recipe(form: str, tmp_path: Path) -> None:
    """A bare path and a URL mean the same file. The check leaves no file behind."""
    location = preflight(form, tmp_path)
    assert location.path == tmp_path / "search.db"
    assert list(tmp_path.iterdir()) == []
    open_storage(location).close()
    assert (tmp_path / "search.db").exists()


def test_four_slashes_are_an_absolute_path(tmp_path: Path) -> None:
    """The fourth slash begins an absolute path, as in SQLAlchemy's URLs."""
    assert locate(f"sqlite:///{tmp_path}/x{{1}}.db", Path("/elsewhere")).path == tmp_path / "x{1}.db"


def test_braces_in_a_path_are_no_placeholders(tmp_path: Path) -> None:
    """Optuna formats its URL, but a folder may have any name."""
    open_storage(preflight("a{b}.db", tmp_path)).close()
    assert (tmp_path / "a{b}.db").exists()


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("postgres://h/db", r"dialect postgres: .*postgresql\+psycopg://.*'\.\[postgres\]'"),
        ("postgresql://h/db", r"dialect postgresql: .*postgresql\+psycopg://.*'\.\[postgres\]'"),
        ("postgresql+psycopg2://h/db", r"postgresql\+psycopg://"),
        ("mysql://h/db", r"dialect mysql: .*mysql\+pymysql:// or mariadb\+pymysql://.*'\.\[mysql\]'"),
        ("mariadb+mysqldb://h/db", r"dialect mariadb: .*mariadb\+pymysql://"),
        ("oracle://h/db", r"'oracle' is not supported.*sqlite://.*mysql\+pymysql://"),
        ("redis://h", "not supported"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("postgresql+psycopg://me:hidden@h/db", "must not stand in the recipe.*PGPASSFILE"),
        ("mysql+pymysql://h/db?password=hidden", "must not stand in the recipe.*read_default_file"),
        ("mysql+pymysql://me:hid@den@h/db", "must not stand in the recipe"),
    ],
)
def test_wrong_spellings_are_refused_with_the_right_one(url: str, advice: str, tmp_path: Path) -> None:
    """The message has the dialect, the right spelling and the extra, but never a password."""
    with pytest.raises(StoragePathUnusable, match=advice) as caught:
        locate(url, tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("storage_path_unusable", 8)
    assert "hid" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "extra"), [("postgresql+psycopg://h/db", "postgres"), ("mariadb+pymysql://h/db", "mysql")]
)
def test_a_missing_driver_names_its_extra(
    url: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check comes before any connection or data."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoragePathUnusable, match=rf"'\.\[{extra}\]'"):
        locate(url, tmp_path)


def test_files_that_cannot_be_databases_are_refused(tmp_path: Path) -> None:
    """A folder, a file of another format, and a file in a missing or closed folder are refused."""
    (tmp_path / "text.db").write_text("no database, but long enough to be looked at " * 30)
    for path, reason in ((".", "is a folder"), ("text.db", "cannot be used"), ("no/where.db", "does not exist")):
        with pytest.raises(StoragePathUnusable, match=reason):
            preflight(path, tmp_path)
    (tmp_path / "closed").mkdir(mode=0o600)
    with permissions_hold(), pytest.raises(StoragePathUnusable, match=r"cannot be used: .*Permission denied"):
        preflight("closed/a.db", tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize("variable", ["SVC_TEST_POSTGRES_URL", "SVC_TEST_MYSQL_URL"])
def test_the_check_connects_to_a_database_server(variable: str, tmp_path: Path) -> None:
    """An unknown database or a closed port is an error that names it."""
    url = os.environ.get(variable)
    if not url:
        pytest.skip(f"{variable} is not set")
    assert preflight(url, tmp_path).shared
    words = rf"dialect {re.escape(url.partition(':')[0])}: the database does not answer: .* Credentials are given in "
    with pytest.raises(StoragePathUnusable, match=words):
        preflight(url.rpartition("/")[0] + "/no_such_database_here", tmp_path)


OPEN = """
import sys
import subprocess
import sys
from pathlib import Path
from svc.training.search.storage import open_storage, preflight
open_storage(preflight("shared.db", Path(sys.argv[1]))).close()
"""


@pytest.mark.system
def test_processes_that_start_together_create_the_tables_once(tmp_path: Path) -> None:
    """Each process checks, opens and closes a file that does not exist at first."""
    processes = [
        subprocess.Popen([sys.executable, "-c", OPEN, str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    errors = [process.communicate(timeout=150)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    assert (tmp_path / "shared.db").stat().st_size > 0


@pytest.mark.system
def test_a_process_counts_as_dead_after_its_end() -> None:
    """A zombie counts as dead. A reused process id has another start time."""
    script = "from svc.training.search.storage import own_identity as o; print(o(), flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        identity = process.stdout.readline().strip()
        assert not is_dead(identity)
        assert identity != own_identity()
    process.wait()
    assert is_dead(identity)


def test_one_process_has_one_identity() -> None:
    """The identity of a process is constant. The same process id with another start time is another process."""
    own = own_identity()
    assert own == own_identity()
    assert not is_dead(own)
    host, pid, start = own.split("|")
    assert is_dead(f"{host}|{pid}|{int(start) + 1}")


def test_processes_of_other_hosts_never_count_as_dead() -> None:
    """Trials of other hosts are not released, and neither are trials with an invalid identity."""
    host, pid, start = own_identity().split("|")
    assert not is_dead(f"{host}x|{pid}|{int(start) + 1}")
    assert not is_dead("")
    assert not is_dead(f"{host}|none|")
