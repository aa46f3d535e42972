"""Lets `pytest -k word` skip test modules that have no such test, without importing them.

Importing all modules takes ten times as long as most selections run. Each run that collects whole modules therefore
notes the names of their tests in pytest's cache. A module is skipped if it has not changed since and no noted name
contains a word of the expression; a folder is skipped, with its conftest.py, if all its modules are. Names that
another module provides as parameters are noted as they were in the last run that imported the module.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

CACHE_KEY = "svc/test_names"
WORD = re.compile(r"[^\s()]+")
OPERATORS = {"and", "or"}

Index = dict[str, list[Any]]
"""Time of change in ns, size in bytes, and names in lower case of each module, by its path from the root."""


def words_of(expression: str) -> list[str]:
    """Return words of which a selected test has at least one, in lower case, or none if any module may have one."""
    words = [word.lower() for word in WORD.findall(expression)]
    return [] if "not" in words else [word for word in words if word not in OPERATORS]


class KeywordIndex:
    """A plugin of pytest, registered once for each process that collects."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._words = words_of(config.option.keyword)
        self._index: Index = {}

    def pytest_sessionstart(self) -> None:
        cache = self._cache()
        if self._words and cache is not None:
            self._index = cache.get(CACHE_KEY, {})

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Return True for an unchanged module whose noted names have none of the words, or a folder of such modules."""
        if not self._index:
            return None
        modules = [*collection_path.rglob("test_*.py")] if collection_path.is_dir() else [collection_path]
        return True if modules and all(map(self._lacks_the_words, modules)) else None

    def _lacks_the_words(self, module: Path) -> bool:
        noted = self._index.get(self._name(module))
        return noted is not None and noted[:2] == stamp(module) and not any(word in noted[2] for word in self._words)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note the names before anything is deselected."""
        cache = self._cache()
        if cache is None or not self._collects_whole_modules():
            return
        names: dict[Path, set[str]] = {}
        for item in items:
            keywords = {str(keyword).lower() for keyword in [*item.extra_keyword_matches, *item.keywords]}
            names.setdefault(item.path, set()).update(keywords | {item.nodeid.lower()})
        index: Index = cache.get(CACHE_KEY, {})
        for path, of_module in names.items():
            index[self._name(path)] = [*stamp(path), "\n".join(sorted(of_module))]
        cache.set(CACHE_KEY, index)

    def _cache(self) -> pytest.Cache | None:
        """Return pytest's cache, or None with `-p no:cacheprovider`."""
        return getattr(self._config, "cache", None)

    def _collects_whole_modules(self) -> bool:
        """Return whether no single tests were selected and this is the first worker or the only process."""
        worker = getattr(self._config, "workerinput", {"workerid": "gw0"})["workerid"]
        option = self._config.option
        return worker == "gw0" and not option.lf and not any("::" in a for a in self._config.args)

    def _name(self, path: Path) -> str:
        root = self._config.rootpath
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else ""


def stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_mtime_ns, status.st_size]
