"""The recipe files of the recipes folder: scan and parse them, and choose a file for each name.

Only files `*.yaml` directly in the folder are recipes, and files `*.yml` if the settings permit them. A file is parsed
again only if its bytes or the target of its link have changed, or if it could not be read. `scan` blocks, so call it
from a thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from svc.errors import RecipeError, RecipeSecurityError, RecipeUnreadable
from svc.names import ARM_MARK
from svc.recipe.yaml_reader import MAX_BYTES

if TYPE_CHECKING:
    from svc.recipe.load import LoadedRecipe


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why the present content of a recipe file is not served."""

    error: str
    why: Literal["parse", "security", "duplicate"]
    kept: str | None = None
    """The file that is served instead, if two files declare the same name."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A recipe file whose recipe is served under the name that it declares."""

    file: str
    loaded: LoadedRecipe
    """The last valid recipe in the file."""
    fault: Refused | None = None
    """The error if the file is no longer valid."""

    @property
    def name(self) -> str:
        return self.loaded.recipe.name


class RecipeFolder:
    """The recipes folder, with a cache of the parsed recipes. Not thread-safe."""

    def __init__(self, folder: Path, parse: Callable[[Path], LoadedRecipe], *, with_yml: bool = False) -> None:
        self._folder = folder
        self._endings = (".yaml", ".yml") if with_yml else (".yaml",)
        self._parse = parse
        self._parsed: dict[str, tuple[tuple[str, str], LoadedRecipe | Refused]] = {}
        """Target and digest of each file when it was parsed, and the result, by file name."""

    def scan(self) -> dict[str, LoadedRecipe | Refused]:
        """Return the recipe or the error of each recipe file by file name, sorted. Parses only new and changed files.

        Raises OSError if the folder cannot be listed.
        """
        home = self._folder.resolve(strict=True)
        files = sorted(path for path in self._folder.iterdir() if path.name.endswith(self._endings))
        outcomes = {_text(path.name): outcome for path in files if (outcome := self._scan_file(path, home)) is not None}
        self._parsed = {name: parsed for name, parsed in self._parsed.items() if name in outcomes}
        return outcomes

    def _scan_file(self, path: Path, home: Path) -> LoadedRecipe | Refused | None:
        name = _text(path.name)
        if path.suffix == ".yml" and path.with_suffix(".yaml").exists():
            error = f"{name}: {name.removesuffix('yml')}yaml is there too, and both mean one recipe: remove one"
            return Refused(error, "parse")
        # `_text` changes only names with bytes that are not UTF-8.
        if name == path.name:
            return self._look_into(path, home)
        return Refused(f"{name}: the file's name is not UTF-8; rename it", "parse")

    def _look_into(self, path: Path, home: Path) -> LoadedRecipe | Refused | None:
        try:
            target = path.resolve(strict=True)
            # Links within are in order: Kubernetes mounts a ConfigMap as links to files of a hidden folder beside them.
            if not target.is_relative_to(home):
                error = f"{path.name}: the link leads out of the recipes folder; put the file itself there"
                return Refused(error, "security")
            if target.is_dir():
                return None
            if not target.is_file():
                return Refused(f"{path.name}: is not a regular file", "parse")
            with target.open("rb") as file:
                # The bytes that the parser reads. It refuses every longer file, so the rest does not matter.
                fingerprint = (str(target), hashlib.sha256(file.read(MAX_BYTES + 1)).hexdigest())
            parsed = self._parsed.get(path.name)
            if parsed is None or parsed[0] != fingerprint:
                parsed = self._parsed[path.name] = fingerprint, self._outcome(path)
            return parsed[1]
        except (OSError, RuntimeError, RecipeUnreadable) as error:  # pathlib reports a loop of links as RuntimeError
            return Refused(_reason(path, error), "parse")

    def _outcome(self, path: Path) -> LoadedRecipe | Refused:
        try:
            return self._parse(path)
        except RecipeSecurityError as error:
            return Refused(error.message, "security")
        # Not an outcome that is kept, so the next scan reads the file again even if it does not change.
        except (RecipeUnreadable, OSError):
            raise
        except RecipeError as error:
            return Refused(error.message, "parse")
        except Exception as error:  # an unexpected error in one file must not stop the scan of all other files
            return Refused(f"{path.name}: cannot be checked: {type(error).__name__}: {error}", "parse")


def _text(name: str) -> str:
    """Return the file name for logs and JSON, with bytes that are not UTF-8 escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, RecipeUnreadable):
        return error.message
    return f"{path.name}: cannot be read: {getattr(error, 'strerror', None) or error}"


def declare(
    outcomes: Mapping[str, LoadedRecipe | Refused], before: Mapping[str, Declared]
) -> tuple[dict[str, Declared], dict[str, Refused]]:
    """Choose the recipe file that is served under each name.

    Returns these files by recipe name, and the reasons why the other files are not served, by file name. `outcomes` is
    a result of `scan`, and `before` has the files that were served until now, by recipe name. A file that is no longer
    valid keeps its name and its last valid recipe. If two files declare the same name, the first by file name is
    served. An arm with an artifact of its own is served as a recipe (`LoadedRecipe.arms`).
    """
    last = {declared.file: declared for name, declared in before.items() if ARM_MARK not in name}
    declared: dict[str, Declared] = {}
    refused: dict[str, Refused] = {}
    for file, outcome in sorted(outcomes.items()):
        if isinstance(outcome, Refused) and file not in last:
            refused[file] = outcome
            continue
        candidate = replace(last[file], fault=outcome) if isinstance(outcome, Refused) else Declared(file, outcome)
        # The first by file name, so that each start and each replica serves the same file.
        winner = declared.setdefault(candidate.name, candidate)
        if winner is not candidate:
            error = f"{file}: the name {candidate.name!r} is already used by {winner.file}"
            refused[file] = Refused(error, "duplicate", kept=winner.file)
    arms = [Declared(winner.file, arm) for winner in declared.values() for arm in winner.loaded.arms]
    return declared | {arm.name: arm for arm in arms}, refused
