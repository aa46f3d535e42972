"""Serial, expiry and input digests of a new artifact, if settings or recipe require them."""

from __future__ import annotations

import hashlib
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from svc.artifact import replay, version_log
from svc.artifact.keys import SigningKeys
from svc.artifact.store import open_store, read_verified
from svc.errors import SvcError
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings

MAX_INPUTS: Final = 64
"""Most files that are named one by one. More files are combined into one digest."""


def needs_serial(loaded: LoadedRecipe, settings: Settings) -> bool:
    """Return whether settings or recipe require a serial and the sha256 of the inputs."""
    asked_by_settings = settings.state_dir is not None or settings.artifact_signature == "ed25519"
    return asked_by_settings or loaded.recipe.output.expires_after is not None


class Inputs:
    """The files that a training has read, by name, with the sha256 of each."""

    def __init__(self, base_dir: Path) -> None:
        self._base_dir = base_dir
        self._found: dict[str, str] = {}

    def record(self, where: str, sha256: str) -> None:
        path = Path(where)
        inside = path.is_absolute() and path.is_relative_to(self._base_dir)
        self._found[str(path.relative_to(self._base_dir)) if inside else where] = sha256

    def list_files(self) -> list[dict[str, str]]:
        """Return name and sha256 of each file, or one entry for more than MAX_INPUTS files.

        The sha256 of this entry is over lines as `sha256sum` prints them.
        """
        if len(self._found) <= MAX_INPUTS:
            return [{"name": name, "sha256": sha256} for name, sha256 in self._found.items()]
        lines = "".join(f"{sha256}  {name}\n" for name, sha256 in self._found.items())
        name = f"{len(self._found)} files, as sha256sum lists them"
        return [{"name": name, "sha256": hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()}]


def fresh_fields(
    loaded: LoadedRecipe, settings: Settings, keys: SigningKeys, trained_at: str, inputs: Inputs
) -> dict[str, Any]:
    """Return `serial`, `inputs` and, with output.expires_after, `expires_at`, or nothing if they are not required."""
    if not needs_serial(loaded, settings):
        return {}
    expires_after_s = loaded.recipe.output.expires_after_s
    fields: dict[str, Any] = {"serial": next_serial(loaded, settings, keys), "inputs": inputs.list_files()}
    if expires_after_s is not None:
        moment = datetime.fromisoformat(trained_at) + timedelta(seconds=expires_after_s)
        fields["expires_at"] = moment.isoformat(timespec="seconds")
    return fields


def next_serial(loaded: LoadedRecipe, settings: Settings, keys: SigningKeys) -> int:
    """Return milliseconds since 1970, or the highest serial so far plus one if the clock was set back.

    Only serials that this key has signed for this output count, because another key may have leaked.
    """
    kid = keys.active[0]
    before = [_serial_of_incumbent(loaded, settings, keys, kid), *_serials_in_log(loaded, settings, keys, kid)]
    return min(max(time.time_ns() // 1_000_000, 1 + max(before)), replay.MAX_SERIAL)


def _serial_of_incumbent(loaded: LoadedRecipe, settings: Settings, keys: SigningKeys, kid: str) -> int:
    try:
        _, parsed = read_verified(loaded.output_uri, keys, settings)
        is_own = parsed.kid == kid and replay.recipe_of(parsed.header, loaded.recipe.name) == loaded.recipe.name
        return (replay.serial_of(parsed.header) or 0) if is_own else 0
    except SvcError:  # no artifact yet, or none with a valid signature
        return 0


def _serials_in_log(loaded: LoadedRecipe, settings: Settings, keys: SigningKeys, kid: str) -> list[int]:
    """Return the serials that were live before each rollback or promotion, below which servers refuse an artifact."""
    try:
        log = open_store(loaded.output_uri, settings).read_log(version_log.MAX_LOG_BYTES)
    except SvcError:
        return []
    lines = version_log.about(version_log.verified_lines(log, keys), recipe=loaded.recipe.name, kid=kid)
    serials = [line.get("from_serial") for line in lines if line.get("kid") == kid]
    return [serial for serial in serials if type(serial) is int and 0 <= serial <= replay.MAX_SERIAL]
