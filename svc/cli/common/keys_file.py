"""The file of keys that `svc keygen --write` makes: lines `NAME=value`, closed to other users of the machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from svc.atomic_write import replace_file
from svc.env_file import read_lines
from svc.errors import ConfigError, UsageError


def add_entry(path: Path, variable: str, entry: str) -> None:
    """Append `entry`, which begins with its kid, to the list of `variable`; the file is made if it is missing.

    Entries that are there never change, so the first signing key keeps signing. Raises UsageError for a kid that is
    there, ConfigError for a file of another form, one that others may read, and one that cannot be written.
    """
    try:
        before = path.stat() if path.exists() else None
        lines = read_lines(path) if before else []
        _add(lines, variable, entry, path)
        mode = stat.S_IMODE(before.st_mode) if before else 0o600
        replace_file(path.resolve(), "".join(f"{line}\n" for line in lines).encode(), mode=mode)
        if before:
            os.chown(path, -1, before.st_gid)
    except ConfigError as error:
        raise ConfigError(f"--write: {error.message}") from None
    except OSError as error:
        raise ConfigError(f"--write: {path} cannot be written: {error.strerror}") from None


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
