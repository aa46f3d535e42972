"""The demo's folder: data, two recipes and development keys.

svc-demo/
  data/books.csv new-books.csv readers.csv purchases.csv
  recipes/books.yaml books-cold-start.yaml
  artifacts/            what svc train writes
  keys.env              signing key, which every command finds; API key entry and the API key itself, which only the
                        demo's own server asks for. Readable by its owner only
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from svc.errors import ConfigError, UsageError

KEYS = "keys.env"
RECIPES = ("books", "books-cold-start")
FILES = Path(__file__).with_name("files")
"""Data and recipes as the demo writes them; `docs/demo_shop.py` drew the data."""


@dataclass(frozen=True, slots=True)
class Keys:
    """`environment` is what the commands need; `api_key` what a client sends as X-API-Key."""

    environment: dict[str, str]
    api_key: str


def prepare(folder: Path, *, force: bool = False) -> Keys:
    """Write data and recipes, and keys if the folder has none.

    Raises UsageError if the folder holds something else, or, unless `force`, a file that was changed since.
    """
    _check_free(folder)
    shipped = {folder / path.relative_to(FILES): path.read_bytes() for path in FILES.rglob("*.*")}
    changed = [path for path, data in shipped.items() if path.exists() and path.read_bytes() != data]
    if changed and not force:
        raise UsageError(
            f"--folder: {', '.join(map(str, sorted(changed)))} was changed and stays as it is: "
            "name another folder, or overwrite it with --force"
        )
    for path, data in shipped.items():
        _make_folder(path.parent)
        path.write_bytes(data)
    _make_folder(folder / "artifacts")
    return _keys(folder / KEYS)


def _check_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--folder: {folder} is a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / KEYS).is_file():
        raise UsageError(f"--folder: {folder} holds something that is no svc demo: name an empty or a new folder")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--folder: {folder} cannot be made: {error.strerror}") from None


def _keys(path: Path) -> Keys:
    if not path.is_file():
        _write_keys(path)
    lines = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    values = {name: value for name, _, value in lines}
    try:
        listed = values.get("SVC_API_KEYS") or values["DEMO_API_KEYS"]
        return Keys({"SVC_SIGNING_KEYS": values["SVC_SIGNING_KEYS"], "SVC_API_KEYS": listed}, values["DEMO_API_KEY"])
    except KeyError as missing:
        raise ConfigError(f"{path} lacks {missing.args[0]}: delete the file to get new keys") from None


def _write_keys(path: Path) -> None:
    from svc.serving.api.access.api_keys import hash_api_key, new_api_key

    api_key = new_api_key()
    text = (
        f"SVC_SIGNING_KEYS=demo:{secrets.token_hex(32)}\n"
        f"DEMO_API_KEYS=demo:{hash_api_key(api_key)}\n"
        f"DEMO_API_KEY={api_key}\n"
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
