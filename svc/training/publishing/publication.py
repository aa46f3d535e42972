"""The last step of a training: write the artifact, and move the pointer to it if that is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from svc import events, logs
from svc.artifact import layout
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Written
from svc.artifact.store import open_store
from svc.artifact.versions import Versions
from svc.model import codec
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.publishing.servable import require_servable


@dataclass(frozen=True, slots=True)
class Publication:
    """A written artifact.

    `pointer` is the path that servers read, if it leads to the new artifact. `held` is True if a hold kept the pointer
    in place. `live` is the version that stayed live instead of the new one, if any.
    """

    artifact: str
    pointer: str | None
    written: Written
    promoted: bool = True
    held: bool = False
    live: str | None = None

    @property
    def kept(self) -> str:
        """Return the part of an interrupt's message that names the artifact in place."""
        if not self.promoted:
            return f"the new artifact {self.artifact} is written, and not live"
        return f"the new artifact {self.pointer or self.artifact} is in place"


def publish(
    loaded: LoadedRecipe, head: Mapping[str, Any], model: Any, keys: SigningKeys, settings: Settings, *, move: bool
) -> Publication:
    """Write `model` with the header `head`, and move the pointer if `move` is set and there is no hold.

    A recipe with `output.keep` or a `promotion` block starts a log of versions. An existing log is always continued.
    Raise ModelNotServable or ArtifactWriteError. Readers then still see the previous artifact.
    """
    kid, key = keys.active
    payload = codec.encode(model)
    require_servable(head, payload, name=loaded.recipe.name)

    def write(out: BinaryIO) -> Written:
        signature = settings.artifact_signature
        return layout.write(out, kid=kid, key=key, header=head, payload=payload, signature=signature)

    try:
        done = _publish(loaded, head, write, keys, settings, move=move)
    finally:
        # Prevents a crash of CPython 3.11, whose garbage collector may fail on views of exported buffers in a reference
        # cycle. A store's library may keep this frame in such a cycle.
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
) -> Publication:
    output = loaded.recipe.output
    versions = Versions(loaded.output_uri, keys, settings, recipe=loaded.recipe.name)
    is_logged = output.keep or loaded.recipe.promotion is not None or versions.has_log()
    if output.versioning == "always_overwrite" or not is_logged:
        published = open_store(loaded.output_uri, settings).publish(write, output.versioning)
        return Publication(published.artifact, published.pointer, published.written)
    done = versions.publish(write, head, move=move, keep=output.keep)
    pointer = versions.uri if done.promoted else None
    stayed = None if done.promoted else done.live
    return Publication(done.artifact, pointer, done.written, done.promoted, done.held, stayed)


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
