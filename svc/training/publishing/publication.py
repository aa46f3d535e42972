"""Publish a model: check that a server can load it, write its artifact, and make it live if that is allowed.

The pointer is the path that servers read. The model goes live when the pointer leads to its artifact. A serial, an
expiry time and digests of the input files are added to the header if settings or recipe require them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

from svc import events, logs
from svc.artifact import layout, replay, version_log
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Written
from svc.artifact.store import Published, open_store, read_verified
from svc.artifact.versions import Versions
from svc.errors import ArtifactError, ArtifactWriteError, LockContestedError, ModelNotServable, SvcError
from svc.model import codec
from svc.model.load_model import load_model, rehearse
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings


def publish(
    loaded: LoadedRecipe, head: Mapping[str, Any], model: Any, keys: SigningKeys, settings: Settings, *, move: bool
) -> Published:
    """Write `model` with the header `head`, and make it live if that is allowed.

    A recipe with `output.keep` or a `promotion` block starts a log of versions. An existing log is always continued.
    With a log, the pointer moves only if `move` is set and no operator holds the live version. Without a log, and with
    `always_overwrite`, the model always goes live.

    Raise ModelNotServable if a server could not load the model, and ArtifactWriteError if the artifact cannot be
    written, or if another command holds the lock of the log. Servers then still read the previous artifact.
    """
    kid, key = keys.active
    # Its pieces are views of the model's arrays, so the model must not change until they are written.
    payload = codec.encode(model)
    # Before anything is written: with `always_overwrite`, writing replaces the model that servers read.
    require_servable(head, payload, name=loaded.recipe.name)

    def write(out: BinaryIO) -> Written:
        signature = settings.artifact_signature
        return layout.write(out, kid=kid, key=key, header=head, payload=payload, signature=signature)

    try:
        done = _publish(loaded, head, write, keys, settings, move=move)
    finally:
        # Without this, CPython 3.11 may crash: its garbage collector may fail on a reference cycle with views of
        # exported buffers, and the library of a store may keep this frame in such a cycle.
        payload.clear()
    pointer = {} if done.pointer is None else {"pointer": done.pointer}
    logs.emit(
        events.ARTIFACT_WRITTEN,
        versioning=loaded.recipe.output.versioning,
        artifact=done.artifact,
        **pointer,
        kid=kid,
        artifact_bytes=done.written.artifact_bytes,
        payload_bytes=done.written.payload_bytes,
    )
    if done.held:
        logs.emit(events.PROMOTION_HELD, recipe=loaded.recipe.name, artifact=done.artifact)
    _warn_of_caps(done.written, settings)
    return done


def _publish(
    loaded: LoadedRecipe, head: Mapping[str, Any], write: Any, keys: SigningKeys, settings: Settings, *, move: bool
) -> Published:
    output = loaded.recipe.output
    versions = Versions(loaded.output_uri, keys, settings, recipe=loaded.recipe.name)
    # A log that exists is continued even without its settings, because a version without a line counts as a problem.
    is_logged = output.keep or loaded.recipe.promotion is not None or versions.has_log()
    if output.versioning == "always_overwrite" or not is_logged:
        return open_store(loaded.output_uri, settings).publish(write, output.versioning)
    try:
        return versions.publish(write, head, move=move, keep=output.keep)
    except LockContestedError as error:  # its exit code would tell schedulers that another training runs
        raise ArtifactWriteError(
            f"the trained model is not written: {error.message}; end it if it hangs, and train again"
        ) from error


def _warn_of_caps(written: Written, settings: Settings) -> None:
    over_payload = written.payload_bytes > settings.max_payload_bytes
    if not over_payload and written.artifact_bytes <= settings.max_artifact_bytes:
        return
    logs.emit(
        events.ARTIFACT_PAYLOAD_EXCEEDS_SERVE_CAP,
        artifact_bytes=written.artifact_bytes,
        payload_bytes=written.payload_bytes,
        max_artifact_bytes=settings.max_artifact_bytes,
        max_payload_bytes=settings.max_payload_bytes,
        setting="SVC_MAX_PAYLOAD_BYTES" if over_payload else "SVC_MAX_ARTIFACT_BYTES",
    )


def require_servable(header: Mapping[str, Any], payload: Sequence[bytes | memoryview], *, name: str) -> None:
    """Raise ModelNotServable if a server would not load an artifact with this header and payload.

    `payload` is a list of pieces, as `codec.encode` returns it. The check needs memory for a second copy of all pieces.
    """
    try:
        rehearse(load_model(header, memoryview(b"".join(payload)), name=name, allow_skew=False))
    except ArtifactError as error:
        raise ModelNotServable(
            f"the trained model is not written, as no server would load it: {error.message}. "
            "Look for extreme values among the weights and the features"
        ) from error


MAX_INPUTS: Final = 64
"""Maximum number of input files that a header lists. If there are more, it has one digest of all of them."""


def needs_serial(loaded: LoadedRecipe, settings: Settings) -> bool:
    """Return whether settings or recipe require a serial and the sha256 of the inputs."""
    asked_by_settings = settings.state_dir is not None or settings.artifact_signature == "ed25519"
    return asked_by_settings or loaded.recipe.output.expires_after is not None


class Inputs:
    """Collects the names and sha256 digests of the files that a training reads."""

    def __init__(self, base_dir: Path) -> None:
        self._base_dir = base_dir
        self._found: dict[str, str] = {}

    def record(self, where: str, sha256: str) -> None:
        path = Path(where)
        inside = path.is_absolute() and path.is_relative_to(self._base_dir)
        # Relative to the recipe, so that the header does not depend on the folder of a checkout.
        self._found[str(path.relative_to(self._base_dir)) if inside else where] = sha256

    def list_files(self) -> list[dict[str, str]]:
        """Return the name and sha256 of each file, or a single entry if there are more than MAX_INPUTS files.

        The single entry has the sha256 of the lines that `sha256sum` would print for the files.
        """
        if len(self._found) <= MAX_INPUTS:
            return [{"name": name, "sha256": sha256} for name, sha256 in self._found.items()]
        lines = "".join(f"{sha256}  {name}\n" for name, sha256 in self._found.items())
        name = f"{len(self._found)} files, as sha256sum lists them"
        # Names of files need not be UTF-8. Their bytes are hashed as they are, as sha256sum prints them.
        return [{"name": name, "sha256": hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()}]


def fresh_fields(
    loaded: LoadedRecipe, settings: Settings, keys: SigningKeys, trained_at: str, inputs: Inputs
) -> dict[str, Any]:
    """Return the header's fields `serial`, `inputs` and, with `output.expires_after`, `expires_at`.

    Return nothing if neither settings nor recipe require them.
    """
    if not needs_serial(loaded, settings):
        return {}
    expires_after_s = loaded.recipe.output.expires_after_s
    fields: dict[str, Any] = {"serial": next_serial(loaded, settings, keys), "inputs": inputs.list_files()}
    if expires_after_s is not None:
        moment = datetime.fromisoformat(trained_at) + timedelta(seconds=expires_after_s)
        fields["expires_at"] = moment.isoformat(timespec="seconds")
    return fields


def next_serial(loaded: LoadedRecipe, settings: Settings, keys: SigningKeys) -> int:
    """Return the milliseconds since 1970, or the highest earlier serial plus one if that is more.

    It is more if the clock was set back. Earlier serials are those in the live artifact and in the log of versions.
    They count only if they were signed with the active key for this recipe, because another key may have leaked and
    signed a huge serial. The result is at most MAX_SERIAL.
    """
    kid = keys.active[0]
    before = [_serial_of_incumbent(loaded, settings, keys, kid), *_serials_in_log(loaded, settings, keys, kid)]
    return min(max(time.time_ns() // 1_000_000, 1 + max(before)), version_log.MAX_SERIAL)


def _serial_of_incumbent(loaded: LoadedRecipe, settings: Settings, keys: SigningKeys, kid: str) -> int:
    try:
        _, parsed = read_verified(loaded.output_uri, keys, settings)
        is_own = parsed.kid == kid and replay.recipe_of(parsed.header, loaded.recipe.name) == loaded.recipe.name
        return (replay.serial_of(parsed.header) or 0) if is_own else 0
    except SvcError:  # no artifact yet, or none with a valid signature
        return 0


def _serials_in_log(loaded: LoadedRecipe, settings: Settings, keys: SigningKeys, kid: str) -> list[int]:
    """Return the serials in the log: the highest before each rollback or promotion, and those of the versions.

    Servers with SVC_STATE_DIR refuse an artifact with a lower serial than they have served.
    """
    try:
        log = open_store(loaded.output_uri, settings).read_log()
    except SvcError:
        return []
    return version_log.parse(log, keys, loaded.recipe.name).serials(kid, {kid})
