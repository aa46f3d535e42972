"""Variables in a file: the file that SVC_ENV_FILE names, or `keys.env` beside the recipes of a developer.

A file has lines `NAME=value`, blank lines and lines that begin with `#`. Only names with svc's prefix are used, because
other variables would also reach the processes that a command starts. Variables of the environment are never replaced,
unless they are empty.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from svc.errors import ConfigError
from svc.local_paths import absolute

MAX_BYTES = 1 << 20
VARIABLE = "SVC_ENV_FILE"
DEFAULT_NAME = "keys.env"
PREFIX = "SVC_"
_LINE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=(?![\"'])\S*")
_DEVELOPMENT = frozenset({"", "development", "dev", "test"})


def key_list(inline: str, file: str | None, variable: str) -> tuple[str, str]:
    """Return the entries, separated by commas, of `variable` or of the file that `<variable>_FILE` names, and its name.

    `inline` is the value of the variable, "" if it is not set. In a file, line ends separate entries too. Blank lines
    and text behind a `#` are ignored. Raises ConfigError if both are set, or if the file cannot be read, has no
    entry or is larger than MAX_BYTES. The message never shows an entry.
    """
    if file is None:
        return inline, variable
    if inline:
        raise ConfigError(f"{variable} and {variable}_FILE are both set: keep one")
    try:
        text = read_named_file(f"{variable}_FILE", file).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{variable}_FILE: {file} is not UTF-8 text") from None
    lines = [line.partition("#")[0].strip().strip(",") for line in text.splitlines()]
    if not any(lines):
        raise ConfigError(f"{variable}_FILE: {file} has no entry")
    return ",".join(filter(None, lines)), f"{variable}_FILE: {file}"


def read_named_file(variable: str, path: str, *, is_secret: bool = False) -> bytes:
    """Return the content of the file that an environment variable names.

    Raises ConfigError if the file cannot be read or is larger than MAX_BYTES, or if it is secret and its group or
    others may read it.
    """
    try:
        with Path(path).open("rb") as file:
            # The mode of the open file, because its path may lead to another one by now.
            if is_secret and os.fstat(file.fileno()).st_mode & (stat.S_IRGRP | stat.S_IROTH):
                raise ConfigError(f"{variable}: others may read {path}: give it mode 600")
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{variable}: {path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{variable}: {path} is larger than {MAX_BYTES} bytes, the largest permitted size")
    return content


class Environment(dict[str, str]):
    """Environment variables by name, joined with the variables of a file.

    `file` is that file, or None. `overridden` are the variables of the file whose values are not used, because the
    environment has another value or the other form, with or without `_FILE`.
    """

    file: Path | None = None
    overridden: tuple[str, ...] = ()


def environment(recipes: Path | None = None, environ: Mapping[str, str] | None = None) -> Environment:
    """Return the environment, joined with the variables of the file.

    `recipes` is the folder of the recipes that a command works on. Without SVC_ENV_FILE, the file is `keys.env` in that
    folder or beside it, if one exists. If `recipes` is None, or if SVC_ENV is set and is none of `development`, `dev`
    and `test`, there is no such file. Raises ConfigError for a file that is named but missing, out of reach, open to
    other users, or malformed.
    """
    environ = os.environ if environ is None else environ
    path = _path(recipes, environ)
    if path is None:
        return Environment(environ)
    own = {name: value for name, value in environ.items() if value}  # the file may set what is empty
    # SVC_API_KEYS and SVC_API_KEYS_FILE exclude each other, so each of them in the environment hides both in the file.
    lists_set = {name.removesuffix("_FILE") for name in own if name != VARIABLE}
    in_file = _variables(path)
    from_file = {name: value for name, value in in_file.items() if name.removesuffix("_FILE") not in lists_set}
    joined = Environment({**environ, **from_file, **own})
    joined.file = path
    joined.overridden = tuple(name for name, value in in_file.items() if joined.get(name) != value)
    return joined


def _path(recipes: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = environ.get(VARIABLE)
    if named:
        if not _exists(Path(named)):
            raise ConfigError(f"{VARIABLE}: {named} does not exist")
        return Path(named)
    if recipes is None or environ.get("SVC_ENV", "").lower() not in _DEVELOPMENT:
        return None
    return next((path for path in _candidates(absolute(recipes)) if _exists(path)), None)


def keys_hint(artifact: str) -> str:
    """Return a note that names the `keys.env` in the folder of a local artifact or beside that folder, or no text.

    The file is not read, because keys that come with an artifact prove nothing about the artifact.
    """
    folder = absolute(Path(artifact.removeprefix("file://"))).parent
    key_file = next((path for path in _candidates(folder) if path.is_file()), None)
    return "" if key_file is None else f"; if {key_file} holds them, set {VARIABLE}={key_file}"


def _candidates(folder: Path) -> tuple[Path, Path]:
    return folder / DEFAULT_NAME, folder.parent / DEFAULT_NAME


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(f"{path} cannot be accessed: {error.strerror}") from None


def _variables(path: Path) -> dict[str, str]:
    try:
        lines = read_lines(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    pairs = (line.split("=", 1) for line in lines if _LINE.fullmatch(line) and line.startswith(PREFIX))
    return {name: value for name, value in pairs if name != VARIABLE}


def _is_private(status: os.stat_result) -> bool:
    """Return whether no stranger on this machine can read the file.

    Either only the owner has access, or root owns the file and a group of this process may read it. For a process of
    root any group will do, because root makes keys for services and is in none of their groups.
    """
    open_to = status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ours = os.geteuid() == 0 or status.st_gid in {os.getegid(), *os.getgroups()}
    return not open_to or (open_to == stat.S_IRGRP and status.st_uid == 0 and ours)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file of variables.

    Raises ConfigError for a malformed file, and for a file that others may read. Raises OSError if it cannot be read.
    """
    status = path.stat()
    # Reading a named pipe would wait for its writer for ever.
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a regular file")
    if not _is_private(status):
        raise ConfigError(f"{path} is open to other users of this machine: run chmod 600 {path}")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#") and not _LINE.fullmatch(line):
            raise ConfigError(
                f"{path} is not a file of variables: line {number} is not NAME=value without blanks, quotes and export"
            )
    return lines
