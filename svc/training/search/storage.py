"""Storage of a search's trials: memory, a SQLite file, PostgreSQL or MariaDB/MySQL.

`preflight` refuses every unusable `training.storage_path` before any data is read. The path must not contain
credentials, because it is part of the recipe, and errors and logs show it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from svc import install_command
from svc.errors import StoragePathUnusable
from svc.training.search import budget

HEARTBEAT_S = 10
GRACE_S = 60
"""HEARTBEAT_S: seconds between two heartbeats of a process. GRACE_S: seconds without a heartbeat after which a process
counts as dead. The main process does not train, so only a slow database delays its heartbeat.
"""

_OPENING_PAUSES_S = (0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses between attempts to create Optuna's tables. Processes that start together may conflict, because Optuna creates
the tables one by one.
"""

_SECRET_PARAMETERS = frozenset({"password", "passwd", "pwd"})


@dataclass(frozen=True, slots=True)
class _Server:
    """A kind of database server.

    `schemes` are the accepted URL schemes, `module` is their driver, and `extra` is the extra of svc that installs the
    driver. `credentials` tells users how to give a password.
    """

    schemes: tuple[str, ...]
    module: str
    extra: str
    credentials: str


_POSTGRES = _Server(
    ("postgresql+psycopg",),
    "psycopg",
    "postgres",
    "a password file (PGPASSFILE, or ~/.pgpass), PGSERVICEFILE, or PGUSER and PGPASSWORD in the environment",
)
_MYSQL = _Server(
    ("mysql+pymysql", "mariadb+pymysql"),
    "pymysql",
    "mysql",
    "an option file: append ?read_default_file=~/.my.cnf, with user and password under [client]",
)
_SERVERS = {scheme: server for server in (_POSTGRES, _MYSQL) for scheme in server.schemes}
_NEAREST = {"postgres": _POSTGRES, "postgresql": _POSTGRES, "mysql": _MYSQL, "mariadb": _MYSQL}


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """An accepted `training.storage_path`.

    `url` is None for memory. It holds no password. `path` is the file of a SQLite database, and None otherwise.
    """

    url: str | None
    path: Path | None = None

    @property
    def shared(self) -> bool:
        return self.url is not None


def locate(storage_path: str, base_dir: Path) -> StorageLocation:
    """Parse `storage_path` without opening it.

    A bare path is a SQLite file, relative to `base_dir`. Raise StoragePathUnusable for a wrong spelling, credentials in
    the URL, or a missing driver.
    """
    if not storage_path:
        return StorageLocation(None)
    if "://" not in storage_path:
        return _file_location(Path(storage_path).expanduser(), base_dir)
    scheme, _, rest = storage_path.partition("://")
    if scheme == "sqlite":
        name = rest.removeprefix("/")
        if not name or name.startswith(":memory:"):
            raise _refusal("sqlite", "name a file, as in sqlite:///searches.db")
        return _file_location(Path(name), base_dir)
    server = _SERVERS.get(scheme)
    if server is None:
        raise _wrong_scheme(scheme)
    _check_no_credentials(storage_path, scheme, server)
    if importlib.util.find_spec(server.module) is None:
        command = install_command(server.extra)
        raise _refusal(scheme, f"the driver module {server.module!r} is not installed: {command}")
    return StorageLocation(storage_path)


def preflight(storage_path: str, base_dir: Path) -> StorageLocation:
    """Parse `storage_path`, and check that the file can be written or the server answers.

    A missing file is not created. Raise StoragePathUnusable if the path is wrong or a check fails.
    """
    location = locate(storage_path, base_dir)
    if location.path is not None:
        _check_file(location.path)
    elif location.url is not None:
        _check_server(location.url)
    return location


class StudyStorage:
    """An opened storage, `shared` if other processes may use it at the same time.

    A heartbeat is a counter in a trial. A process counts as dead if the counter of its trial has not changed for
    GRACE_S by this process's clock, so the clocks of hosts need not agree. A process of the same host counts as dead as
    soon as it has ended.
    """

    def __init__(self, location: StorageLocation, backend: Any) -> None:
        self.shared = location.shared
        self.backend = backend
        self._last_beat = time.monotonic()
        self._watched: dict[int, tuple[int, float]] = {}

    def close(self) -> None:
        """Close the connections of a shared storage.

        Call it after the last trial of this process has ended.
        """
        if self.shared:
            self.backend.remove_session()
            self.backend.engine.dispose()

    def new_trial(self, study: Study, attributes: Mapping[str, Any]) -> Trial:
        """Create a running trial with `attributes` in one step, because a process can be killed between two steps."""
        template = create_trial(state=TrialState.RUNNING, user_attrs=dict(attributes))
        study_id = self.backend.get_study_id_from_name(study.study_name)
        trial_id = self.backend.create_new_trial(study_id, template_trial=template)
        study.get_trials(deepcopy=False)  # refreshes the cache of Study: it misses trials that the backend created
        return Trial(study, trial_id)

    def set_params(
        self, trial: Trial, params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
    ) -> None:
        for name, distribution in distributions.items():
            internal = distribution.to_internal_repr(params[name])
            self.backend.set_trial_param(trial._trial_id, name, internal, distribution)

    def beat(self, trials: Sequence[Trial]) -> None:
        """Increment the heartbeat counters of `trials`, at most once in HEARTBEAT_S."""
        if not self.shared or time.monotonic() < self._last_beat + HEARTBEAT_S:
            return
        self._last_beat = time.monotonic()
        for trial in trials:
            trial.set_user_attr(budget.BEAT, trial.user_attrs.get(budget.BEAT, 0) + 1)

    def release_dead_trials(self, study: Study) -> None:
        """Mark the running trials of dead processes as failed, which frees their places in the budget."""
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Optuna's own heartbeat is experimental, and would notice a killed process of this host only after its
            # grace period.
            if is_dead(trial.user_attrs.get(budget.OWNER, "")) or self._is_silent(trial):
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _is_silent(self, trial: FrozenTrial) -> bool:
        beat, now = int(trial.user_attrs.get(budget.BEAT, 0)), time.monotonic()
        last, since = self._watched.get(trial.number, (-1, now))
        if beat != last:
            self._watched[trial.number] = (beat, now)
            return False
        return now - since > GRACE_S


def open_storage(location: StorageLocation) -> StudyStorage:
    """Connect to the storage, and create the tables of a new database.

    Raise StoragePathUnusable if this fails several times in a row.
    """
    if location.url is None:
        return StudyStorage(location, optuna.storages.InMemoryStorage())
    # A trial may outlast the idle time that a database or firewall allows, so each connection is tested before its use.
    engine: dict[str, Any] = {"pool_pre_ping": True}
    if location.path is not None:
        # SQLite allows one writer at a time, and Python waits only 5 s for it by default.
        engine["connect_args"] = {"timeout": 60}
    # Braces of a path are doubled, because Optuna passes the URL to str.format.
    url = location.url.replace("{", "{{").replace("}", "}}")
    pauses_s = iter(_OPENING_PAUSES_S)
    while True:
        try:
            return StudyStorage(location, optuna.storages.RDBStorage(url, engine_kwargs=engine))
        except Exception as error:
            pause_s = next(pauses_s, None)
            if pause_s is None:
                raise _unreachable(location.url, error) from None
            # Of random length, so that processes that have collided do not collide again.
            time.sleep(pause_s * random.uniform(0.5, 1.5))


def _refusal(dialect: str, text: str) -> StoragePathUnusable:
    return StoragePathUnusable(f"training.storage_path: dialect {dialect}: {text}")


def _file_location(path: Path, base_dir: Path) -> StorageLocation:
    absolute = (base_dir / path).absolute()
    return StorageLocation(f"sqlite:///{absolute}", absolute)


def _wrong_scheme(scheme: str) -> StoragePathUnusable:
    dialect = scheme.partition("+")[0]
    server = _NEAREST.get(dialect)
    if server is None:
        allowed = ", ".join(f"{name}://" for name in ("sqlite", *_SERVERS))
        return StoragePathUnusable(
            f"training.storage_path: dialect {dialect or scheme!r} is not supported: give a path (a SQLite file) or a "
            f"URL starting with one of {allowed}"
        )
    right = " or ".join(f"{name}://" for name in server.schemes)
    advice = f"write {right}, and install the extra: {install_command(server.extra)}"
    return _refusal(dialect, f"{scheme}:// does not name the driver that svc uses: {advice}")


def _check_no_credentials(url: str, scheme: str, server: _Server) -> None:
    parts = urlsplit(url)
    names = {name.lower() for name, _value in parse_qsl(parts.query, keep_blank_values=True)}
    if parts.password is not None or names & _SECRET_PARAMETERS or url.count("@") > 1 or "@" in parts.path:
        raise _refusal(scheme, f"a password must not stand in the recipe. Give it in {server.credentials}.")


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise _refusal("sqlite", f"{path} is a folder: name a file in it")
        if not (folder := path.parent).is_dir():
            raise _refusal("sqlite", f"the folder {folder} does not exist: make it first")
        if not path.exists():  # SQLite creates the file when it is opened, and another process may be doing so now
            if not os.access(folder, os.W_OK | os.X_OK):
                raise _refusal("sqlite", f"the folder {folder} cannot be written")
            return
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
            connection.execute("BEGIN IMMEDIATE")  # takes the write lock, which fails for a file that is read-only
            connection.rollback()
    except (sqlite3.Error, PermissionError) as error:
        raise _refusal("sqlite", f"{path} cannot be used: {error}") from None


def _check_server(url: str) -> None:
    # needed only for a database server
    import sqlalchemy

    try:
        engine = sqlalchemy.create_engine(url)
        try:
            with engine.connect() as connection:
                connection.execute(sqlalchemy.text("SELECT 1"))
        finally:
            engine.dispose()
    except Exception as error:
        raise _unreachable(url, error) from None


def _unreachable(url: str, error: Exception) -> StoragePathUnusable:
    """Return an error with the first line of the driver's message, without the URL.

    The other lines of an SQLAlchemy error are the SQL statement and a link.
    """
    scheme = url.partition("://")[0]
    cause = str(getattr(error, "orig", None) or error).splitlines()[:1]
    server = _SERVERS.get(scheme)
    help_ = f" Credentials are given in {server.credentials}." if server else ""
    return _refusal(scheme, f"the database does not answer: {''.join(cause)[:300]}.{help_}")


def own_identity() -> str:
    """Return `<host>|<pid>|<start>`, which stays unique when a pid is reused.

    The host part also names the boot and the pid namespace, so that containers of one machine differ.
    """
    return f"{_host()}|{os.getpid()}|{_start_time(os.getpid())}"


def is_dead(identity: str) -> bool:
    """Return True if the process with this `own_identity` ran on this host and has ended.

    Return False for processes of other hosts, because they cannot be looked up.
    """
    host, _, process = identity.partition("|")
    pid, _, start = process.partition("|")
    return host == _host() and pid.isdigit() and _start_time(int(pid)) != start


def _host() -> str:
    boot = _read(Path("/proc/sys/kernel/random/boot_id"))
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return "/".join(part for part in (platform.node(), boot, namespace) if part)


def _start_time(pid: int) -> str:
    """Return the start of process `pid` in clock ticks since boot, or an empty text if no such process runs."""
    stat = _read(Path(f"/proc/{pid}/stat"))
    # The second field is the program's name in parentheses, and the name itself may contain spaces and parentheses.
    after_name = stat.rpartition(")")[2].split()
    if len(after_name) < 20 or after_name[0] == "Z":  # a zombie has ended, but its parent has not waited for it
        return ""
    # The start time is field 22 of proc_pid_stat(5), and this list begins with field 3.
    return after_name[19]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
