"""Lists of keys from a variable or from the file that another variable names."""

from __future__ import annotations

from pathlib import Path

from svc.errors import ConfigError

MAX_BYTES = 1 << 20


def key_list(inline: str, file: str | None, variable: str) -> str:
    """Return the entries, separated by commas, of `variable` or of the file that `<variable>_FILE` names.

    In a file each line holds entries too. Blank lines and text behind a `#` are ignored. Raises ConfigError, which
    never shows an entry.
    """
    if file is None:
        return inline
    if inline:
        raise ConfigError(f"{variable} and {variable}_FILE are both set: keep one")
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{variable}_FILE: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{variable}_FILE: {file} is not UTF-8 text") from None
    lines = (line.partition("#")[0].strip().strip(",") for line in text.splitlines())
    return ",".join(line for line in lines if line)
