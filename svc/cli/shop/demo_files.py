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
BOOKS = """\
# Recommends books to readers. `svc train` writes ../artifacts/books.svc, `svc serve` answers from it.
name: books
source: {type: csv, path: ../data/purchases.csv}
schema: {user_column: user_id, item_column: item_id, time_column: ts, time_unit: s}
item_metadata:
  source: {type: csv, path: ../data/books.csv}
  id_column: item_id
  fields: [title, author, categories, price, year]
  filter_fields: [{name: categories, kind: multi_label}, {name: year, kind: numerical}]
training:
  algorithms: [IALS, CosineKNN, RP3beta, TopPop]
  metric: ndcg
  cutoff: 20
  n_trials: 12
  split: {scheme: time_user, heldout_ratio: 0.2}
output: {path: ../artifacts/books.svc, versioning: append_sha}
"""
_BOOKS_COLD_START = """\
# The same shop, with features: it also answers for readers and books that training never saw, and recommends new books.
name: books-cold-start
source: {type: csv, path: ../data/purchases.csv}
schema: {user_column: user_id, item_column: item_id, time_column: ts, time_unit: s}
features:
  item:
    source: {type: csv, path: ../data/books.csv}
    id_column: item_id
    columns:
      - {name: categories, kind: multi_label, delimiter: "|"}
      - {name: author, kind: categorical, min_frequency: 3}
      - {name: year, kind: numerical}
  user:
    source: {type: csv, path: ../data/readers.csv}
    id_column: user_id
    columns:
      - {name: age_band, kind: categorical}
      - {name: region, kind: categorical}
item_metadata:
  source: {type: csv, path: ../data/books.csv}
  id_column: item_id
  fields: [title, author, categories]
training:
  algorithms: [IALS]
  metric: ndcg
  cutoff: 20
  n_trials: 4
  split: {scheme: time_user, heldout_ratio: 0.2}
output: {path: ../artifacts/books-cold-start.svc, versioning: append_sha}
serving:
  new_items: {source: {type: csv, path: ../data/new-books.csv}, min_share: 0.2, max_share: 0.2}
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """`environment` is what the commands need; `api_key` what a client sends as X-API-Key."""

    environment: dict[str, str]
    api_key: str


def prepare(folder: Path) -> Keys:
    """Write data and recipes. Keys of an earlier demo in the folder stay; a folder of something else is refused."""
    _check_free(folder)
    for name in ("data", "recipes", "artifacts"):
        _make_folder(folder / name)
    keys = _keys(folder / KEYS)

    from svc.cli.shop.demo_data import make_shop, write_shop

    write_shop(make_shop(), folder / "data")
    (folder / "recipes" / "books.yaml").write_text(BOOKS, encoding="utf-8")
    (folder / "recipes" / "books-cold-start.yaml").write_text(_BOOKS_COLD_START, encoding="utf-8")
    return keys


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
