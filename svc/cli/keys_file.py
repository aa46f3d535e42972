"""The file of keys that `svc keygen --write` makes: lines `NAME=value`, readable by its owner only."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from svc.atomic_write import replace_file
from svc.errors import ConfigError, UsageError

_LINE = re.compile(r"[A-Z][A-Z0-9_]*=\S*")


def add_entry(path: Path, variable: str, entry: str) -> None:
    """Append `entry`, which begins with its kid, to the list of `variable`; the file is made if it is missing.

    Entries that are there never change, so the first signing key keeps signing. Raises UsageError for a kid that is
    there, ConfigError for a file of another form, one that others may read, and one that cannot be written.
    """
    try:
        lines = _lines(path)
        _add(lines, variable, entry, path)
        replace_file(path.resolve(), "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
    except OSError as error:
        raise ConfigError(f"--write: {path} cannot be written: {error.strerror}") from None


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ConfigError(f"--write: {path} is no regular file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"--write: {path} is open to other users of this machine: run chmod 600 {path}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"--write: {path} is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#") and not _LINE.fullmatch(line):
            raise ConfigError(f"--write: {path} is no file of keys: line {number} is not NAME=value")
    return lines


def _add(lines: list[str], variable: str, entry: str, path: Path) -> None:
    kid = entry.partition(":")[0]
    for index, line in enumerate(lines):
        name, _, listed = line.partition("=")
        if name == variable:
            if kid in (listed_entry.partition(":")[0] for listed_entry in listed.split(",")):
                raise UsageError(f"--kid: {path} has a key {kid!r} in {variable} already: choose another kid")
            lines[index] = f"{variable}={listed},{entry}" if listed else f"{variable}={entry}"
            return
    lines.append(f"{variable}={entry}")
